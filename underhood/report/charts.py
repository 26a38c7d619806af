"""What figures are made of; `drawing.py` draws them for print, charts.js on the page.

Plot       lines, points or bars over two axes, with bands and reference lines
Matrices   block pictures side by side: blue positive, red negative, nothing at zero
Film       block pictures that change from token to token
Grid       a table of signs, each with a text that a click shows

Colours are numbers into one palette that colour-blind readers tell apart; dashes and markers say
the same again.
"""

import json
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from underhood.common.files import Json

# Okabe and Ito's colours, without the yellow that white paper swallows; then purple and brown, for
# plots of many series, whose points have shapes too.
PALETTE = (
    *("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#777777"),
    *("#6a3fb0", "#8a4b1f"),
)
Groups = tuple[tuple[str, int], ...]
# Shorter lists are sent again wherever they occur.
SHARED_FROM = 20


@dataclass(frozen=True)
class Axis:
    """An axis; `names`, if given, stand at 0, 1, 2, …"""

    label: str
    log: bool = False
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Series:
    """One line, cloud or row of bars; `low` and `high` are its band.

    mark    line, points, both or bars
    colour  place in the PALETTE
    shape   of points: place among the markers of `drawing.py`; None: by colour in print, a circle
            on the page
    texts   what the page says of each point; by default its name and its two numbers
    Series of one name are switched on and off together.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    mark: str = "line"
    colour: int = 0
    dashed: bool = False
    faint: bool = False
    shape: int | None = None
    texts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Line:
    """A straight line across the plot: what theory or the paper says."""

    label: str
    at: float
    vertical: bool = False


@dataclass(frozen=True)
class Plot:
    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    lines: tuple[Line, ...] = ()


@dataclass(frozen=True)
class Matrix:
    """A block picture; `rows` and `columns` name groups of neighbours: (("memory", 10), …)."""

    title: str
    values: np.ndarray
    rows: Groups = ()
    columns: Groups = ()


@dataclass(frozen=True)
class Matrices:
    """Panels, `across` in a row; with `together` all have one scale of colours."""

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


@dataclass(frozen=True)
class Sign:
    """A sign, its place in the PALETTE, and what it stands for, in sentences."""

    sign: str
    colour: int
    text: tuple[str, ...]


@dataclass(frozen=True)
class Grid:
    """Cells row by row; the legend has (sign, colour, meaning).

    hidden  columns of the result's rows that the page leaves to the cells
    """

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[Sign, ...]
    legend: tuple[tuple[str, int, str], ...]
    hidden: tuple[str, ...] = ()


Chart = Plot | Matrices | Film | Grid
Charts = tuple[Chart, ...]


class NoFigure(Exception):
    """Why a figure cannot be drawn, for the reader of the page."""


@dataclass(frozen=True)
class StoryStep:
    """A step of the story that opens the page: pictures, and a sentence about them."""

    pictures: Matrices
    sentence: str


@dataclass(frozen=True)
class Figure:
    """The charts of a claim and what to see in them.

    story  what the page opens with, if this figure tells it
    """

    charts: Charts
    caption: str
    story: tuple[StoryStep, ...] = ()


def alt_text(chart: Chart) -> str:
    """Return a text alternative: what is drawn, and over which range."""
    if isinstance(chart, Plot):
        text = f"{chart.title}: {chart.y.label} against {chart.x.label}"
        if chart.series:
            text += f"; {shortened(list(dict.fromkeys(curve.name for curve in chart.series)))}"
            values = np.concatenate([curve.y for curve in chart.series])
            values = values[np.isfinite(values)]
            if values.size:
                text += f"; values from {values.min():.3g} to {values.max():.3g}"
        lines = [f"{line.label} at {line.at:.3g}" for line in chart.lines]
        return text + (f"; lines: {shortened(lines)}." if lines else ".")
    if isinstance(chart, Grid):
        meanings = {sign: meaning for sign, _, meaning in chart.legend}
        counts = Counter(meanings[cell.sign] for cell in chart.cells)
        size = f"{len(chart.rows)} by {len(chart.columns)}"
        words = ", ".join(f"{count} {name}" for name, count in counts.items())
        return f"{chart.title}: {size} cells; {words}."
    panels = chart.panels if isinstance(chart, Matrices) else chart.frames[0]
    names = [
        f"{panel.title or 'panel'} ({' by '.join(map(str, panel.values.shape))})"
        for panel in panels
    ]
    frames = f", in {len(chart.frames)} frames" if isinstance(chart, Film) else ""
    return f"{chart.title}: {shortened(names)}{frames}."


def shortened(names: list[str], most: int = 12) -> str:
    """Return at most so many names in one text, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def encode_chart(chart: Chart) -> Json:
    """Return the chart for the page: numbers with few digits, None where there is none."""
    common: Json = {"title": chart.title, "alt": alt_text(chart)}
    if isinstance(chart, Plot):
        return common | {
            "kind": "plot",
            "x": vars(chart.x),
            "y": vars(chart.y),
            "lines": [vars(line) for line in chart.lines],
            "series": [
                {
                    name: short_numbers(value, 5) if isinstance(value, np.ndarray) else value
                    for name, value in vars(curve).items()
                }
                for curve in chart.series
            ],
        }
    if isinstance(chart, Matrices):
        panels = [encode_matrix(panel) for panel in chart.panels]
        return common | {**vars(chart), "kind": "matrices", "panels": panels}
    if isinstance(chart, Grid):
        # Sentences repeat, so they are sent once: a cell has the places of its own.
        sentences = list(dict.fromkeys(part for cell in chart.cells for part in cell.text))
        places = {sentence: place for place, sentence in enumerate(sentences)}
        cells = [
            [cell.sign, cell.colour, [places[part] for part in cell.text]] for cell in chart.cells
        ]
        sent = {**vars(chart), "kind": "grid", "cells": cells, "sentences": sentences}
        return common | {name: value for name, value in sent.items() if name != "hidden"}
    frames = [[encode_matrix(panel) for panel in frame] for frame in chart.frames]
    return common | {"kind": "film", "names": list(chart.names), "frames": frames}


