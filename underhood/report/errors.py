"""Figures of constructions: errors that should be rounding, and the best gradient step."""

import itertools

import numpy as np

from underhood.common.files import Json
from underhood.report.charts import Axis, Figure, Line, Plot, Series
from underhood.report.curves import Arrays

# On a logarithmic axis an error of zero is shown as this.
LEAST_ERROR = 1e-17
ERROR = Axis("error / largest output", log=True)


def layers_figure(arrays: Arrays, result: Json) -> Figure:
    """Show table3: the error of every construction on short and long sequences."""
    rows = [row for row in result["rows"] if isinstance(row.get("error, T=32"), float)]
    names = tuple(f"{row['network']} / {row['implements']}" for row in rows)
    errors = {
        f"{length} tokens": [float(row[f"error, T={length}"]) for row in rows]
        for length in (32, 256)
    }
    title, x = "Largest error of the compiled network", "network / what it implements"
    plot = error_plot(title, Axis(x, names=names), errors, 1e-9)
    return Figure((plot,), "Every pair that can be built, compiled for random sources and run.")


def error_plot(title: str, x: Axis, errors: dict[str, list[float]], limit: float) -> Plot:
    """Plot errors, by the name of their series, as points at 0, 1, 2, …"""
    series = []
    for colour, (name, values) in enumerate(errors.items(), 1):
        places, heights = np.arange(len(values)), np.maximum(values, LEAST_ERROR)
        series.append(Series(name, places, heights, mark="points", colour=colour))
    return Plot(title, x, ERROR, tuple(series), (Line("limit", limit),))


def lstm_figure(arrays: Arrays, result: Json) -> Figure:
    """Show lstm_weights: truncation falls with a power of ε, then rounding takes over."""
    colours, series = itertools.cycle((1, 5, 3, 2, 6, 4)), []
    for row, errors in zip(result["rows"], arrays["errors"], strict=True):
        name, dashed = f"{row['table']}, order {row['order']}", "two" in str(row["table"])
        y, colour = np.maximum(errors, LEAST_ERROR), next(colours)
        series.append(Series(name, arrays["epsilon"], y, mark="both", colour=colour, dashed=dashed))
    title = "Error against the scale of the small weights"
    return Figure(
        (Plot(title, Axis("ε", log=True), ERROR, tuple(series)),),
        "On the right the nonlinearities' error falls as the second, fourth and sixth power of "
        "ε; on the left rounding grows. The compiler chooses the lowest point.",
    )


def reverse_figure(arrays: Arrays, result: Json) -> Figure:
    """Show reverse: the errors of all networks."""
    names = {"linear RNN, one head": "linear", "gated RNN, two layers": "gated"}
    errors = {label: arrays[name].tolist() for label, name in names.items()}
    title = "Error of attention against the RNN it implements"
    plot = error_plot(title, Axis("network"), errors, 1e-12)
    return Figure((plot,), "Every point is a random network, run on a fresh sequence in float64.")


def parabola_figure(arrays: Arrays, result: Json) -> Figure:
    """Show optimal_step: loss against the step, and where three searches end."""
    curve = Series("closed form", arrays["eta"], arrays["loss"])
    searched = arrays["searched"]
    bottom = np.full(len(searched), float(np.min(arrays["loss"])))
    ends = Series("ends of gradient searches", searched, bottom, mark="points", colour=2)
    steps = {str(row["by"]): float(row["η"]) for row in result["rows"]}
    lines = tuple(Line(by, step, vertical=True) for by, step in steps.items())
    plot = Plot("Loss of one gradient step", Axis("step η"), Axis("loss"), (curve, ends), lines[:2])
    return Figure((plot,), "Formula, Monte Carlo and gradient descent on η agree on the minimum.")
