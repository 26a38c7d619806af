"""Sweeps over sizes: where planted losses fall, and what is said about it."""

import dataclasses

import jax
import numpy as np
import pytest

from underhood.experiments.protocols.sizes import (
    CLOSE,
    FLOOR,
    SizePlan,
    from_here_on,
    judge_sizes,
    numbers_of,
    sized_student,
    steepest_fall,
)
from underhood.tasks import InContextRegression
from underhood.training import Recipe, Run

TASK = InContextRegression()
PREDICTED, GATES = 12, 9
PAPER = ("median", "around twice 12")
COUNTS = (6, 9, 12, 18, 24, 30)
# Too small, and the function itself.
BAD, GOOD = 1e-2, 1e-6


@pytest.mark.parametrize(
    ("medians", "expected"),
    [
        ([1, 1, 1e-3, 1e-3], 30),
        # The largest factor counts, not the largest difference.
        ([1, 1e-1, 1e-3, 1e-4], 30),
        ([1e-2, 1e-2, 1e-2, 1e-7], 40),
        # A rise before it changes nothing.
        ([1e-3, 1, 1e-2, 1e-3], 30),
        # Of two equal falls the first.
        ([1, 0.25, 0.25, 0.0625], 20),
        # Nothing falls.
        ([1, 1, 1, 1], None),
        ([1, 2, 3, 4], None),
        ([1], None),
        ([], None),
    ],
)
def test_the_steepest_fall_ends_where_the_logarithm_drops_most(medians, expected) -> None:
    counts = (10, 20, 30, 40)[: len(medians)]
    assert steepest_fall(counts, np.array(medians, float)) == expected


@pytest.mark.parametrize(
    ("holds", "expected"),
    [
        ([True, True, True], 10),
        ([False, True, True], 20),
        ([True, False, True], 30),
        ([True, True, False], None),
        ([False, False, False], None),
        ([], None),
    ],
)
def test_from_here_on_looks_at_all_larger_sizes(holds, expected) -> None:
    assert from_here_on((10, 20, 30)[: len(holds)], np.array(holds, bool)) == expected


def planted(values: dict[int, list[float]]) -> np.ndarray:
    return np.array([values[count] for count in COUNTS])


def falling_at(size: int) -> dict[int, list[float]]:
    """Four seeds that all compute the function from one size on."""
    return {count: [GOOD if count >= size else BAD] * 4 for count in COUNTS}


def lucky(size: int, earlier: int) -> dict[int, list[float]]:
    """The same, but one seed computes the function already at an earlier size."""
    return {**falling_at(size), earlier: [BAD, BAD, GOOD, BAD]}


@pytest.mark.parametrize(
    ("values", "sizes", "verdicts"),
    [
        # From the predicted size to twice that.
        (falling_at(12), (12, 12, 12), "reproduced reproduced reproduced"),
        (falling_at(24), (24, 24, 24), "reproduced reproduced reproduced"),
        (lucky(24, 12), (24, 12, 24), "reproduced reproduced reproduced"),
        # Below the predicted size, where theory allows none; beyond twice that.
        (falling_at(9), (9, 9, 9), "differs differs differs"),
        (falling_at(30), (30, 30, 30), "differs differs differs"),
        (lucky(12, 9), (12, 9, 12), "reproduced differs reproduced"),
        (lucky(30, 12), (30, 12, 30), "differs reproduced differs"),
        # A larger size that fails again: not all from there on.
        ({**falling_at(12), 24: [BAD] * 4}, (12, 12, 30), "reproduced reproduced differs"),
        # What is close to the largest students counts as computing the function.
        ({**falling_at(18), 12: [0.99 * CLOSE * GOOD] * 4}, (12, 12, 12), "reproduced " * 3),
        ({**falling_at(18), 12: [1.01 * CLOSE * GOOD] * 4}, (18, 18, 18), "reproduced " * 3),
        # No size matters: no fall, and the smallest students do what the largest do.
        ({count: [BAD] * 4 for count in COUNTS}, (None, 6, 6), "differs differs differs"),
    ],
)
def test_sizes_up_to_twice_the_predicted_are_reproduced(values, sizes, verdicts) -> None:
    numbers = numbers_of("neurons", COUNTS, planted(values), PREDICTED, PAPER)
    names = [f"{name}, neurons" for name in ("fall", "smallest", "median")]
    assert [number.name for number in numbers] == names
    assert tuple(number.value for number in numbers) == sizes
    assert [number.verdict for number in numbers] == verdicts.split()
    assert {number.rule for number in numbers} == {"12 ≤ neurons ≤ 24"}
    assert [number.paper for number in numbers] == [None, None, "around twice 12"]
    assert [number.whose for number in numbers] == ["ours", "ours", "paper"]
    # Another number may be the paper's; all have the same rule.
    others = numbers_of("neurons", COUNTS, planted(values), PREDICTED, ("fall", 12))
    assert [number.paper for number in others] == [12, None, None]
    assert [number.verdict for number in others] == verdicts.split()
    # Three seeds are not judged.
    few = numbers_of("neurons", COUNTS, planted(values)[:, :3], PREDICTED)
    assert {number.whose for number in few} == {"ours"}
    assert tuple(number.value for number in few) == sizes
    assert {number.verdict for number in few} == {"not judged"}


