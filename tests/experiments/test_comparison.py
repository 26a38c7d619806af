"""Comparisons of architectures (Figures 4 and 6) on students made by hand."""

import numpy as np
import pytest

from underhood.experiments.paper.figure6 import (
    EQUAL_PARAMETERS,
    FEWEST_SIZES,
    at_best_sizes,
    closeness,
    input_gate_helps,
    ratio_near,
)
from underhood.experiments.protocols.comparison import Comparison, TrainedStudent
from underhood.results.architectures import (
    ARCHITECTURE_NAMES,
    GATED,
    GRU_NAME,
    LRU_IN_OUT,
    LRU_MLP,
    LRU_PLAIN,
    LSTM_NAME,
)
from underhood.tasks import InContextRegression
from underhood.training import Run

TASK = InContextRegression()
SEEDS = 4
GATES = (LSTM_NAME, GRU_NAME)


def group(name, width, losses, *, depth=1, parameters=None, ratio=2.0) -> list[TrainedStudent]:
    """Students that differ by their seed: training loss as given, `ratio` times it validated."""
    return [
        TrainedStudent(
            *(name, depth, width, seed),
            rate=1e-2,
            parameters=100 * width * depth if parameters is None else parameters,
            training=loss,
            loss=loss,
            validation=None if loss is None else ratio * loss,
        )
        for seed, loss in enumerate(losses)
    ]


def comparison(*groups: list[TrainedStudent], windows: int = 10, seeds: int = SEEDS) -> Comparison:
    students = tuple(student for group in groups for student in group)
    # One run per group; the curves count windows.
    runs = tuple(
        Run((), np.arange(windows), np.tile(np.arange(1.0, windows + 1), (len(group), 1)), [])
        for group in groups
    )
    return Comparison(TASK, students, runs, seeds)


NARROW = group(GATED, 8, [0.4, 0.3, 0.5, 0.6])
WIDE = group(GATED, 32, [0.2, None, 0.1, 0.3])
# The best of its architecture, but it costs most.
DEEP = group(LRU_PLAIN, 8, [0.01, 0.02, 0.03, 0.04], depth=2)
SHALLOW = group(LRU_PLAIN, 8, [0.05, 0.06, 0.07, 0.08])
FOUND = comparison(NARROW, WIDE, DEEP, SHALLOW)


def test_groups_differ_by_their_seed_alone_and_a_depth_has_its_widest() -> None:
    assert FOUND.groups() == [NARROW, WIDE, DEEP, SHALLOW]
    assert FOUND.groups(LRU_PLAIN) == [DEEP, SHALLOW] and FOUND.groups("no such") == []
    # Whatever order they come in.
    mixed = comparison([student for pair in zip(NARROW, WIDE, strict=True) for student in pair])
    assert mixed.groups() == [NARROW, WIDE]
    assert FOUND.widest(GATED, 1) == WIDE and FOUND.widest(LRU_PLAIN, 2) == DEEP
    assert FOUND.widest(GATED, 2) == FOUND.widest("no such", 1) == []


def test_a_lost_student_counts_as_one_that_answers_zero() -> None:
    for name in ("loss", "training"):
        assert FOUND.values(WIDE, name) == [0.2, TASK.zero_loss, 0.1, 0.3]
    # Validation tasks have twice the variance, and so has answering zero.
    assert FOUND.values(WIDE, "validation") == [0.4, 2 * TASK.zero_loss, 0.2, 0.6]


def test_the_best_group_has_the_lowest_median_among_those_one_can_afford() -> None:
    assert FOUND.best(GATED, "loss") == WIDE and FOUND.best("no such", "loss") is None
    assert FOUND.best(LRU_PLAIN, "loss") == DEEP
    for most, best in ((1600, DEEP), (1599, SHALLOW), (799, None)):
        assert FOUND.best(LRU_PLAIN, "loss", most) == best
    # Three lost students of four make a median of nothing found.
    lost = group(GATED, 64, [None, None, None, 1e-9])
    assert comparison(NARROW, lost).best(GATED, "loss") == NARROW


