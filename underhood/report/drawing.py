"""Figures for print, drawn with matplotlib: NAME/figure.pdf, figure.svg and figure.png.

The same figure gives the same bytes: no dates, no random names. Nothing here trains or judges.
"""

import io
import math
import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from underhood.common.errors import BadInput
from underhood.common.files import Json, write_atomically
from underhood.report.blocks import WIDTH, draw_pictures, tallest
from underhood.report.charts import (
    PALETTE,
    Chart,
    Figure,
    Film,
    Grid,
    Matrices,
    Matrix,
    NoFigure,
    Plot,
    Series,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis as AxisSide
    from matplotlib.figure import Figure as PrintedPage, SubFigure

FORMATS = ("pdf", "svg", "png")
STYLE_SHEET = Path(__file__).parent / "assets/print.mplstyle"
# By colour, so that both say the same in every panel; the page has the same shapes.
MARKERS = ("o", "s", "^", "D", "v", "<", ">", "p", "P", "X")
# No name of the program or day of the drawing, so that files change with their contents alone.
METADATA: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}
# At most so many values of a logarithmic axis, each so many times the last, have a tick each.
FEW_TICKS, TICKS_APART, MARGIN = 8, 1.5, 1.3
# A plot with more names than this has no legend; at most so many names of an axis stand upright.
LEGEND, FEW_NAMES = 20, 4


def draw(folder: Path, figure: Figure, title: str) -> list[Path]:
    """Draw a figure in three formats, into a folder that exists; return the files."""
    paths = [folder / f"figure.{kind}" for kind in FORMATS]
    for path, contents in zip(paths, printed(figure, title, FORMATS), strict=True):
        write_atomically(path, contents)
    return paths


def draw_maps(path: Path, maps: np.ndarray, title: str) -> None:
    """Draw attention maps [maps, time, time] side by side, on one scale of colours.

    path   of a .png, .svg or .pdf file
    title  stands above the maps

    Rows are times of outputs, columns times of inputs; blue is positive, red negative.
    """
    kind = path.suffix.removeprefix(".")
    if kind not in FORMATS:
        raise BadInput(f"The output {path} must end in {', '.join('.' + f for f in FORMATS)}.")
    panels = tuple(Matrix(f"map {place}", values) for place, values in enumerate(maps))
    # Few maps fill a row; many are as wide as high.
    across = len(maps) if len(maps) <= 4 else math.ceil(math.sqrt(len(maps)))
    chart = Matrices("rows: outputs, columns: inputs", panels, across, together=True)
    (contents,) = printed(Figure((chart,), ""), title, (kind,))
    write_atomically(path, contents)