def encode_matrix(matrix: Matrix) -> Json:
    values = short_numbers(matrix.values, 3)
    return {**vars(matrix), "shape": list(matrix.values.shape), "values": values}


def share_lists(charts: list[Json]) -> Json:
    """Return the charts with every long list that occurs twice written once.

    A repeated list becomes {"shared": place}: its place in the list `shared`.
    """
    counts: Counter[str] = Counter()
    places: dict[str, int] = {}
    shared: list[list[float]] = []

    def name_of(value: Any) -> str:  # Any: a part of nested lists and dicts, as JSON has them
        """Return the text of a long list; empty for anything else."""
        return json.dumps(value) if isinstance(value, list) and len(value) >= SHARED_FROM else ""

    def count(value: Any) -> None:  # Any: as above
        counts[name_of(value)] += 1
        for part in value.values() if isinstance(value, dict) else value:
            if isinstance(part, dict | list):
                count(part)

    def replaced(value: Any) -> Any:  # Any: as above
        if isinstance(value, dict):
            return {name: replaced(part) for name, part in value.items()}
        if not isinstance(value, list):
            return value
        name = name_of(value)
        if not name or counts[name] < 2:
            return [replaced(part) for part in value]
        if name not in places:
            places[name] = len(shared)
            shared.append(value)
        return {"shared": places[name]}

    count(charts)
    return {"charts": replaced(charts), "shared": shared}


def short_numbers(values: np.ndarray, digits: int) -> list[float | int | None]:
    """Return numbers with so many significant digits; None for those that are not finite."""
    # A page has a million numbers, so there is no call of a function per number.
    rounded = [float(f"{value:.{digits}g}") for value in np.asarray(values, float).ravel().tolist()]
    return [
        None
        if not math.isfinite(number)
        else int(number)
        if number.is_integer() and abs(number) < 1e15
        else number
        for number in rounded
    ]
