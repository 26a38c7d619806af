"""What figures are made of; matplotlib draws them (`drawing.py`), and the page (charts.js).

Plot       lines, points or bars over two axes, with bands and reference lines
Matrices   block pictures side by side: blue positive, red negative, nothing at zero
Film       block pictures that change from token to token

Colours are numbers into one palette that colour-blind readers tell apart; dashes and markers say
the same again.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

# Okabe and Ito's colours, without the yellow that white paper swallows.
PALETTE = (
    "#000000",
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#e69f00",
    "#777777",
)
Groups = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Axis:
    """`names` stand at 0, 1, 2, … where an axis counts things instead of measuring."""

    label: str
    log: bool = False
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Series:
    """One line or cloud; `low` and `high` are its band. Series of one name are toggled together."""

    name: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    mark: str = "line"
    colour: int = 0
    dashed: bool = False
    faint: bool = False


@dataclass(frozen=True)
class Line:
    """What theory or the paper says, across the whole plot."""

    label: str
    at: float
    vertical: bool = False


@dataclass(frozen=True)
class Plot:
    """Series over two axes."""

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    lines: tuple[Line, ...] = ()


@dataclass(frozen=True)
class Matrix:
    """`rows` and `columns` name groups of neighbours by their counts: (("memory", 10), …)."""

    title: str
    values: np.ndarray
    rows: Groups = ()
    columns: Groups = ()


@dataclass(frozen=True)
class Matrices:
    """Panels, so many in a row; with `together` one scale of colours holds for all."""

    title: str
    panels: tuple[Matrix, ...]
    across: int
    together: bool = False


@dataclass(frozen=True)
class Film:
    """One row of panels per frame, all on one scale."""

    title: str
    frames: tuple[tuple[Matrix, ...], ...]
    names: tuple[str, ...]


Chart = Plot | Matrices | Film


class NoFigure(Exception):
    """Why a figure cannot be drawn, for the reader of the page."""


@dataclass(frozen=True)
class Figure:
    """The charts of a claim and what to see in them."""

    charts: tuple[Chart, ...]
    caption: str


def described(chart: Chart) -> str:
    """A text alternative: what is drawn, of what, over which range."""
    if isinstance(chart, Plot):
        names = list(dict.fromkeys(one.name for one in chart.series))
        told = f"{chart.title}: {chart.y.label} against {chart.x.label}"
        told += f"; {listed(names)}" if names else ""
        values = [one.y[np.isfinite(one.y)] for one in chart.series]
        values = [one for one in values if one.size]
        if values:
            low, high = min(one.min() for one in values), max(one.max() for one in values)
            told += f"; values from {low:.3g} to {high:.3g}"
        lines = [f"{line.label} at {line.at:.3g}" for line in chart.lines]
        return told + (f"; lines: {listed(lines)}." if lines else ".")
    panels: Iterable[Matrix] = chart.panels if isinstance(chart, Matrices) else chart.frames[0]
    told = listed([f"{one.title or 'panel'} ({sized(one.values)})" for one in panels])
    if isinstance(chart, Film):
        return f"{chart.title}: {told}, in {len(chart.frames)} frames."
    return f"{chart.title}: {told}."


def listed(names: list[str], most: int = 12) -> str:
    """At most so many names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def sized(values: np.ndarray) -> str:
    return " by ".join(str(size) for size in values.shape)


def encoded(chart: Chart) -> dict[str, Any]:
    """The chart for the page: short numbers, nothing where there is none."""
    if isinstance(chart, Plot):
        return {
            "kind": "plot",
            "title": chart.title,
            "alt": described(chart),
            "x": vars(chart.x),
            "y": vars(chart.y),
            "lines": [vars(line) for line in chart.lines],
            "series": [
                {
                    **vars(one),
                    **{
                        name: numbers(getattr(one, name))
                        for name in ("x", "y", "low", "high")
                        if getattr(one, name) is not None
                    },
                }
                for one in chart.series
            ],
        }
    common = {"title": chart.title, "alt": described(chart)}
    if isinstance(chart, Matrices):
        return common | {
            "kind": "matrices",
            "across": chart.across,
            "together": chart.together,
            "panels": [panel(one) for one in chart.panels],
        }
    return common | {
        "kind": "film",
        "names": list(chart.names),
        "frames": [[panel(one) for one in frame] for frame in chart.frames],
    }


def panel(matrix: Matrix) -> dict[str, Any]:
    rows, columns = matrix.values.shape
    return {
        "title": matrix.title,
        "shape": [rows, columns],
        "values": numbers(matrix.values.ravel(), 3),
        "rows": matrix.rows,
        "columns": matrix.columns,
    }


def numbers(values: Any, digits: int = 5) -> list[float | int | None]:
    """Significant digits as few as a screen can show."""
    found: list[float | int | None] = []
    for value in np.asarray(values, float).ravel():
        if not np.isfinite(value):
            found.append(None)
            continue
        short = float(f"{value:.{digits}g}")
        found.append(int(short) if short == int(short) and abs(short) < 1e15 else short)
    return found
