"""Figures that compare architectures: loss against width and parameters."""

import numpy as np

from underhood.common.files import Json
from underhood.report.charts import Axis, Figure, Line, Plot, Series
from underhood.report.curves import TRAINING_LOSS, UPDATES, Arrays, thinned
from underhood.results.architectures import ARCHITECTURE_NAMES

# By architecture; two layers have the same colour, dashed.
COLOURS = (0, 7, 5, 1, 4, 2, 6)


def label_of(place: int, depth: int) -> str:
    """Return the name of an architecture with its depth."""
    return ARCHITECTURE_NAMES[place] + ("" if depth == 1 else f", {depth} layers")


def quartile_plot(arrays: Arrays, against: str, measure: str, title: str) -> Plot:
    """Plot medians and quartiles of every architecture."""
    series = []
    for place, colour in enumerate(COLOURS):
        for depth in (1, 2):
            which = (arrays["architecture"] == place) & (arrays["depth"] == depth)
            which &= np.isfinite(arrays[measure])
            counts = np.unique(arrays[against][which])
            if not counts.size:
                continue
            losses = [arrays[measure][which & (arrays[against] == count)] for count in counts]
            low, middle, high = np.array(
                [np.quantile(values, (0.25, 0.5, 0.75)) for values in losses]
            ).T
            # A band needs neighbours; a single width shows its quartiles as a bar.
            mark = "both" if len(counts) > 1 else "points"
            label = label_of(place, depth)
            series.append(Series(label, counts, middle, low, high, mark, colour, depth == 2))
    lines: tuple[Line, ...] = ()
    if "gradient_step" in arrays and measure == "validation":
        lines = (Line("one gradient step", float(np.ravel(arrays["gradient_step"])[0])),)
    axes = Axis(against, log=True), Axis(f"{measure} loss", log=True)
    return Plot(title, *axes, tuple(series), lines)


def comparison_figure(arrays: Arrays, result: Json) -> Figure:
    """Show figure4a or figure4b: one task, all architectures."""
    steps, curves = thinned(arrays["curve_steps"], arrays["curves"])
    columns = (arrays[name].tolist() for name in ("architecture", "depth", "width"))
    students = zip(curves, *columns, strict=True)
    training = tuple(
        Series(
            label_of(place, depth),
            steps,
            curve,
            colour=COLOURS[place],
            dashed=depth == 2,
            faint=True,
        )
        for curve, place, depth, width in students
        if width == np.max(arrays["width"][arrays["depth"] == depth])
    )
    title = "Loss of every student of the largest width"
    return Figure(
        (
            quartile_plot(arrays, "width", "validation", "Against width"),
            quartile_plot(arrays, "parameters", "validation", "Against parameters"),
            Plot(title, UPDATES, TRAINING_LOSS, training),
        ),
        "Medians over seeds with quartiles as bands; two layers are dashed. Lower is better.",
    )


def both_tasks_figure(arrays: Arrays, result: Json) -> Figure:
    """Show figure6: both tasks, training and validation."""
    plots = []
    for task in ("teacher-student", "regression"):
        prefix = f"{task}/"
        columns = {
            name.removeprefix(prefix): array
            for name, array in arrays.items()
            if name.startswith(prefix)
        }
        for measure in ("training", "validation"):
            title = f"{task.capitalize()}, {measure}"
            plots.append(quartile_plot(columns, "parameters", measure, title))
    return Figure(
        tuple(plots),
        "Medians over seeds with quartiles as bands, against the number of parameters; two "
        "layers are dashed.",
    )
