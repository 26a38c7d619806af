"""Figures for print, drawn with matplotlib: NAME/figure.pdf, figure.svg and figure.png.

The same figure gives the same bytes: no dates, no random names. Nothing here trains or judges.
"""

import io
import os
import tempfile
import textwrap
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from underhood.report.blocks import WIDTH, pictures, tallest
from underhood.report.charts import (
    PALETTE,
    Chart,
    Figure,
    Film,
    NoFigure,
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
# By colour, so that both say the same in every panel.
MARKERS = ("o", "s", "^", "D", "v", "<", ">", "p")
# No name of the program or day of the drawing, so that files change with their contents alone.
METADATA: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}
# So many values of a logarithmic axis, sizes that were tried, have a tick each if it can be read.
FEW, APART, MARGIN = 8, 1.5, 1.3
# So many names fit a legend; curves of dozens of students speak for themselves.
LEGEND = 20


def draw(folder: Path, figure: Figure, title: str) -> list[Path]:
    """The figure in three formats, in a folder that exists."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    files: dict[str, bytes] = {}
    with plt.rc_context(STYLE), warnings.catch_warnings():
        # Of axes without anything on them, and the like; what matters is raised.
        warnings.simplefilter("ignore")
        try:
            page = lay_out(figure, title)
            # Once for all formats: arranging takes longer than drawing.
            page.draw_without_rendering()
            page.set_layout_engine(None)
            for kind in FORMATS:
                file = io.BytesIO()
                page.savefig(file, format=kind, dpi=150, metadata=METADATA[kind])
                files[f"figure.{kind}"] = file.getvalue()
        except Exception as error:
            # Arrays from elsewhere can be wrong in any way.
            raise NoFigure(f"it cannot be drawn ({type(error).__name__}: {error})") from error
        finally:
            plt.close("all")
    for name, contents in files.items():
        write(folder / name, contents)
    return [folder / name for name in files]


def write(path: Path, contents: bytes) -> None:
    """All of the file or nothing."""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        # The caller knows the path, not the temporary one beside it.
        raise OSError(error.errno, error.strerror, str(path)) from None
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
        if isinstance(row[0], Plot):
            legends(band, axes, row)
    return page


def height_of(chart: Chart) -> float:
    """In inches; block pictures follow the shapes of their matrices."""
    if isinstance(chart, Plot):
        names = len({one.name for one in chart.series}) + len(chart.lines)
        lines = -(-names // 3) if names <= LEGEND else 0
        return 2.3 + 0.13 * lines + (0.5 if chart.x.names else 0)
    if isinstance(chart, Film):
        return 2.2
    lines = -(-len(chart.panels) // chart.across)
    return min(0.35 + lines * tallest(chart), 8.0)


def plot(axis: Any, chart: Plot) -> None:
    """One plot with its bands, reference lines and legend."""
    seen: set[str] = set()
    for one in chart.series:
        label = None if one.name in seen else one.name
        seen.add(one.name)
        curve(axis, one, label, MARKERS[one.colour])
    for place, line in enumerate(chart.lines):
        across = axis.axvline if line.vertical else axis.axhline
        style = ("--", ":", "-.")[place % 3]
        label = f"{line.label}: {line.at:.4g}"
        across(line.at, color=PALETTE[2], linestyle=style, linewidth=0.8, label=label)
    axis.set(xlabel=chart.x.label, ylabel=chart.y.label, title=chart.title)
    if chart.x.log:
        axis.set_xscale("log")
        label_powers(axis.xaxis)
        tried = np.unique(np.concatenate([np.zeros(0), *(one.x for one in chart.series)]))
        if 0 < len(tried) <= FEW and np.all(tried[1:] >= APART * tried[:-1]):
            axis.set_xticks(tried)
            axis.set_xlim(tried[0] / MARGIN, tried[-1] * MARGIN)
    if chart.y.log:
        axis.set_yscale("log")
        label_powers(axis.yaxis)
    if chart.x.names:
        many = len(chart.x.names) > 4
        axis.set_xticks(
            range(len(chart.x.names)),
            chart.x.names if many else [textwrap.fill(name, 16) for name in chart.x.names],
            rotation=40 if many else 0,
            ha="right" if many else "center",
        )


def legends(band: Any, axes: Any, row: list[Chart]) -> None:
    """Below the plots, never on top of a mark: one for all of a row where it is the same."""
    named = [axis.get_legend_handles_labels() for axis in axes]
    same = len({tuple(labels) for _, labels in named}) == 1
    for axis, chart, (handles, labels) in zip(axes, row, named, strict=True):
        if not labels or len(labels) > LEGEND:
            continue
        if same:
            band.legend(handles, labels, loc="outside lower center", frameon=False, ncols=4)
            return
        assert isinstance(chart, Plot)
        names = chart.x.names
        lower = 0.2 if not names else 0.32 if len(names) <= 4 else 0.6
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -lower)}
        long = max(len(one) for one in labels) > 24
        axis.legend(handles, labels, frameon=False, ncols=2 if long else 3, **below)


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
