"""Figures for print, drawn with matplotlib: NAME/figure.pdf, figure.svg and figure.png.

The same figure gives the same bytes: no dates, no random names. Nothing here trains or judges.
"""

import io
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from underhood.report.charts import PALETTE, Chart, Figure, Film, Matrices, Matrix, Plot, Series

FORMATS = ("pdf", "svg", "png")
WIDTH = 7.2
STYLE: dict[Any, Any] = {
    "font.size": 7,
    "axes.titlesize": 7,
    "axes.labelsize": 7,
    "legend.fontsize": 6,
    "xtick.labelsize": 6,
    "ytick.labelsize": 6,
    "axes.linewidth": 0.6,
    "lines.linewidth": 0.9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    # Text stays text, so that it can be searched and set anew; identifiers repeat.
    "svg.fonttype": "none",
    "svg.hashsalt": "underhood",
    "pdf.fonttype": 42,
}
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
# No name of the program or day of the drawing, so that files change with their contents alone.
METADATA: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}
# So many names fit a legend; curves of dozens of students speak for themselves.
LEGEND = 12
FRAMES = 5
# From this many panels on they are drawn as one picture.
MANY = 20


def draw(folder: Path, figure: Figure, title: str) -> list[Path]:
    """The figure in three formats, in a folder that exists."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    written = []
    with plt.rc_context(STYLE):
        page = lay_out(figure, title)
        # Once for all formats: arranging takes longer than drawing.
        page.draw_without_rendering()
        page.set_layout_engine(None)
        for kind in FORMATS:
            file = io.BytesIO()
            page.savefig(file, format=kind, dpi=150, metadata=METADATA[kind])
            written.append(folder / f"figure.{kind}")
            write(written[-1], file.getvalue())
        plt.close(page)
    return written


def write(path: Path, contents: bytes) -> None:
    """All of the file or nothing."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(contents)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def lay_out(figure: Figure, title: str) -> Any:
    """Plots in pairs, block pictures in rows of their own."""
    import matplotlib.pyplot as plt

    rows: list[list[Chart]] = []
    for chart in figure.charts:
        beside = rows and isinstance(chart, Plot) and isinstance(rows[-1][0], Plot)
        if beside and len(rows[-1]) < 2:
            rows[-1].append(chart)
        else:
            rows.append([chart])
    heights = [max(height_of(chart) for chart in row) for row in rows]
    page = plt.figure(figsize=(WIDTH, sum(heights) + 0.3), layout="constrained")
    page.suptitle(title, fontsize=8)
    bands = page.subfigures(len(rows), 1, height_ratios=heights, squeeze=False)[:, 0]
    for band, row in zip(bands, rows, strict=True):
        axes = band.subplots(1, len(row), squeeze=False)[0] if isinstance(row[0], Plot) else [band]
        for place, chart in zip(axes, row, strict=True):
            if isinstance(chart, Plot):
                plot(place, chart)
            else:
                pictures(place, chart)
    return page


