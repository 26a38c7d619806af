"""Starts and rules of recall_training: shapes, compiled students, and planted curves."""

import equinox as eqx
import jax
import numpy as np
import pytest

from underhood.experiments.beyond.recall_starts import (
    COMPILED,
    LINEARISED_ORDER,
    NOISE,
    NOISY_START,
    RANDOM,
    START_NAMES,
    TARGET_OF,
    StudentKind,
)
from underhood.experiments.beyond.recall_training import RATES_PLANS
from underhood.experiments.beyond.recall_windows import (
    RateCurve,
    arrays_of_curves,
    judge_windows,
    start_row,
)
from underhood.layers import batch_outputs
from underhood.report.frontier import rates_charts
from underhood.tasks import MQAR

TASK = MQAR(2, 4, 16, stacked=True)
RATES = (1e-3, 1e-2, 1e-1)


def kind_of(layer: str, start: str, epsilon: float | None = None) -> StudentKind:
    return StudentKind(layer, 4, 4, start, epsilon)


@pytest.mark.parametrize("layer", list(TARGET_OF))
def test_all_starts_have_the_same_shapes_and_the_compiled_one_is_attention(layer) -> None:
    key = jax.random.key(0)
    epsilon = 0.1 if layer in LINEARISED_ORDER else None
    random, compiled, noisy = (
        kind_of(layer, each, epsilon).made(TASK, key=key) for each in START_NAMES
    )
    shapes = [[leaf.shape for leaf in jax.tree.leaves(each)] for each in (random, compiled, noisy)]
    assert shapes[0] == shapes[1] == shapes[2]
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(compiled))
    inputs = TASK.sample(jax.random.key(1), 32).inputs
    attention = kind_of("linear attention", COMPILED).made(TASK, key=key)
    outputs_of = eqx.filter_jit(batch_outputs)
    outputs, expected = (np.asarray(outputs_of(x, inputs)) for x in (compiled, attention))
    # Order 1 at ε = 0.1 is right to about a hundredth.
    scale = np.max(np.abs(expected))
    assert np.max(np.abs(outputs - expected)) <= (0.05 if epsilon else 1e-5) * scale
    assert 0.5 <= np.std(outputs_of(random, inputs)) <= 2
    before, after = (
        np.asarray(each.layers[0].W_V if layer == "linear attention" else each.embed.W)
        for each in (compiled, noisy)
    )
    change = np.sqrt(np.mean((after - before) ** 2) / np.mean(before**2))
    assert 0.5 * NOISE < change < 1.5 * NOISE


def curve(layer: str, start: str, before: float, after: tuple[float, ...], epsilon=None):
    """A curve of four seeds that all say the same, for a reference of 0.5."""
    ends = np.repeat(np.array(after, float)[:, None], 4, axis=1)
    kind = kind_of(layer, start, epsilon)
    return RateCurve(kind, RATES, 0.5, np.full(4, before, float), ends, parameters=10, neurons=20)


GOOD = {
    RANDOM: (0.0, (0.1, 0.6, 0.1)),
    COMPILED: (0.5, (0.55, 0.7, 0.1)),
    NOISY_START: (0.3, (0.5, 0.7, 0.1)),
}


@pytest.mark.parametrize(
    ("changed", "failing"),
    [
        ({}, []),
        # It stands still: it holds and works, but gains nothing.
        ({COMPILED: (0.5, (0.5, 0.5, 0.1))}, ["compiled start improves", "rates that gain"]),
        ({COMPILED: (0.8, (0.7, 0.7, 0.1))}, ["compiled start holds", "compiled start improves"]),
        ({RANDOM: (0.0, (0.6, 0.6, 0.1))}, ["rates that work", "rates that gain"]),
    ],
)
def test_windows_are_judged_by_rates_at_which_a_start_ends_high(changed, failing) -> None:
    curves = [curve("Mamba", start, *values) for start, values in (GOOD | changed).items()]
    numbers = judge_windows(curves, 4)
    assert {number.whose for number in numbers} == {"ours"}
    differing = [number.name for number in numbers if number.verdict == "differs"]
    assert differing == [f"{name}, Mamba" for name in failing]
    # Fewer than four seeds judge nothing.
    assert {number.verdict for number in judge_windows(curves, 2)} == {"not judged"}


def test_of_several_epsilons_the_best_counts_and_one_must_train() -> None:
    small = curve("LSTM", COMPILED, 0.5, (0.5, 0.1, 0.1), 0.1)
    large = curve("LSTM", COMPILED, 0.46, (0.6, 0.6, 0.1), 1.0)
    broken = curve("LSTM", COMPILED, 0.2, (0.6, 0.6, 0.1), 1.0)
    rest = [
        curve("LSTM", RANDOM, 0.0, (0.1, 0.6, 0.1)),
        curve("LSTM", NOISY_START, 0, (0, 0, 0), 1.0),
    ]

    def verdict(*compiled: RateCurve) -> dict[str, str]:
        return {n.name: n.verdict for n in judge_windows([*rest, *compiled], 4)}

    assert verdict(small, large)["ε trains, LSTM"] == "reproduced"
    assert verdict(small, large)["rates that gain, LSTM"] == "reproduced"
    assert verdict(small)["rates that gain, LSTM"] == "differs"
    # Weights that recall little before training are no compiled solution any more.
    assert verdict(small, broken)["ε trains, LSTM"] == "differs"


def test_the_paper_scale_trains_every_layer_from_every_start() -> None:
    plan = RATES_PLANS["paper"]
    kinds = plan.kinds()
    assert {(kind.layer, kind.start) for kind in kinds} == {
        (layer, start) for layer in TARGET_OF for start in START_NAMES
    }
    assert len({kind.name for kind in kinds}) == len(kinds)
    for layer in LINEARISED_ORDER:
        compiled = {k.epsilon for k in kinds if (k.layer, k.start) == (layer, COMPILED)}
        assert compiled == set(plan.epsilons)
    # The tests go as far beyond training as the published ones do.
    assert max(plan.tested) == 4 * plan.pairs and plan.seeds >= 4


def test_the_figure_shows_every_layer_and_how_many_rates_gain() -> None:
    curves = [
        curve(layer, start, *values, epsilon=0.3 if layer == "LSTM" and start != RANDOM else None)
        for layer in ("Mamba", "LSTM")
        for start, values in GOOD.items()
    ]
    rows = [start_row(each) for each in curves]
    *plots, windows = rates_charts(arrays_of_curves(curves), {"rows": rows})
    assert [plot.title for plot in plots] == ["Mamba, memory of 16", "LSTM, memory of 16"]
    assert [series.name for series in plots[1].series] == [
        RANDOM,
        "compiled, ε = 0.3",
        "noisy, ε = 0.3",
    ]
    np.testing.assert_allclose(plots[0].series[1].y, [0.55, 0.7, 0.1])
    counts = {series.name: list(series.y) for series in windows.series}
    assert counts == {RANDOM: [1, 1], COMPILED: [2, 2], NOISY_START: [1, 1]}
    assert windows.series[1].texts[1] == "compiled: 2 rates, LSTM"