def test_a_row_per_group_with_quartiles() -> None:
    rows = FOUND.rows()
    sizes = [(row["architecture"], row["layers"], row["width"]) for row in rows]
    assert sizes == [(GATED, 1, 8), (GATED, 1, 32), (LRU_PLAIN, 2, 8), (LRU_PLAIN, 1, 8)]
    first, lost = rows[0], rows[1]
    assert (first["parameters"], first["rate"]) == (800, 1e-2)
    names = ("loss", "loss over scale", "validation")
    assert [first[name] for name in names] == pytest.approx([0.45, 0.45 / TASK.scale, 0.9])
    assert first["loss, quartiles"] == "0.375 to 0.525"
    assert first["validation, quartiles"] == "0.75 to 1.05"
    # 0.1, 0.2, 0.3 and zero's 0.5.
    assert lost["loss"] == pytest.approx(0.25)


def test_arrays_have_an_entry_per_student() -> None:
    arrays = FOUND.arrays()
    places = [ARCHITECTURE_NAMES.index(student.architecture) for student in FOUND.students]
    np.testing.assert_array_equal(arrays["architecture"], places)
    for name in ("depth", "width", "seed", "parameters"):
        assert arrays[name].dtype == np.int64
        expected = [getattr(student, name) for student in FOUND.students]
        np.testing.assert_array_equal(arrays[name], expected, name)
    for name in ("rate", "training", "loss", "validation"):
        assert arrays[name].shape == (len(FOUND.students),)
    lost = FOUND.students.index(WIDE[1])
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(arrays["loss"])), [lost])


@pytest.mark.parametrize(("windows", "kept"), [(10, 10), (100, 100), (250, 83), (1000, 100)])
def test_curves_have_at_most_a_hundred_points(windows: int, kept: int) -> None:
    arrays = comparison(NARROW, WIDE, windows=windows).arrays()
    assert arrays["curves"].shape == (8, kept)
    assert arrays["curves"].dtype == np.float32
    # Point and step belong together: curve k is k + 1 at step k.
    np.testing.assert_array_equal(arrays["curves"][0], arrays["curve_steps"] + 1)
    every = -(-windows // 100)
    np.testing.assert_array_equal(np.diff(arrays["curve_steps"]), every)


# The most that counts as equal to 800 parameters.
MOST = int(EQUAL_PARAMETERS * 800)
GOOD, BAD = [1e-4, 1.1e-4, 1.2e-4, 1.3e-4], [1e-2, 1.1e-2, 1.2e-2, 1.3e-2]


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        # (width, parameters, losses) of every group of the two architectures.
        ([(8, 800, GOOD)], [(8, 800, BAD)], "reproduced"),
        ([(8, 800, BAD)], [(8, 800, GOOD)], "differs"),
        ([(8, 800, GOOD)], [(8, 800, GOOD)], "not judged"),
        # What only one of them can afford does not count, on either side.
        ([(8, 800, GOOD)], [(8, 800, BAD), (32, 3200, [1e-9] * 4)], "reproduced"),
        ([(8, 800, BAD), (32, 3200, [1e-9] * 4)], [(8, 800, GOOD)], "differs"),
        # Of what both can afford, each has its best.
        ([(4, 400, BAD), (8, 800, GOOD)], [(4, 400, BAD), (8, 900, BAD)], "reproduced"),
        # Widths are few: half as much again still counts as equal.
        ([(8, 800, GOOD)], [(8, MOST, BAD)], "reproduced"),
        ([(8, MOST, GOOD)], [(8, 800, BAD)], "reproduced"),
        # The smallest of one costs more than that, beside the largest of the other.
        ([(8, 800, GOOD)], [(8, MOST + 1, BAD)], "not judged"),
        ([(8, MOST + 1, GOOD)], [(8, 800, BAD)], "not judged"),
    ],
)
def test_gates_win_at_best_sizes(ours, theirs, expected: str) -> None:
    groups = [
        group(name, width, losses, parameters=parameters)
        for name, sizes in ((LRU_IN_OUT, ours), (LRU_MLP, theirs))
        for width, parameters, losses in sizes
    ]
    number = at_best_sizes(comparison(*groups), LRU_MLP, "regression")
    assert number.verdict == expected
    assert number.name == "LRU In+Out < LRU In+Out MLP, best sizes, regression"
    assert (number.value is None) == ("afford" in number.rule)
    assert (number.value is None) == (MOST + 1 in {ours[0][1], theirs[0][1]})


