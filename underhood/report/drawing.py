"""Figures for print, drawn with matplotlib: NAME/figure.pdf, figure.svg and figure.png.

The same figure gives the same bytes: no dates, no random names. Nothing here trains or judges.
"""

import io
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from underhood.report.blocks import WIDTH, pictures, tallest
from underhood.report.charts import (
    PALETTE,
    Chart,
    Figure,
    Film,
    Plot,
    Series,
)

FORMATS = ("pdf", "svg", "png")
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
        return 3.1 if chart.x.names or crowded(chart) else 2.4
    if isinstance(chart, Film):
        return 2.2
    lines = -(-len(chart.panels) // chart.across)
    return min(0.35 + lines * tallest(chart), 8.0)


def plot(axis: Any, chart: Plot) -> None:
    """One plot with its bands, reference lines and legend."""
    seen: dict[str, str] = {}
    for one in chart.series:
        label = None if one.name in seen else one.name
        seen.setdefault(one.name, MARKERS[len(seen) % len(MARKERS)])
        curve(axis, one, label, seen[one.name])
    for place, line in enumerate(chart.lines):
        across = axis.axvline if line.vertical else axis.axhline
        style = ("--", ":", "-.")[place % 3]
        label = f"{line.label}: {line.at:.4g}"
        across(line.at, color=PALETTE[2], linestyle=style, linewidth=0.8, label=label)
    axis.set(xlabel=chart.x.label, ylabel=chart.y.label, title=chart.title)
    if chart.x.log:
        axis.set_xscale("log")
        label_powers(axis.xaxis)
    if chart.y.log:
        axis.set_yscale("log")
        label_powers(axis.yaxis)
    if chart.x.names:
        long = max(len(name) for name in chart.x.names) > 8
        axis.set_xticks(
            range(len(chart.x.names)),
            chart.x.names,
            rotation=40 if long else 0,
            ha="right" if long else "center",
        )
    if (seen or chart.lines) and len(seen) <= LEGEND:
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.16), "ncols": 3}
        axis.legend(frameon=False, **(below if crowded(chart) else {}))


def crowded(chart: Plot) -> bool:
    """Whether a legend among the marks would cover some of them."""
    return len({one.name for one in chart.series}) > 6 and not chart.x.names


def label_powers(side: Any) -> None:
    """1e-8 as on the page; superscripts and minor ticks would take as long as all the rest."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = side.get_view_interval()
    if high < 100 * low:
        side.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    side.set_major_formatter(FuncFormatter(lambda value, _: shown(value)))
    side.set_minor_locator(NullLocator())


def shown(value: float) -> str:
    """A tick in few characters."""
    if 1e-3 <= value < 1e5:
        return f"{value:g}"
    return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")


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
