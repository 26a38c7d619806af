"""Figures of constructions: errors that should be rounding, and the best gradient step."""

from typing import Any

import numpy as np

from underhood.report.charts import Axis, Figure, Line, Plot, Series
from underhood.report.curves import Arrays


def layers_needed(arrays: Arrays, result: dict[str, Any]) -> Figure:
    """The error of every construction on short and long sequences."""
    rows = [row for row in result["rows"] if isinstance(row.get("error, T=32"), float)]
    names = tuple(f"{row['network']} / {row['implements']}" for row in rows)
    x = np.arange(len(rows))
    series = tuple(
        Series(
            f"{length} tokens",
            x,
            np.array([max(float(row[f"error, T={length}"]), 1e-17) for row in rows]),
            mark="points",
            colour=colour,
        )
        for length, colour in ((32, 1), (256, 2))
    )
    plot = Plot(
        "Largest error of the compiled network",
        Axis("network / what it implements", names=names),
        Axis("error / largest output", log=True),
        series,
        (Line("limit", 1e-9),),
    )
    return Figure((plot,), "Every pair that can be built, compiled for random sources and run.")


def lstm_errors(arrays: Arrays, result: dict[str, Any]) -> Figure:
    """Error against ε: truncation falls with its power, then rounding takes over."""
    rows = result["rows"]
    series = tuple(
        Series(
            f"{row['table']}, order {row['order']}",
            arrays["epsilon"],
            np.maximum(errors, 1e-17),
            mark="both",
            colour=(1, 5, 3, 2, 6, 4)[place % 6],
            dashed="two" in str(row["table"]),
        )
        for place, (row, errors) in enumerate(zip(rows, arrays["errors"], strict=True))
    )
    plot = Plot(
        "Error against the scale of the small weights",
        Axis("ε", log=True),
        Axis("error / largest output", log=True),
        series,
    )
    return Figure(
        (plot,),
        "On the right the nonlinearities' error falls as the second, fourth and sixth power of "
        "ε; on the left rounding grows. The compiler chooses the lowest point.",
    )


def reverse_errors(arrays: Arrays, result: dict[str, Any]) -> Figure:
    """Errors of all networks."""
    series = tuple(
        Series(
            label,
            np.arange(len(arrays[name])),
            np.maximum(arrays[name], 1e-17),
            mark="points",
            colour=colour,
        )
        for label, name, colour in (
            ("linear RNN, one head", "linear", 1),
            ("gated RNN, two layers", "gated", 2),
        )
    )
    plot = Plot(
        "Error of attention against the RNN it implements",
        Axis("network"),
        Axis("error / largest output", log=True),
        series,
        (Line("limit", 1e-12),),
    )
    return Figure((plot,), "Every point is a random network, run on a fresh sequence in float64.")


def parabola(arrays: Arrays, result: dict[str, Any]) -> Figure:
    """Loss against the step, and where three searches end."""
    found = {str(row["by"]): row["η"] for row in result["rows"]}
    curve = Series("closed form", arrays["eta"], arrays["loss"])
    searched = arrays["searched"]
    bottom = np.full(len(searched), float(np.min(arrays["loss"])))
    ends = Series("ends of gradient searches", searched, bottom, mark="points", colour=2)
    lines = tuple(Line(by, float(step), vertical=True) for by, step in found.items())
    plot = Plot("Loss of one gradient step", Axis("step η"), Axis("loss"), (curve, ends), lines[:2])
    return Figure((plot,), "Formula, Monte Carlo and gradient descent on η agree on the minimum.")
