"""Figures that compare architectures: loss against width and parameters."""

from typing import Any

import numpy as np

from underhood.report.charts import Axis, Figure, Line, Plot, Series
from underhood.report.curves import UPDATES, Arrays, thinned

# In the order of `experiments/architectures.py`; two layers have the same colour, dashed.
ARCHITECTURES = (
    ("gated RNN", 0),
    ("gated RNN, dense", 7),
    ("LRU", 5),
    ("LRU In+Out", 1),
    ("LRU In+Out MLP", 4),
    ("LSTM", 2),
    ("GRU", 6),
)


def architectures(arrays: Arrays, against: str, measure: str, title: str) -> Plot:
    """Medians and quartiles of every architecture."""
    series = []
    for place, (name, colour) in enumerate(ARCHITECTURES):
        for depth in (1, 2):
            which = (arrays["architecture"] == place) & (arrays["depth"] == depth)
            counts = np.unique(arrays[against][which])
            groups = [arrays[measure][which & (arrays[against] == count)] for count in counts]
            groups = [one[np.isfinite(one)] for one in groups]
            kept = [place for place, one in enumerate(groups) if one.size]
            if not kept:
                continue
            low, middle, high = np.array(
                [np.quantile(groups[one], (0.25, 0.5, 0.75)) for one in kept]
            ).T
            label = name if depth == 1 else f"{name}, 2 layers"
            # A band needs neighbours; a single width shows its quartiles as a bar.
            mark = "both" if len(kept) > 1 else "points"
            series.append(Series(label, counts[kept], middle, low, high, mark, colour, depth == 2))
    lines: tuple[Line, ...] = ()
    if "gradient_step" in arrays and measure == "validation":
        step = float(np.ravel(arrays["gradient_step"])[0])
        lines = (Line("one gradient step", step),)
    return Plot(
        title, Axis(against, log=True), Axis(f"{measure} loss", log=True), tuple(series), lines
    )


def comparison(arrays: Arrays, result: dict[str, Any]) -> Figure:
    """One task, all architectures."""
    kept = dict(arrays)
    steps, curves = thinned(arrays["curve_steps"], arrays["curves"])
    training = []
    for curve, place, depth, width in zip(
        curves, arrays["architecture"], arrays["depth"], arrays["width"], strict=True
    ):
        if width == np.max(arrays["width"][arrays["depth"] == depth]):
            name, colour = ARCHITECTURES[place]
            label = name if depth == 1 else f"{name}, 2 layers"
            training.append(
                Series(label, steps, curve, colour=colour, dashed=bool(depth == 2), faint=True)
            )
    return Figure(
        (
            architectures(kept, "width", "validation", "Against width"),
            architectures(kept, "parameters", "validation", "Against parameters"),
            Plot(
                "Loss of every student of the largest width",
                UPDATES,
                Axis("training loss", log=True),
                tuple(training),
            ),
        ),
        "Medians over seeds with quartiles as bands; two layers are dashed. Lower is better.",
    )


def comparisons(arrays: Arrays, result: dict[str, Any]) -> Figure:
    """Both tasks, training and validation."""
    plots = []
    for task in ("teacher-student", "regression"):
        own = {
            name.removeprefix(f"{task}/"): array
            for name, array in arrays.items()
            if name.startswith(f"{task}/")
        }
        for measure in ("training", "validation"):
            title = f"{task.capitalize()}, {measure}"
            plots.append(architectures(own, "parameters", measure, title))
    return Figure(
        tuple(plots),
        "Medians over seeds with quartiles as bands, against the number of parameters; two "
        "layers are dashed.",
    )
