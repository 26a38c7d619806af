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
    """Return a verdict in its colour."""
    return Text(verdict, style=VERDICT_STYLES.get(verdict, ""))


def new_table(columns: Iterable[str], right: Iterable[str]) -> Table:
    """Return an empty table; the columns in `right` are flushed right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left")
    return table


def verdict_table(results: Iterable[Json]) -> Table:
    """Return every number of every result: paper's, ours, rule, verdict."""
    columns = ("experiment", "number", "paper", "ours", "rule", "scale", "seeds", "verdict")
    table = new_table(columns, ("paper", "ours", "seeds"))
    for result in results:
        for i, number in enumerate(result["numbers"]):
            name = result["experiment"] if i == 0 else ""
            cells = [name, *(number.get(field) for field in ("name", "paper", "value", "rule"))]
            cells += [result["scale"], number.get("seeds")]
            verdict = verdict_text(str(number.get("verdict", NOT_RUN)))
            table.add_row(*(Text(number_text(cell)) for cell in cells), verdict)
    return table


def summary_table(results: Iterable[Json], names: Iterable[str]) -> Table:
    """Return a verdict per experiment and in total; what has no result was not run."""
    by_name = {result["experiment"]: result for result in results}
    table = new_table(("experiment", "scale", "seeds", "numbers", "verdict"), ("seeds",))
    totals: Counter[str] = Counter()
    for name in names:
        result = by_name.get(name) or {"scale": "", "numbers": [], "verdict": NOT_RUN}
        totals[result["verdict"]] += 1
        seeds = result.get("provenance", {}).get("seeds")
        table.add_row(
            Text(name),
            Text(result["scale"]),
            str(len(seeds) if isinstance(seeds, list) and seeds else ""),
            Text(counted(Counter(number["verdict"] for number in result["numbers"]))),
            verdict_text(result["verdict"]),
        )
    table.add_section()
    table.add_row("in total", "", "", Text(f"experiments: {counted(totals)}"), "")
    return table


def counted(counts: Counter[str]) -> str:
    """Return counts in words: 3 reproduced, 1 differs."""
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
    table = new_table(names, numeric)
    for row in rows:
        table.add_row(*(Text(number_text(row.get(name))) for name in names))
    return table


def picture(name: str, matrix: np.ndarray) -> RenderableType:
    """Return a matrix as blocks: ■ large, ▪ small, filled positive, hollow negative, · zero."""
    rows, columns = matrix.shape
    if not np.any(matrix):
        return Text(f"{name}  {rows}×{columns}, all zero", style="bold")
    tall, wide = -(-rows // TALLEST), -(-columns // WIDEST)
    each = "" if tall == wide == 1 else f", one mark for {tall}×{wide} entries"
    title = Text(f"{name}  {rows}×{columns}{each}", style="bold")
    largest = float(np.max(np.abs(matrix), initial=0.0))
    lines = [title]
    for top in range(0, rows, tall):
        line = Text("  ")
        for left in range(0, columns, wide):
            block = matrix[top : top + tall, left : left + wide].ravel()
            entry = float(block[np.argmax(np.abs(block))])
            line.append(*mark(entry, largest))
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
