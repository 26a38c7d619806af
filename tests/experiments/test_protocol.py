"""The protocol of comparisons: rates, runs by size, and what is done about students that break."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from underhood.experiments.protocols import rate_search
from underhood.experiments.protocols.architectures import ARCHITECTURES, PAPER_ARCHITECTURES
from underhood.experiments.protocols.comparison import TrainedStudent, compare, student_of
from underhood.experiments.protocols.rate_search import ComparisonPlan
from underhood.experiments.running.outcomes import Outcome
from underhood.layers import GRU, LSTM
from underhood.results.architectures import ARCHITECTURE_NAMES, GATED
from underhood.tasks import InContextRegression
from underhood.training import Recipe, Run


class Scripted:
    """A setting that trains nothing: every loss is given, and what was asked for is kept."""

    def __init__(self, loss, curve=lambda width, rate, seed: np.ones(2)):
        self.loss, self.curve, self.asked = loss, curve, []

    def part(self, start, end):
        assert 0 <= start < end <= 1 + 1e-9
        return self

    def count(self, default):
        return default

    def each(self, parts):
        return [call(self) for _, call in parts]

    def train(self, name, study):
        rates, (width,), seeds = study.axes["learning_rate"], study.widths, study.seeds
        self.asked.append((name, study.recipe, width, seeds, list(rates), study.key))
        rows = [
            {"width": width, "seed": seed, "learning_rate": rate, "parameters": 1}
            | {"loss": self.loss(width, rate)}
            for rate in rates
            for seed in range(seeds)
        ]
        curves = [self.curve(width, row["learning_rate"], row["seed"]) for row in rows]
        return SimpleNamespace(rows=rows, losses=np.array(curves))


# By width and rate: the wide are lost where the narrow learn best, and two rates are alike for 16.
GRID = (1e-3, 1e-2, 1e-1)
BY_RATE = {8: (0.3, 0.2, 0.1), 16: (0.3, 0.2, 0.2), 32: (0.3, 0.2, None), 64: (None, None, None)}
LOSSES = {width: dict(zip(GRID, losses, strict=True)) for width, losses in BY_RATE.items()}
BEST = {8: 1e-1, 16: 1e-2, 32: 1e-2, 64: 1e-3}
TASK = InContextRegression()
WIDTHS = {1: (8, 16, 32, 64), 2: (8, 64)}
PLAN = ComparisonPlan("figure4a", TASK, 6, WIDTHS, 4, Recipe(steps=100), GRID, 10)


def never(*_args, **_more):
    """No student is made."""
    raise AssertionError


@pytest.mark.usefixtures("unhooked")
def test_the_rate_is_searched_on_one_student_of_every_rate() -> None:
    for width in PLAN.widths[1]:
        setting = Scripted(lambda width, rate: LOSSES[width][rate])
        assert rate_search.search_rate("figure4a_lru_1", never, width, PLAN, setting) == BEST[width]
        asked = ("figure4a_lru_1_rates", PLAN.recipe.first(10), width, 1, list(GRID), 7)
        assert setting.asked == [asked]
    # A single rate needs no search.
    setting, plan = Scripted(None), replace(PLAN, widths={1: (8, 9)}, rates=(1e-2,))
    assert rate_search.search_rate("x", never, 8, plan, setting) == 1e-2
    assert setting.asked == []


@pytest.mark.usefixtures("unhooked")
def test_every_size_is_trained_at_its_own_rate() -> None:
    setting = Scripted(lambda width, rate: LOSSES[width][rate])
    comparison = compare(PLAN, setting)
    trained = [asked for asked in setting.asked if "rates" not in asked[0]]
    sizes = [
        (architecture.name, depth, width)
        for architecture in ARCHITECTURES
        for depth in architecture.depths
        for width in PLAN.widths[depth]
    ]
    assert len(trained) == len(comparison.runs) == len(sizes)
    # Two architectures with four widths come first; then LRUs.
    assert trained[8:14] == [
        (f"figure4a_lru_{depth}_{width}", PLAN.recipe, width, 4, [BEST[width]], 6)
        for depth in (1, 2)
        for width in PLAN.widths[depth]
    ]
    trained = [(s.architecture, s.depth, s.width, s.seed) for s in comparison.students]
    assert trained == [(*size, seed) for size in sizes for seed in range(4)]
    assert all(student.rate == BEST[student.width] for student in comparison.students)


@pytest.mark.usefixtures("unhooked")
def test_what_breaks_is_trained_again_at_smaller_rates() -> None:
    # Of width 8 one seed breaks at the best rate; of 16 all are lost at that; of 32 all break.
    def curve(width: int, rate: float, seed: int) -> np.ndarray:
        bad = {8: rate > 1e-2 and seed == 2, 16: rate > 1e-3, 32: True}.get(width, False)
        return np.array([1.0, 0.1, (np.nan if width == 16 else 0.3) if bad else 0.1])

    plan = replace(PLAN, name="x", widths={1: (8, 16, 32, 64)})
    setting = Scripted(lambda width, rate: LOSSES[width][rate], curve)
    comparison = compare(plan, setting)
    trained = [(name, *rates) for name, _, _, _, rates, _ in setting.asked if "gru" in name]
    assert [(name, rate) for name, rate, *more in trained if not more] == [
        ("x_gru_1_8", 1e-1),
        ("x_gru_1_8_at_0.01", 1e-2),
        ("x_gru_1_16", 1e-2),
        ("x_gru_1_16_at_0.001", 1e-3),
        ("x_gru_1_32", 1e-2),
        ("x_gru_1_32_at_0.001", 1e-3),
        ("x_gru_1_64", 1e-3),
    ]
    # The last that was tried is judged, whatever became of it, at the rate that it had.
    rates = {8: 1e-2, 16: 1e-3, 32: 1e-3, 64: 1e-3}
    assert all(student.rate == rates[student.width] for student in comparison.students)
    assert len(comparison.runs) == 4 * len(ARCHITECTURES)
    assert [size for size in comparison.broke if size.startswith("GRU")] == [
        "GRU, 1 × 8, at 0.1",
        "GRU, 1 × 16, at 0.01",
        "GRU, 1 × 32, at 0.01",
        "GRU, 1 × 32, at 0.001",
    ]
    runs = [Run(run.rows, np.arange(3), run.losses, []) for run in comparison.runs]
    whole = replace(comparison, runs=tuple(runs))
    outcome = whole.complete(Outcome(), plan, updates="million", where="somewhere")
    assert "GRU, 1 × 8, at 0.1; GRU, 1 × 16, at 0.01" in outcome.notes[1]


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        ([1.0, 0.5, 0.1], False),
        # Never learnt, learnt and a little worse at the end, recovered: not broken.
        ([1.0, 1.0, 1.0], False),
        ([1.0, 0.1, 0.19], False),
        ([1.0, 0.1, 5.0, 0.1], False),
        ([0.0, 0.0], False),
        ([1.0, 0.1, 0.21], True),
        ([1.0, 0.1, np.nan], True),
        ([np.nan], True),
        ([1.0, 0.1, np.inf], True),
    ],
)
def test_a_student_is_broken_if_it_ends_far_above_its_lowest(curve, expected: bool) -> None:
    assert rate_search.is_broken(np.array(curve)) is expected
    # A hundredth of the steps counts as one.
    long = np.repeat(curve, 100)
    assert rate_search.is_broken(long) is expected
    if np.all(np.isfinite(curve)):
        long[-1] *= 1.1
        assert rate_search.is_broken(long) is expected


def test_hundredths_end_with_the_last_step() -> None:
    assert rate_search.hundredths(np.arange(5.0)).tolist() == [0, 1, 2, 3, 4]
    means = rate_search.hundredths(np.arange(250.0))
    assert len(means) == 125 and means[-1] == 248.5
    assert rate_search.hundredths(np.arange(301.0))[[0, -1]].tolist() == [2.0, 299.0]


def test_training_loss_is_the_mean_of_the_last_hundredth() -> None:
    row = {"width": 8, "seed": 3, "learning_rate": 1e-3, "parameters": 80}
    row |= {"loss": 0.25, "validation_loss": 0.5}
    curve = np.concatenate([np.full(198, 9.0), [1.0, 2.0]])
    student = student_of(GATED, 1, row, curve)
    assert student == TrainedStudent(GATED, 1, 8, 3, 1e-3, 80, 1.5, 0.25, 0.5)
    # Few windows: the last one. Lost members have NaN at the end and no loss.
    assert student_of(GATED, 1, row, curve[-5:]).training == 2.0
    gone = {**row, "loss": None, "validation_loss": None}
    student = student_of(GATED, 1, gone, np.append(curve, np.nan))
    assert student == TrainedStudent(GATED, 1, 8, 3, 1e-3, 80, None, None, None)
    # A task without validation data of its own validates on the same.
    del row["validation_loss"]
    assert student_of(GATED, 1, row, curve).validation == 0.25


def test_a_name_becomes_part_of_a_folder_s() -> None:
    for name, expected in (
        ("gated RNN", "gated_rnn"),
        ("gated RNN, dense", "gated_rnn_dense"),
        ("LRU In+Out", "lru_in_out"),
        ("LRU In+Out MLP", "lru_in_out_mlp"),
        (" (LSTM) ", "lstm"),
    ):
        assert rate_search.slug(name) == expected
    assert len(set(map(rate_search.slug, ARCHITECTURE_NAMES))) == len(ARCHITECTURES)


@pytest.mark.parametrize("place", range(2, len(ARCHITECTURES)))
def test_the_papers_layers_begin_as_those_of_its_frameworks(place) -> None:
    student = PAPER_ARCHITECTURES[place].make(TASK, 1)(400, key=jax.random.key(0))
    (layer,) = student.layers
    if isinstance(layer, LSTM | GRU):
        matrices = [getattr(layer, name) for name in vars(layer) if name.startswith("V_")]
        assert len(matrices) == (4 if isinstance(layer, LSTM) else 3)
        for V in matrices:
            np.testing.assert_allclose(V @ V.T, np.eye(400), atol=1e-5)
        assert not np.allclose(matrices[0], matrices[1])
        if isinstance(layer, GRU):
            assert layer.reset == "after" and layer.c_h is not None and not np.any(layer.c_h)
        return
    squares = np.asarray(layer.decay) ** 2
    phases = np.sort(np.exp(layer.theta_log))
    # A uniform sample of 400 lies this near to the straight line with probability 0.9999.
    for values, largest in ((np.sort(squares), 1.0), (phases, 2 * np.pi)):
        assert np.max(np.abs(values / largest - np.linspace(0, 1, 400))) < 0.11
    np.testing.assert_allclose(np.exp(2 * layer.gamma_log), 1 - squares, atol=1e-5)
