"""Figures that compare architectures: loss against width and parameters."""

import numpy as np

from underhood.common.files import Json
from underhood.report.charts import Axis, Figure, Line, Plot, Series
from underhood.report.curves import Arrays, training_plot
from underhood.results.architectures import ARCHITECTURE_NAMES

# By architecture; two layers have the same colour, dashed.
COLOURS = (0, 7, 5, 1, 4, 2, 6)


def label_of(place: int, depth: int) -> str:
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
            quartiles = [np.quantile(values, (0.25, 0.5, 0.75)) for values in losses]
            low, middle, high = np.transpose(quartiles)
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
    depths, widths = arrays["depth"], arrays["width"]
    widest = widths == [np.max(widths[depths == depth]) for depth in depths]
    students = zip(arrays["architecture"][widest].tolist(), depths[widest].tolist(), strict=True)
    looks = [(label_of(place, depth), COLOURS[place], depth == 2) for place, depth in students]
    training = training_plot(
        arrays["curve_steps"], arrays["curves"][widest], looks, " of the largest width", faint=True
    )
    return Figure(
        (
            quartile_plot(arrays, "width", "validation", "Against width"),
            quartile_plot(arrays, "parameters", "validation", "Against parameters"),
            training,
        ),
        "Medians over seeds with quartiles as bands; two layers are dashed. Lower is better.",
    )


def both_tasks_figure(arrays: Arrays, result: Json) -> Figure:
    """Show figure6: both tasks, training and validation."""
    plots = []
    for task in ("teacher-student/", "regression/"):
        columns = {
            name.removeprefix(task): array
            for name, array in arrays.items()
            if name.startswith(task)
        }
        for measure in ("training", "validation"):
            title = f"{task[:-1].capitalize()}, {measure}"
            plots.append(quartile_plot(columns, "parameters", measure, title))
    return Figure(
        tuple(plots),
        "Medians over seeds with quartiles as bands, against the number of parameters; two "
        "layers are dashed.",
    )
