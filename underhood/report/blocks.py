"""Block pictures for print: matrices in blue and red with the roles of rows and columns."""

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from underhood.common.files import Json
from underhood.report.charts import Film, Groups, Matrices, Matrix

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

# Inches, as wide as a page's text.
WIDTH = 7.2
FRAMES = 5
# From this many panels on they are drawn as one picture.
MANY = 20


def tallest(chart: Matrices) -> float:
    """Return the height of a row of panels when all of them fill the page's width."""
    first = chart.panels[: chart.across]
    across = sum(max(panel.values.shape[1], 2) for panel in first)
    down = max(panel.values.shape[0] for panel in first)
    return float(np.clip(0.8 * WIDTH * down / max(across, 1), 0.55, 2.4)) + 0.25


def draw_pictures(band: "SubFigure", chart: Matrices | Film) -> None:
    """Draw rows of block pictures under their common title; of a film some frames."""
    band.suptitle(chart.title, fontsize=7)
    if isinstance(chart, Matrices):
        panels, across = list(chart.panels), chart.across
        largest = greatest(panels) if chart.together else None
        shapes = [panel.values.shape[1] for panel in panels[:across]]
        # Room for a title over the narrowest.
        shapes = [max(width, 0.12 * sum(shapes)) for width in shapes]
    else:
        picked = np.unique(np.linspace(0, len(chart.frames) - 1, FRAMES).astype(int))
        shown = [(chart.names[t], chart.frames[t][row]) for row in (1, 2) for t in picked]
        panels = [
            replace(panel, title=name, rows=((panel.title, len(panel.values)),))
            for name, panel in shown
        ]
        across, largest, shapes = len(picked), greatest(panels), [1] * len(picked)
    if len(panels) > MANY:
        draw_mosaic(band.subplots(), panels, across)
        return
    down = -(-len(panels) // across)
    axes = band.subplots(down, across, squeeze=False, width_ratios=shapes)
    for axis in axes.ravel()[len(panels) :]:
        axis.axis("off")
    for axis, panel in zip(axes.ravel(), panels, strict=False):
        draw_matrix(axis, panel, largest)


def draw_mosaic(axis: "Axes", panels: list[Matrix], across: int) -> None:
    """Draw many small panels of one shape as one picture, two empty cells between them."""
    tall, wide = (max(panel.values.shape[side] for panel in panels) + 2 for side in (0, 1))
    down = -(-len(panels) // across)
    cells = np.full((down * tall, across * wide), np.nan)
    for place, panel in enumerate(panels):
        top, left = place // across * tall + 2, place % across * wide
        rows, columns = panel.values.shape
        cells[top : top + rows, left : left + columns] = panel.values
        axis.text(left - 0.5, top - 0.7, panel.title, fontsize=4)
    reach = greatest(panels)
    axis.imshow(cells, cmap="RdBu", vmin=-reach, vmax=reach, aspect="equal")
    axis.axis("off")


def greatest(panels: list[Matrix]) -> float:
    """Return the largest absolute entry; 1 where all are zero."""
    return max(float(np.max(np.abs(panel.values), initial=0)) for panel in panels) or 1.0


def draw_matrix(axis: "Axes", panel: Matrix, largest: float | None) -> None:
    """Draw a block picture; groups are named at its sides and parted by lines."""
    reach = largest or greatest([panel])
    axis.imshow(panel.values, cmap="RdBu", vmin=-reach, vmax=reach, aspect="equal")
    # Ticks would take most of the time, and there is nothing to measure.
    axis.set_axis_off()
    rows, columns = panel.values.shape
    right, bottom = columns - 0.5, rows - 0.5
    frame: Json = {"color": "black", "linewidth": 0.4, "clip_on": False}
    axis.plot([-0.5, right, right, -0.5, -0.5], [-0.5, -0.5, bottom, bottom, -0.5], **frame)
    axis.set_title(f"{panel.title} ±{reach:.2g}".strip(), fontsize=6, pad=2)
    beside: Json = {"textcoords": "offset points", "fontsize": 5, "annotation_clip": False}
    for name, start, end in spans(panel.rows):
        middle = (-0.5, (start + end) / 2 - 0.5)
        axis.annotate(name, middle, (-2, 0), rotation=90, ha="right", va="center", **beside)
        if start:
            axis.plot([-0.5, right], [start - 0.5] * 2, **frame)
    for name, start, end in spans(panel.columns):
        middle = ((start + end) / 2 - 0.5, bottom)
        axis.annotate(name, middle, (0, -2), ha="center", va="top", **beside)
        if start:
            axis.plot([start - 0.5] * 2, [-0.5, bottom], **frame)


def spans(groups: Groups) -> list[tuple[str, int, int]]:
    """Return the name of each group, and where it starts and ends."""
    ends = list(itertools.accumulate(count for _, count in groups))
    return [(name, end - count, end) for (name, count), end in zip(groups, ends, strict=True)]