def plan(neurons: tuple[int, ...], gates: tuple[int, ...] = ()) -> SizePlan:
    return SizePlan(TASK, (PREDICTED, GATES), neurons, gates, 4, Recipe(steps=10), 0, PAPER)


def test_the_two_axes_of_a_sweep() -> None:
    both = plan((6, 12), (3, 9))
    assert both.sizes == ((6, 6), (12, 12), (2 * PREDICTED, 3), (2 * PREDICTED, 9))
    assert plan((6, 12)).sizes == ((6, 6), (12, 12))
    # A width is the place of a size, counted from 1.
    assert list(both.widths) == [1, 2, 3, 4]
    student = sized_student(TASK, both.sizes)(3, key=jax.random.key(0))
    assert (student.neurons, student.gate_width) == (2 * PREDICTED, 3)
    assert (student.d_in, student.d_out) == (TASK.d_in, TASK.d_out)


def run_of(excess: list[list[float | None]]) -> Run:
    """A run whose members have these excesses over the best attention, None where lost."""
    losses = [[x if x is None else TASK.best_loss + x * TASK.scale for x in xs] for xs in excess]
    rows = tuple(
        {"seed": seed, "width": width, "loss": loss}
        for width, values in enumerate(losses, 1)
        for seed, loss in enumerate(values)
    )
    return Run(rows, np.array([5, 10]), np.ones((len(rows), 2)), [])


def outcome_of(excess: dict[int, list[float | None]], gates: dict[int, list[float]] | None = None):
    gates = gates or {}
    run = run_of([*excess.values(), *gates.values()])
    return judge_sizes([run], plan(tuple(excess), tuple(gates)), 4)


def test_a_sweep_is_judged_by_excesses_over_the_best_attention() -> None:
    outcome = outcome_of(falling_at(12))
    assert [number.value for number in outcome.numbers] == [12, 12, 12]
    assert [number.verdict for number in outcome.numbers] == ["reproduced"] * 3
    rows = {row["neurons"]: row for row in outcome.rows}
    assert rows[9]["median"] == pytest.approx(BAD)
    assert rows[12]["median"] == pytest.approx(GOOD)
    assert (rows[9]["compute it"], rows[12]["compute it"]) == ("0 of 4", "4 of 4")
    assert (rows[9]["below 1e-3"], rows[12]["below 1e-3"]) == ("0 of 4", "4 of 4")
    np.testing.assert_array_equal(outcome.arrays["sizes"], [[n, n] for n in COUNTS])
    np.testing.assert_array_equal(outcome.arrays["predicted"], [PREDICTED, GATES])
    np.testing.assert_allclose(outcome.arrays["excess"], planted(falling_at(12)), rtol=1e-6)
    assert (list(outcome.seeds), outcome.steps) == ([0, 1, 2, 3], 10)


def test_a_lost_member_learnt_nothing_and_less_than_the_best_loss_is_noise() -> None:
    # One of four changes no median; three of four do, and the size no longer counts.
    few, many = ([None] * lost + [GOOD] * (4 - lost) for lost in (1, 3))
    outcome = outcome_of({**falling_at(12), 12: few})
    assert [number.value for number in outcome.numbers] == [12, 12, 12]
    row = next(row for row in outcome.rows if row["neurons"] == 12)
    # It counts as one that answers zero.
    assert row["highest"] == (TASK.zero_loss - TASK.best_loss) / TASK.scale
    assert row["compute it"] == "3 of 4"
    lost = np.isnan(outcome.arrays["excess"][COUNTS.index(12)])
    np.testing.assert_array_equal(lost, [True, False, False, False])
    outcome = outcome_of({**falling_at(12), 12: many})
    assert [number.value for number in outcome.numbers] == [18, 12, 18]
    # A loss below the best attention's is noise.
    outcome = outcome_of({**falling_at(12), 24: [-1e-3, GOOD, GOOD, GOOD]})
    assert outcome.arrays["excess"][COUNTS.index(24), 0] == FLOOR
    assert [number.verdict for number in outcome.numbers] == ["reproduced"] * 3