@pytest.mark.parametrize(
    ("name", "ratio", "target", "expected"),
    [
        (None, 1.05, 1.0, "reproduced"),
        (None, 0.95, 1.0, "reproduced"),
        (None, 1.15, 1.0, "differs"),
        (None, 0.85, 1.0, "differs"),
        (GATED, 2.0, 2.0, "reproduced"),
        (GATED, 1.0, 2.0, "differs"),
    ],
)
def test_validation_over_training_lies_near_its_target(name, ratio, target, expected) -> None:
    students = comparison(
        group(GATED, 32, [0.1, 0.2, 0.3, None], ratio=ratio),
        # The narrow ones are not judged where an architecture is named.
        *([] if name is None else [group(GATED, 8, BAD * 3, ratio=9.0)]),
    )
    number = ratio_near(students, name, "what", target)
    assert number.verdict == expected
    assert number.value == pytest.approx(ratio)


def test_a_ratio_of_no_students_differs_and_of_few_seeds_is_not_judged() -> None:
    lost = comparison(group(GATED, 8, [None] * 4))
    assert ratio_near(lost, None, "what", 1.0).value is None
    assert ratio_near(lost, None, "what", 1.0).verdict == "differs"
    few = comparison(group(GATED, 8, [0.1] * 3, ratio=1.0), seeds=3)
    assert ratio_near(few, None, "what", 1.0).verdict == "not judged"


@pytest.mark.parametrize(
    ("order", "value", "verdict"),
    [((0, 1, 2, 3, 4, 5), 1.0, "reproduced"), ((5, 4, 3, 2, 1, 0), -1.0, "differs")],
)
def test_lrus_near_attention_must_learn_better_in_context(order, value, verdict) -> None:
    sizes = [(name, width) for name in (LRU_PLAIN, LRU_IN_OUT) for width in (8, 16, 32)]
    imitating, learning = (
        comparison(
            *(
                group(name, width, [1.0 + place] * SEEDS)
                for (name, width), place in zip(sizes, places, strict=True)
            ),
            # A size that one task lacks, and a layer that is no LRU, say nothing.
            group(LRU_IN_OUT, extra, [0.0] * SEEDS),
            group(GATED, 8, [100.0 * extra] * SEEDS),
        )
        for places, extra in ((range(6), 64), (order, 128))
    )
    (number,) = closeness(imitating, learning)
    assert (number.value, number.verdict) == (pytest.approx(value), verdict)


def test_correlations_without_the_size_of_students_stand_beside_it() -> None:
    # Larger students do better on both tasks; of one size the kinds have opposite orders.
    kinds = (LRU_PLAIN, LRU_IN_OUT, LRU_MLP)
    imitating, learning = (
        comparison(
            *(
                group(name, width, [0.1**width * (2 + sign * place)] * SEEDS)
                for place, name in enumerate(kinds)
                for width in (1, 2)
            ),
            *(group(name, width, [1.0 / width] * SEEDS) for name in GATES for width in (1, 2, 3)),
        )
        for sign in (1, -0.5)
    )
    high, equal, gates = closeness(imitating, learning)
    assert (high.verdict, high.whose, high.value > 0.4) == ("differs", "paper", True)
    assert (equal.value, equal.verdict, equal.whose) == (-1.0, "not judged", "ours")
    assert (gates.value, gates.verdict, gates.whose) == (pytest.approx(1.0), "not judged", "ours")


@pytest.mark.parametrize("depth", [1, 2])
def test_the_paper_speaks_of_input_gates_at_every_depth(depth) -> None:
    deep, shallow = (GOOD, BAD) if depth == 2 else (BAD, GOOD)
    students = comparison(
        *(group(LRU_PLAIN, 8, [5e-3] * SEEDS, depth=layers) for layers in (1, 2)),
        group(LRU_IN_OUT, 8, shallow, depth=1),
        group(LRU_IN_OUT, 8, deep, depth=2),
    )
    numbers = input_gate_helps(students)
    assert [number.name for number in numbers] == [
        "LRU In+Out < LRU, 1 layer, teacher-student",
        "LRU In+Out < LRU, 2 layers, teacher-student",
    ]
    verdicts = ["differs", "differs"]
    verdicts[depth - 1] = "reproduced"
    assert [number.verdict for number in numbers] == verdicts
    assert {number.whose for number in numbers} == {"paper"}


def test_few_sizes_have_no_correlation() -> None:
    few = comparison(*(group(LRU_PLAIN, 2**n, [1.0] * SEEDS) for n in range(FEWEST_SIZES - 1)))
    assert closeness(few, few) == []
