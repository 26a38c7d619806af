"""Results and matrices in a terminal: verdict tables and block pictures."""

from collections import Counter
from collections.abc import Iterable

import numpy as np
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from underhood.common.files import Json
from underhood.results.files import Cell
from underhood.results.verdicts import BETTER, DIFFERS, NOT_RUN, REFUTED, REPRODUCED

VERDICT_STYLES = {
    BETTER: "bold green",
    REPRODUCED: "green",
    REFUTED: "bold magenta",
    DIFFERS: "bold red",
}

# Pictures are at most this many columns and rows; larger matrices are shown block by block.
WIDEST, TALLEST = 72, 24


def console(*, stderr: bool = False) -> Console:
    """Return a console; 160 columns wide where there is no terminal."""
    made = Console(stderr=stderr, highlight=False)
    return made if made.is_terminal else Console(stderr=stderr, highlight=False, width=160)


def number_text(value: Cell) -> str:
    """Return a number for people: short, in scientific form where that is shorter."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.2e}" if value and not 1e-3 <= abs(value) < 1e4 else f"{value:.4g}"
    return str(value)


def verdict_text(verdict: str) -> Text:
    return Text(verdict, style=VERDICT_STYLES.get(verdict, ""))


def make_table(
    columns: Iterable[str], right: Iterable[str], rows: Iterable[Iterable[Cell | Text]]
) -> Table:
    """Return rows of cells as a table; the columns in `right` are flushed right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left")
    for row in rows:
        cells = (cell if isinstance(cell, Text) else Text(number_text(cell)) for cell in row)
        table.add_row(*cells)
    return table


def verdict_table(results: Iterable[Json]) -> Table:
    """Return every number of every result: paper's, ours, rule, verdict."""
    columns = ("experiment", "number", "paper", "ours", "rule", "scale", "seeds", "verdict")
    rows = [
        (
            "" if place else result["experiment"],
            *(number.get(field) for field in ("name", "paper", "value", "rule")),
            result["scale"],
            number.get("seeds"),
            verdict_text(str(number.get("verdict", NOT_RUN))),
        )
        for result in results
        for place, number in enumerate(result["numbers"])
    ]
    return make_table(columns, ("paper", "ours", "seeds"), rows)


def summary_table(results: Iterable[Json], names: Iterable[str]) -> Table:
    """Return a verdict per experiment and in total; what has no result was not run."""
    by_name = {result["experiment"]: result for result in results}
    not_run: Json = {"scale": "", "numbers": [], "verdict": NOT_RUN}
    chosen = {name: by_name.get(name, not_run) for name in names}
    rows = []
    for name, result in chosen.items():
        seeds = result.get("provenance", {}).get("seeds")
        count = len(seeds) if isinstance(seeds, list) and seeds else ""
        words = count, counted(result["numbers"]), verdict_text(result["verdict"])
        rows.append((name, result["scale"], *words))
    table = make_table(("experiment", "scale", "seeds", "numbers", "verdict"), ("seeds",), rows)
    table.add_section()
    table.add_row("in total", "", "", Text(f"experiments: {counted(chosen.values())}"), "")
    return table


def counted(judged: Iterable[Json]) -> str:
    """Return the verdicts of numbers or results in words: 3 reproduced, 1 differs."""
    counts = Counter(entry["verdict"] for entry in judged)
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items())


def details(result: Json, claim: str) -> RenderableType:
    """Return a result's rows and notes under its claim."""
    parts: list[RenderableType] = [Text(f"\n{result['experiment']}: {claim}", style="bold")]
    if result.get("rows"):
        parts.append(plain_table(list(result["rows"])))
    parts += [Text(f"- {note}") for note in result.get("notes", ())]
    return Group(*parts)


def columns_of(rows: list[Json]) -> list[str]:
    """Return the union of the rows' columns, in order of appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def plain_table(rows: list[Json]) -> Table:
    """Return rows as a table; columns with numbers are flushed right."""
    names = columns_of(rows)
    numeric = {name for row in rows for name in row if isinstance(row[name], int | float)}
    return make_table(names, numeric, [[row.get(name) for name in names] for row in rows])


def picture(name: str, matrix: np.ndarray) -> RenderableType:
    """Return a matrix as blocks: ■ large, ▪ small, filled positive, hollow negative, · zero."""
    rows, columns = matrix.shape
    if not np.any(matrix):
        return Text(f"{name}  {rows}×{columns}, all zero", style="bold")
    tall, wide = -(-rows // TALLEST), -(-columns // WIDEST)
    each = "" if tall == wide == 1 else f", one mark for {tall}×{wide} entries"
    largest = float(np.max(np.abs(matrix)))
    lines = [Text(f"{name}  {rows}×{columns}{each}", style="bold")]
    for top in range(0, rows, tall):
        line = Text("  ")
        for left in range(0, columns, wide):
            block = matrix[top : top + tall, left : left + wide].ravel()
            line.append(*mark(float(block[np.argmax(np.abs(block))]), largest))
        lines.append(line)
    return Group(*lines)


def mark(entry: float, largest: float) -> tuple[str, str]:
    """Return a mark and its colour: blue positive, red negative, as in the paper's figures."""
    if entry == 0:
        return "·", "bright_black"
    big = abs(entry) >= 0.5 * largest
    if entry > 0:
        return "■" if big else "▪", "blue"
    return "□" if big else "▫", "red"
