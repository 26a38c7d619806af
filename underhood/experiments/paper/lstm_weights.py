"""The two LSTM weight tables (Appendix B.3): one layer is attention, two are a gated RNN.

The paper ignores the nonlinearities; we keep them all and let ε go to zero. Judged: the largest
error over the sources at orders 1 to 3 with ε chosen for float64, and the slope of the error
against ε where truncation rules, which must be 2, 4 and 6.
"""

from typing import Any

import jax
import numpy as np

from underhood.constructions import compile
from underhood.experiments.protocols.sources import random_gated_rnn, random_teacher
from underhood.experiments.running.outcomes import Outcome
from underhood.experiments.running.rules import Number, at_most, near
from underhood.experiments.running.setting import Setting

# Largest error allowed at orders 1, 2, 3.
ONE_LAYER = {1: 1e-7, 2: 1e-9, 3: 1e-10}
TWO_LAYERS = {1: 5e-10, 2: 5e-11, 3: 3e-12}

# Two ε per order far enough above rounding, where the slope is measured.
SLOPE_AT = {1: (1e-3, 1e-2), 2: (2e-2, 1e-1), 3: (6e-2, 2e-1)}

# Where the picture shows the error against ε, for the first source: truncation, then rounding.
SHOWN = tuple(np.logspace(-5, -0.5, 10).tolist())

SIZES = {"smoke": (2, 2), "quick": (4, 20), "paper": (4, 100)}
EXACT = "exact, nonlinearities ignored"


def run(setting: Setting) -> Outcome:
    """Both tables at three orders."""
    d, default_seeds = SIZES[setting.scale]
    count = setting.count(default_seeds)
    teachers = [random_teacher(d, seed) for seed in range(count)]
    networks = [random_gated_rnn(d, seed) for seed in range(count)]
    cases: list[tuple[str, list[Any], dict[int, float], tuple[int, ...]]] = [
        ("one layer = attention", teachers, ONE_LAYER, (32,)),
        ("two layers = gated RNN", networks, TWO_LAYERS, (32, 256)),
    ]
    numbers: list[Number] = []
    rows: list[dict[str, Any]] = []
    curves: list[list[float]] = []
    shown = SHOWN if setting.scale != "smoke" else SHOWN[:1]
    done, total = 0, len(cases) * 3
    for name, sources, limits, lengths in cases:
        for order, limit in limits.items():
            setting.tick(done, total)
            built = [compile(one, "lstm", order=order) for one in sources]
            error = max(
                one.error(key=jax.random.key(seed), length=length, sequences=8)
                for length in lengths
                for seed, one in enumerate(built)
            )
            slope = median_slope(sources[:5], order)
            what = f"largest error over {count} sources, T = {' and '.join(map(str, lengths))},"
            numbers += [
                at_most(
                    f"{name}, error at order {order}",
                    error,
                    limit,
                    what=what,
                    paper=EXACT,
                    seeds=count,
                ),
                near(
                    f"{name}, slope at order {order}",
                    slope,
                    2 * order,
                    0.2,
                    what="d log error / d log ε",
                    paper=None,
                    seeds=min(count, 5),
                ),
            ]
            rows.append(
                {
                    "table": name,
                    "order": order,
                    "neurons": built[0].neurons,
                    "parameters": built[0].parameters,
                    "epsilon": built[0].epsilon,
                    "largest error": error,
                    "slope": round(slope, 3),
                }
            )
            curves.append([error_at(sources[0], order, epsilon, 0) for epsilon in shown])
            done += 1
    setting.tick(total, total)
    arrays = {"epsilon": np.array(shown), "errors": np.array(curves)}
    return Outcome(tuple(numbers), tuple(rows), (), tuple(range(count)), arrays=arrays)


def median_slope(sources: list[Any], order: int) -> float:
    """The slope of log error against log ε between two ε, the median over sources."""
    low, high = SLOPE_AT[order]
    slopes = []
    for seed, source in enumerate(sources):
        errors = [error_at(source, order, epsilon, seed) for epsilon in (low, high)]
        slopes.append(np.log(errors[1] / errors[0]) / np.log(high / low))
    return float(np.median(slopes))


def error_at(source: Any, order: int, epsilon: float, seed: int) -> float:
    """The error of one LSTM at a given ε."""
    built = compile(source, "lstm", order=order, epsilon=epsilon)
    return built.error(key=jax.random.key(seed), sequences=8)