def test_rows_find_their_place_whatever_their_order() -> None:
    run = run_of(list(lucky(24, 12).values()))
    shuffled = [run.rows[place] for place in np.random.default_rng(0).permutation(len(run.rows))]
    outcome = judge_sizes([Run(tuple(shuffled), run.steps, run.losses, [])], plan(COUNTS), 4)
    assert [number.value for number in outcome.numbers] == [24, 12, 24]


def test_gate_outputs_are_an_axis_of_their_own() -> None:
    # Neurons fall at 24 and gate outputs at 9, each axis with a floor of its own.
    alone = {gates: [1e-9 if gates >= 9 else 5e-5] * 4 for gates in (6, 9, 12)}
    outcome = outcome_of(falling_at(24), alone)
    assert [(number.name, number.value) for number in outcome.numbers] == [
        (f"{name}, {axis}", value)
        for axis, value in (("neurons", 24), ("gate outputs", 9))
        for name in ("fall", "smallest", "median")
    ]
    assert {number.verdict for number in outcome.numbers} == {"reproduced"}
    last = {row["gate outputs"]: row for row in outcome.rows[len(COUNTS) :]}
    assert {row["neurons"] for row in last.values()} == {2 * PREDICTED}
    # 5e-5 would be close enough to the largest of the neurons' axis, but is not to its own.
    assert (last[6]["compute it"], last[9]["compute it"]) == ("0 of 4", "4 of 4")


def test_sizes_in_several_runs_are_judged_as_in_one() -> None:
    split = dataclasses.replace(plan(COUNTS), in_runs=(2, len(COUNTS) - 2))
    studies = split.studies("sizes", 4)
    assert {name: study.widths for name, study in studies.items()} == {
        "sizes_1": (1, 2),
        "sizes_2": tuple(range(3, len(COUNTS) + 1)),
    }
    assert list(plan(COUNTS).studies("sizes", 4)) == ["sizes"]
    whole = run_of(list(falling_at(12).values()))
    parts = [
        Run(
            tuple(row for row in whole.rows if row["width"] in study.widths), whole.steps, curve, []
        )
        for study, curve in zip(studies.values(), np.split(whole.losses, [8]), strict=True)
    ]
    together, apart = judge_sizes([whole], plan(COUNTS), 4), judge_sizes(parts, split, 4)
    assert apart.numbers == together.numbers and apart.rows == together.rows
    for name, array in together.arrays.items():
        np.testing.assert_array_equal(apart.arrays[name], array)


def test_students_with_weight_decay_are_shown_and_decide_nothing() -> None:
    beside = dataclasses.replace(plan(COUNTS), decayed=(9, 12))
    study = beside.decayed_study()
    assert study.widths == (COUNTS.index(9) + 1, COUNTS.index(12) + 1)
    assert study.recipe == Recipe.paper(steps=10) and study.recipe.weight_decay > 0
    rows = [
        {"seed": seed, "width": width, "loss": TASK.best_loss + loss * TASK.scale}
        for width, loss in zip(study.widths, (GOOD, BAD), strict=True)
        for seed in range(4)
    ]
    decayed = Run(tuple(rows), np.array([5, 10]), np.ones((8, 2)), [])
    whole = run_of(list(falling_at(12).values()))
    outcome = judge_sizes([whole], beside, 4, decayed)
    assert outcome.numbers == judge_sizes([whole], plan(COUNTS), 4).numbers
    assert [row["weight decay"] for row in outcome.rows] == ["no"] * len(COUNTS) + [
        "coupled 0.0001"
    ] * 2
    shown = {row["neurons"]: row for row in outcome.rows[len(COUNTS) :]}
    assert shown[9]["median"] == pytest.approx(GOOD) and shown[12]["median"] == pytest.approx(BAD)
    assert outcome.runs[-1] is decayed
