"""The two LSTM weight tables (Appendix B.3): one layer is attention, two are a gated RNN.

The paper ignores the nonlinearities; we keep them all and let ε go to zero. Its weights are right
if the error of the network of order 1 vanishes as ε², the first thing that is ignored. Ours are the
higher orders, and the largest errors that are reached.
"""

from collections.abc import Sequence

import jax
import numpy as np

from underhood.constructions import compile
from underhood.experiments.protocols.sources import largest_error, random_sources
from underhood.experiments.running import Outcome, Setting
from underhood.experiments.running.rules import at_most, near, ours
from underhood.layers import GatedRNN, LinearAttention

LSTMSource = GatedRNN | LinearAttention

# Largest error allowed at orders 1, 2, 3.
ONE_LAYER = {1: 1e-7, 2: 1e-9, 3: 1e-10}
TWO_LAYERS = {1: 5e-10, 2: 5e-11, 3: 3e-12}

# Two ε per order, far enough above rounding, between which the slope is measured.
SLOPE_AT = {1: (1e-3, 1e-2), 2: (2e-2, 1e-1), 3: (6e-2, 2e-1)}

# The figure shows the error of the first source at these ε: truncation, then rounding.
SHOWN_EPSILONS = tuple(np.logspace(-5, -0.5, 10).tolist())


def reproduce_lstm_weights(setting: Setting) -> Outcome:
    networks, teachers = random_sources(setting)
    count = len(teachers)
    tables: list[tuple[str, Sequence[LSTMSource], tuple[int, ...], dict[int, float]]] = [
        ("one layer = attention", teachers, (32,), ONE_LAYER),
        ("two layers = gated RNN", networks, (32, 256), TWO_LAYERS),
    ]
    cases = [(table, order) for table in tables for order in table[-1]]
    numbers, rows, curves = [], [], []
    shown = SHOWN_EPSILONS if setting.scale != "smoke" else SHOWN_EPSILONS[:1]
    for (name, sources, lengths, limits), order in setting.over(cases):
        built = [compile(source, "lstm", order=order) for source in sources]
        error = max(largest_error(built, length) for length in lengths)
        few = sources[:5]
        slope = median_slope(few, order)
        what = f"largest error over {count} sources, T = {' and '.join(map(str, lengths))},"
        title = f"{name}, error at order {order}"
        errors = at_most(title, error, limits[order], what=what, paper=None, seeds=count)
        numbers.append(ours(errors))
        what, title = "d log error / d log ε", f"{name}, slope at order {order}"
        paper = "exact, nonlinearities ignored" if order == 1 else None
        slopes = near(title, slope, 2 * order, 0.2, what=what, paper=paper, seeds=len(few))
        numbers.append(slopes if order == 1 else ours(slopes))
        sizes = {part: getattr(built[0], part) for part in ("neurons", "parameters", "epsilon")}
        measured = {"largest error": error, "slope": round(slope, 3)}
        rows.append({"table": name, "order": order, **sizes, **measured})
        curves.append([error_at(sources[0], order, epsilon, 0) for epsilon in shown])
    arrays = {"epsilon": np.array(shown), "errors": np.array(curves)}
    return Outcome(numbers=numbers, rows=rows, seeds=range(count), arrays=arrays)


def median_slope(sources: Sequence[LSTMSource], order: int) -> float:
    """Return the slope of log error against log ε between two ε, the median over sources."""
    low, high = SLOPE_AT[order]
    slopes = []
    for seed, source in enumerate(sources):
        errors = [error_at(source, order, epsilon, seed) for epsilon in (low, high)]
        slopes.append(np.log(errors[1] / errors[0]) / np.log(high / low))
    return float(np.median(slopes))


def error_at(source: LSTMSource, order: int, epsilon: float, seed: int) -> float:
    built = compile(source, "lstm", order=order, epsilon=epsilon)
    return built.error(key=jax.random.key(seed), sequences=8)