def printed(figure: Figure, title: str, kinds: Sequence[str]) -> list[bytes]:
    """Return a figure as the contents of a file, in every format asked for."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    files = []
    with plt.rc_context(fname=STYLE_SHEET), warnings.catch_warnings():
        # About empty axes and the like; real problems are raised.
        warnings.simplefilter("ignore")
        try:
            page = lay_out(figure, title)
            # Once for all formats: arranging takes longer than drawing.
            page.draw_without_rendering()
            page.set_layout_engine(None)
            for kind in kinds:
                files.append(io.BytesIO())
                page.savefig(files[-1], format=kind, dpi=150, metadata=METADATA[kind])
        except Exception as error:
            # Arrays from elsewhere can be wrong in any way.
            raise NoFigure(f"it cannot be drawn ({type(error).__name__}: {error})") from error
        finally:
            plt.close("all")
    return [file.getvalue() for file in files]


def lay_out(figure: Figure, title: str) -> "PrintedPage":
    """Draw plots in pairs, block pictures in rows of their own."""
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
        if isinstance(row[0], Grid):
            draw_grid(band.subplots(), row[0])
            continue
        if not isinstance(row[0], Plot):
            draw_pictures(band, row[0])
            continue
        plots = [chart for chart in row if isinstance(chart, Plot)]
        axes = band.subplots(1, len(plots), squeeze=False)[0]
        for axis, chart in zip(axes, plots, strict=True):
            draw_plot(axis, chart)
        draw_legends(band, axes, plots)
    return page


def height_of(chart: Chart) -> float:
    """Return the height in inches; block pictures follow the shapes of their matrices."""
    if isinstance(chart, Plot):
        names = len({series.name for series in chart.series}) + len(chart.lines)
        lines = -(-names // 3) if names <= LEGEND else 0
        return 2.3 + 0.13 * lines + (0.5 if chart.x.names else 0)
    if isinstance(chart, Film):
        return 2.2
    if isinstance(chart, Grid):
        return 1.6 + 0.2 * len(chart.rows)
    lines = -(-len(chart.panels) // chart.across)
    return min(0.35 + lines * tallest(chart), 8.0)


def draw_grid(axis: "Axes", chart: Grid) -> None:
    """Draw a table of signs on coloured squares."""
    across = len(chart.columns)
    for place, cell in enumerate(chart.cells):
        x, y = place % across, place // across
        colour = PALETTE[cell.colour]
        axis.bar(x, 1, 1, y - 0.5, color=colour, alpha=0.3, edgecolor="white", linewidth=0.5)
        axis.text(x, y, cell.sign, ha="center", va="center", fontsize=7)
    axis.set_xticks(
        range(across), chart.columns, rotation=60, ha="left", rotation_mode="anchor", fontsize=7
    )
    axis.set_yticks(range(len(chart.rows)), chart.rows, fontsize=7)
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    axis.set(xlim=(-0.5, across - 0.5), ylim=(len(chart.rows) - 0.5, -0.5))
    legend = "   ".join(f"{sign}  {meaning}" for sign, _, meaning in chart.legend)
    axis.set_xlabel(legend)


def draw_plot(axis: "Axes", chart: Plot) -> None:
    seen: set[str] = set()
    for series in chart.series:
        draw_series(axis, series, None if series.name in seen else series.name)
        seen.add(series.name)
    for place, line in enumerate(chart.lines):
        across = axis.axvline if line.vertical else axis.axhline
        style = ("--", ":", "-.")[place % 3]
        label = f"{line.label}: {line.at:.4g}"
        across(line.at, color=PALETTE[2], linestyle=style, linewidth=0.8, label=label)
    axis.set(xlabel=chart.x.label, ylabel=chart.y.label, title=chart.title)
    if chart.x.log:
        axis.set_xscale("log")
        label_powers(axis.xaxis)
        tried = np.unique(np.concatenate([np.zeros(0), *(series.x for series in chart.series)]))
        if 0 < len(tried) <= FEW_TICKS and np.all(tried[1:] >= TICKS_APART * tried[:-1]):
            axis.set_xticks(tried)
            axis.set_xlim(tried[0] / MARGIN, tried[-1] * MARGIN)
    if chart.y.log:
        axis.set_yscale("log")
        label_powers(axis.yaxis)
    names = chart.x.names
    if len(names) > FEW_NAMES:
        axis.set_xticks(range(len(names)), names, rotation=40, ha="right")
    elif names:
        axis.set_xticks(range(len(names)), [textwrap.fill(name, 16) for name in names])


def draw_legends(band: "SubFigure", axes: Sequence["Axes"], plots: list[Plot]) -> None:
    """Draw legends below the plots; a single one for a row of plots with the same names."""
    named = [axis.get_legend_handles_labels() for axis in axes]
    same = len({tuple(labels) for _, labels in named}) == 1
    for axis, chart, (handles, labels) in zip(axes, plots, named, strict=True):
        if not labels or len(labels) > LEGEND:
            continue
        if same:
            band.legend(handles, labels, loc="outside lower center", frameon=False, ncols=4)
            return
        names, columns = chart.x.names, 2 if max(map(len, labels)) > 24 else 3
        # Slanted names reach down by their length.
        slanted = min(0.2 + 0.016 * max(map(len, names), default=0), 0.6)
        below = 0.5, -(0.2 if not names else 0.32 if len(names) <= FEW_NAMES else slanted)
        where: Json = {"loc": "upper center", "bbox_to_anchor": below}
        axis.legend(handles, labels, frameon=False, ncols=columns, **where)


def label_powers(side: "AxisSide") -> None:
    """Label 1e-8 as on the page; superscripts and minor ticks would double the time of drawing."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = side.get_view_interval()
    if high < 100 * low:
        side.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    side.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value)))
    side.set_minor_locator(NullLocator())


def tick_text(value: float) -> str:
    if 1e-3 <= value < 1e5:
        return f"{value:g}"
    return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")


def draw_series(axis: "Axes", series: Series, label: str | None) -> None:
    colour, x, y, low, high = PALETTE[series.colour], series.x, series.y, series.low, series.high
    if series.mark == "bars":
        axis.bar(x, y, color=colour, alpha=0.35, label=label)
        return
    if low is not None and high is not None:
        if series.mark == "points":
            spread = np.abs(np.stack([y - low, high - y]))
            axis.errorbar(x, y, spread, fmt="none", ecolor=colour, elinewidth=0.7)
        else:
            axis.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
    style = "--" if series.dashed else "-"
    shape = series.colour if series.shape is None else series.shape
    axis.plot(
        x,
        y,
        color=colour,
        label=label,
        alpha=0.5 if series.faint else 1.0,
        linestyle="none" if series.mark == "points" else style,
        linewidth=0.6 if series.faint else 0.9,
        marker=None if series.mark == "line" else MARKERS[shape],
        markersize=2.5,
        markerfacecolor="white" if series.dashed else colour,
    )
