"""Comparisons of architectures (Figures 4 and 6) on students made by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from underhood.experiments.architectures import (
    ARCHITECTURES,
    GATED,
    LRU_IN_OUT,
    LRU_MLP,
    LRU_PLAIN,
)
from underhood.experiments.comparison import (
    Comparison,
    Plan,
    Student,
    compare,
    search,
    slug,
    student_of,
)
from underhood.experiments.figure6 import EQUAL, at_equal_parameters, ratio_near
from underhood.tasks import InContextRegression
from underhood.training import Recipe, Run

TASK = InContextRegression()
SEEDS = 4


def group(
    name: str,
    width: int,
    losses: list[float | None],
    *,
    depth: int = 1,
    parameters: int | None = None,
    ratio: float = 2.0,
) -> list[Student]:
    """Students that differ by their seed: training loss as given, `ratio` times it validated."""
    return [
        Student(
            architecture=name,
            depth=depth,
            width=width,
            seed=seed,
            rate=1e-2,
            parameters=100 * width * depth if parameters is None else parameters,
            training=loss,
            loss=loss,
            validation=None if loss is None else ratio * loss,
        )
        for seed, loss in enumerate(losses)
    ]


def comparison(*groups: list[Student], windows: int = 10, seeds: int = SEEDS) -> Comparison:
    students = tuple(one for each in groups for one in each)
    # One run per group; the curves count windows.
    runs = tuple(
        Run((), np.arange(windows), np.tile(np.arange(1.0, windows + 1), (len(each), 1)), [])
        for each in groups
    )
    return Comparison(TASK, students, runs, seeds)


NARROW = group(GATED, 8, [0.4, 0.3, 0.5, 0.6])
WIDE = group(GATED, 32, [0.2, None, 0.1, 0.3])
# The best of its architecture, but it costs most.
DEEP = group(LRU_PLAIN, 8, [0.01, 0.02, 0.03, 0.04], depth=2)
SHALLOW = group(LRU_PLAIN, 8, [0.05, 0.06, 0.07, 0.08])
FOUND = comparison(NARROW, WIDE, DEEP, SHALLOW)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((GATED,), NARROW + WIDE),
        ((GATED, 1), NARROW + WIDE),
        ((GATED, 1, 32), WIDE),
        ((GATED, None, 8), NARROW),
        ((LRU_PLAIN, 2), DEEP),
        ((LRU_PLAIN,), DEEP + SHALLOW),
        ((GATED, 2), []),
        (("no such",), []),
    ],
)
def test_students_are_picked_by_who_they_are(arguments, expected) -> None:
    assert FOUND.pick(*arguments) == expected


def test_the_widest_of_a_depth() -> None:
    assert FOUND.widest(GATED, 1) == WIDE
    assert FOUND.widest(LRU_PLAIN, 2) == DEEP
    assert FOUND.widest(GATED, 2) == []


def test_groups_differ_by_their_seed_alone() -> None:
    assert FOUND.groups() == [NARROW, WIDE, DEEP, SHALLOW]
    assert FOUND.groups(LRU_PLAIN) == [DEEP, SHALLOW]
    # Whatever order they come in.
    mixed = comparison([one for pair in zip(NARROW, WIDE, strict=True) for one in pair])
    assert mixed.groups() == [NARROW, WIDE]


def test_a_lost_student_counts_as_one_that_answers_zero() -> None:
    assert FOUND.values(WIDE, "loss") == [0.2, TASK.zero_loss, 0.1, 0.3]
    assert FOUND.values(WIDE, "training") == [0.2, TASK.zero_loss, 0.1, 0.3]
    # Validation tasks have twice the variance, and so has answering zero.
    assert FOUND.values(WIDE, "validation") == [0.4, 2 * TASK.zero_loss, 0.2, 0.6]


def test_the_best_group_has_the_lowest_median_among_those_one_can_afford() -> None:
    assert FOUND.best(GATED, "loss") == WIDE
    assert FOUND.best(LRU_PLAIN, "loss") == DEEP
    assert FOUND.best(LRU_PLAIN, "loss", 1600) == DEEP
    assert FOUND.best(LRU_PLAIN, "loss", 1599) == SHALLOW
    assert FOUND.best(LRU_PLAIN, "loss", 799) is None
    assert FOUND.best("no such", "loss") is None
    # Three lost students of four make a median of nothing found.
    lost = group(GATED, 64, [None, None, None, 1e-9])
    assert comparison(NARROW, lost).best(GATED, "loss") == NARROW


def test_a_row_per_group_with_quartiles() -> None:
    rows = FOUND.rows()
    assert [(row["architecture"], row["layers"], row["width"]) for row in rows] == [
        (GATED, 1, 8),
        (GATED, 1, 32),
        (LRU_PLAIN, 2, 8),
        (LRU_PLAIN, 1, 8),
    ]
    first, lost = rows[0], rows[1]
    assert (first["parameters"], first["rate"]) == (800, 1e-2)
    assert first["loss"] == pytest.approx(0.45)
    assert first["loss over scale"] == pytest.approx(0.45 / TASK.scale)
    assert first["loss, quartiles"] == "0.375 to 0.525"
    assert first["validation"] == pytest.approx(0.9)
    assert first["validation, quartiles"] == "0.75 to 1.05"
    # 0.1, 0.2, 0.3 and zero's 0.5.
    assert lost["loss"] == pytest.approx(0.25)


def test_arrays_have_an_entry_per_student() -> None:
    arrays = FOUND.arrays()
    count = len(FOUND.students)
    names = [one.name for one in ARCHITECTURES]
    expected = [names.index(one.architecture) for one in FOUND.students]
    np.testing.assert_array_equal(arrays["architecture"], expected)
    for name in ("depth", "width", "seed", "parameters"):
        assert arrays[name].dtype == np.int64
        np.testing.assert_array_equal(
            arrays[name], [getattr(one, name) for one in FOUND.students], name
        )
    for name in ("rate", "training", "loss", "validation"):
        assert arrays[name].shape == (count,)
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


def test_training_loss_is_the_mean_of_the_last_hundredth() -> None:
    row = {"width": 8, "seed": 3, "learning_rate": 1e-3, "parameters": 80}
    row |= {"loss": 0.25, "validation_loss": 0.5}
    curve = np.concatenate([np.full(198, 9.0), [1.0, 2.0]])
    found = student_of(GATED, 1, row, curve)
    assert found == Student(GATED, 1, 8, 3, 1e-3, 80, 1.5, 0.25, 0.5)
    # Few windows: the last one. Lost members have NaN at the end and no loss.
    assert student_of(GATED, 1, row, curve[-5:]).training == 2.0
    gone = {**row, "loss": None, "validation_loss": None}
    found = student_of(GATED, 1, gone, np.append(curve, np.nan))
    assert (found.training, found.loss, found.validation) == (None, None, None)
    # A task without validation data of its own validates on the same.
    del row["validation_loss"]
    assert student_of(GATED, 1, row, curve).validation == 0.25


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gated RNN", "gated_rnn"),
        ("gated RNN, dense", "gated_rnn_dense"),
        ("LRU In+Out", "lru_in_out"),
        ("LRU In+Out MLP", "lru_in_out_mlp"),
        (" (LSTM) ", "lstm"),
    ],
)
def test_a_name_becomes_part_of_a_folder_s(name: str, expected: str) -> None:
    assert slug(name) == expected


def test_slugs_keep_architectures_apart() -> None:
    assert len({slug(one.name) for one in ARCHITECTURES}) == len(ARCHITECTURES)


# The most that counts as equal to 800 parameters.
MOST = int(EQUAL * 800)
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
def test_gates_win_at_equal_parameters(ours, theirs, expected: str) -> None:
    groups = [
        group(name, width, losses, parameters=parameters)
        for name, sizes in ((LRU_IN_OUT, ours), (LRU_MLP, theirs))
        for width, parameters, losses in sizes
    ]
    number = at_equal_parameters(comparison(*groups), LRU_MLP, "regression")
    assert number.verdict == expected
    assert number.name == "LRU In+Out < LRU In+Out MLP at equal parameters, regression"
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
    found = comparison(
        group(GATED, 32, [0.1, 0.2, 0.3, None], ratio=ratio),
        # The narrow ones are not judged where an architecture is named.
        *([] if name is None else [group(GATED, 8, BAD * 3, ratio=9.0)]),
    )
    number = ratio_near(found, name, "what", target)
    assert number.verdict == expected
    assert number.value == pytest.approx(ratio)


def test_a_ratio_of_no_students_differs_and_of_few_seeds_is_not_judged() -> None:
    lost = comparison(group(GATED, 8, [None] * 4))
    assert ratio_near(lost, None, "what", 1.0).value is None
    assert ratio_near(lost, None, "what", 1.0).verdict == "differs"
    few = comparison(group(GATED, 8, [0.1] * 3, ratio=1.0), seeds=3)
    assert ratio_near(few, None, "what", 1.0).verdict == "not judged"


class Told:
    """A setting that trains nothing: every loss is given, and what was asked for is kept."""

    def __init__(self, loss):
        self.loss, self.asked = loss, []

    def part(self, start, end):
        assert 0 <= start < end <= 1 + 1e-9
        return self

    def count(self, default):
        return default

    def each(self, parts):
        return [call(self) for _, call in parts]

    def train(self, name, make_student, task, recipe, *, widths, seeds, axes, key):
        rates = axes["learning_rate"]
        self.asked.append((name, recipe, widths, seeds, list(rates), key))
        rows = [
            {"width": widths, "seed": seed, "learning_rate": rate, "parameters": 1}
            | {"loss": self.loss(widths, rate)}
            for rate in rates
            for seed in range(seeds)
        ]
        return SimpleNamespace(rows=rows, losses=np.ones((len(rows), 2)))


# By width and rate: the wide are lost where the narrow learn best, and two rates are alike for 16.
GRID = (1e-3, 1e-2, 1e-1)
LOSSES = {
    8: dict(zip(GRID, (0.3, 0.2, 0.1), strict=True)),
    16: dict(zip(GRID, (0.3, 0.2, 0.2), strict=True)),
    32: dict(zip(GRID, (0.3, 0.2, None), strict=True)),
    64: dict(zip(GRID, (None, None, None), strict=True)),
}
BEST = {8: 1e-1, 16: 1e-2, 32: 1e-2, 64: 1e-3}
PLAN = Plan({1: (8, 16, 32, 64), 2: (8, 64)}, 4, Recipe(steps=100), GRID, 10)


def never(*_args, **_more):
    """No student is made."""
    raise AssertionError


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize("width", PLAN.widths[1])
def test_the_rate_is_searched_on_one_student_of_every_rate(width: int) -> None:
    setting = Told(lambda width, rate: LOSSES[width][rate])
    found = search("figure4a_lru_1", never, width, InContextRegression(), PLAN, 7, setting)
    assert found == BEST[width]
    asked = ("figure4a_lru_1_rates", PLAN.recipe.first(10), width, 1, list(GRID), 7)
    assert setting.asked == [asked]


@pytest.mark.usefixtures("unhooked")
def test_every_size_is_trained_at_its_own_rate() -> None:
    setting = Told(lambda width, rate: LOSSES[width][rate])
    found = compare("figure4a", InContextRegression(), PLAN, 6, setting)
    trained = [one for one in setting.asked if "rates" not in one[0]]
    sizes = [
        (one.name, depth, width)
        for one in ARCHITECTURES
        for depth in one.depths
        for width in PLAN.widths[depth]
    ]
    assert len(trained) == len(found.runs) == len(sizes)
    # Two architectures with four widths come first; then LRUs.
    assert trained[8:14] == [
        (f"figure4a_lru_{depth}_{width}", PLAN.recipe, width, 4, [BEST[width]], 6)
        for depth in (1, 2)
        for width in PLAN.widths[depth]
    ]
    told = [(one.architecture, one.depth, one.width, one.seed) for one in found.students]
    assert told == [(*size, seed) for size in sizes for seed in range(4)]
    assert all(one.rate == BEST[one.width] for one in found.students)


@pytest.mark.usefixtures("unhooked")
def test_a_single_rate_needs_no_search() -> None:
    plan = Plan({1: (8, 9)}, 4, Recipe(steps=100), (1e-2,), 10)
    setting = Told(None)
    assert search("x", never, 8, InContextRegression(), plan, 7, setting) == 1e-2
    assert setting.asked == []