def height_of(chart: Chart) -> float:
    """In inches; block pictures follow the shapes of their matrices."""
    if isinstance(chart, Plot):
        return 3.1 if chart.x.names else 2.4
    if isinstance(chart, Film):
        return 2.2
    lines = -(-len(chart.panels) // chart.across)
    return min(0.35 + lines * tallest(chart), 8.0)


def tallest(chart: Matrices) -> float:
    """The height of a row of panels when all of them fill the page's width."""
    first = chart.panels[: chart.across]
    across = sum(max(one.values.shape[1], 2) for one in first)
    down = max(one.values.shape[0] for one in first)
    return float(np.clip(0.8 * WIDTH * down / max(across, 1), 0.55, 2.4)) + 0.25


def plot(axis: Any, chart: Plot) -> None:
    """One plot with its bands, reference lines and legend."""
    seen: set[str] = set()
    for place, one in enumerate(chart.series):
        label = None if one.name in seen else one.name
        seen.add(one.name)
        curve(axis, one, label, MARKERS[place % len(MARKERS)])
    for place, line in enumerate(chart.lines):
        across = axis.axvline if line.vertical else axis.axhline
        style = ("--", ":", "-.")[place % 3]
        label = f"{line.label}: {line.at:.4g}"
        across(line.at, color=PALETTE[2], linestyle=style, linewidth=0.8, label=label)
    axis.set(xlabel=chart.x.label, ylabel=chart.y.label, title=chart.title)
    if chart.x.log:
        axis.set_xscale("log")
    if chart.y.log:
        axis.set_yscale("log")
    if chart.x.names:
        long = max(len(name) for name in chart.x.names) > 8
        axis.set_xticks(
            range(len(chart.x.names)),
            chart.x.names,
            rotation=40 if long else 0,
            ha="right" if long else "center",
        )
    if (seen or chart.lines) and len(seen) <= LEGEND:
        axis.legend(frameon=False, ncols=1 if len(seen) < 8 else 2)


def curve(axis: Any, one: Series, label: str | None, marker: str) -> None:
    """A line, points or bars, and the band around them."""
    colour = PALETTE[one.colour]
    style = "--" if one.dashed else "-"
    alpha = 0.5 if one.faint else 1.0
    if one.mark == "bars":
        axis.bar(one.x, one.y, color=colour, alpha=0.35, label=label)
        return
    if one.low is not None and one.high is not None:
        if one.mark == "points":
            spread = np.abs(np.stack([one.y - one.low, one.high - one.y]))
            axis.errorbar(one.x, one.y, spread, fmt="none", ecolor=colour, elinewidth=0.7)
        else:
            axis.fill_between(one.x, one.low, one.high, color=colour, alpha=0.12, linewidth=0)
    axis.plot(
        one.x,
        one.y,
        color=colour,
        label=label,
        alpha=alpha,
        linestyle="none" if one.mark == "points" else style,
        linewidth=0.6 if one.faint else 0.9,
        marker=None if one.mark == "line" else marker,
        markersize=2.5,
        markerfacecolor="white" if one.dashed else colour,
    )


def pictures(band: Any, chart: Matrices | Film) -> None:
    """Rows of block pictures under their common title; of a film some frames."""
    band.suptitle(chart.title, fontsize=7, fontweight="bold")
    if isinstance(chart, Matrices):
        panels, across = list(chart.panels), chart.across
        largest = greatest(panels) if chart.together else None
        shapes = [one.values.shape[1] for one in panels[:across]]
        # Room for a title over the narrowest.
        shapes = [max(one, 0.12 * sum(shapes)) for one in shapes]
    else:
        picked = np.unique(np.linspace(0, len(chart.frames) - 1, FRAMES).astype(int))
        panels = [
            Matrix(
                f"{what.title}, {chart.names[t]}" if t == picked[0] else chart.names[t],
                what.values,
                what.rows,
                what.columns,
            )
            for row in (1, 2)
            for t in picked
            for what in [chart.frames[t][row]]
        ]
        across, largest, shapes = len(picked), greatest(panels), [1] * len(picked)
    if len(panels) > MANY:
        mosaic(band.subplots(), panels, across)
        return
    down = -(-len(panels) // across)
    axes = band.subplots(down, across, squeeze=False, width_ratios=shapes)
    for axis in axes.ravel()[len(panels) :]:
        axis.axis("off")
    for axis, one in zip(axes.ravel(), panels, strict=False):
        matrix(axis, one, largest)


def mosaic(axis: Any, panels: list[Matrix], across: int) -> None:
    """Many small panels of one shape as one picture, two empty cells between them."""
    tall, wide = (max(one.values.shape[side] for one in panels) + 2 for side in (0, 1))
    down = -(-len(panels) // across)
    cells = np.full((down * tall, across * wide), np.nan)
    for place, one in enumerate(panels):
        top, left = place // across * tall + 2, place % across * wide
        rows, columns = one.values.shape
        cells[top : top + rows, left : left + columns] = one.values
        axis.text(left - 0.5, top - 0.7, one.title, fontsize=4)
    reach = greatest(panels)
    axis.imshow(cells, cmap="RdBu", vmin=-reach, vmax=reach, aspect="equal")
    axis.axis("off")


def greatest(panels: list[Matrix]) -> float:
    return max(float(np.max(np.abs(one.values), initial=0)) for one in panels) or 1.0


def matrix(axis: Any, one: Matrix, largest: float | None) -> None:
    """One block picture; groups are named at its sides and parted by lines."""
    reach = largest or greatest([one])
    axis.imshow(one.values, cmap="RdBu", vmin=-reach, vmax=reach, aspect="equal")
    for side in axis.spines.values():
        side.set_visible(True)
        side.set_linewidth(0.4)
    axis.set_title(one.title, fontsize=6, pad=2)
    for groups, parted, ticks in (
        (one.rows, axis.axhline, axis.set_yticks),
        (one.columns, axis.axvline, axis.set_xticks),
    ):
        ends = np.cumsum([count for _, count in groups]) - 0.5
        for end in ends[:-1]:
            parted(end, color="black", linewidth=0.5)
        middles = [end - count / 2 for end, (_, count) in zip(ends, groups, strict=True)]
        ticks(middles, [name for name, _ in groups], fontsize=5)
    axis.tick_params(length=0)
    axis.tick_params(axis="y", labelrotation=90)
    for label in axis.get_yticklabels():
        label.set_verticalalignment("center")
