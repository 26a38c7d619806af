"""Results and matrices in a terminal: verdict tables and block pictures."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

STYLES = {
    "better": "bold green",
    "reproduced": "green",
    "refuted": "bold magenta",
    "differs": "bold red",
}

# Pictures are at most this many columns and rows; larger matrices are shown block by block.
WIDEST, TALLEST = 72, 24


def console(*, stderr: bool = False) -> Console:
    """A console that does not squeeze tables when nobody is watching."""
    made = Console(stderr=stderr, highlight=False)
    return made if made.is_terminal else Console(stderr=stderr, highlight=False, width=160)


def shown(value: Any) -> str:
    """A number for people: short, in scientific form where that is shorter."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.2e}" if value and not 1e-3 <= abs(value) < 1e4 else f"{value:.4g}"
    return str(value)


def verdict_table(results: Iterable[dict[str, Any]]) -> Table:
    """Every number of every result: paper's, ours, rule, verdict."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("experiment", "number", "paper", "ours", "rule", "scale", "seeds", "verdict"):
        table.add_column(name, justify="right" if name in ("paper", "ours", "seeds") else "left")
    for result in results:
        for i, number in enumerate(result["numbers"]):
            verdict = str(number.get("verdict", "not run"))
            cells = [result["experiment"] if i == 0 else "", number.get("name")]
            cells += [number.get("paper"), number.get("value"), number.get("rule")]
            cells += [result["scale"], number.get("seeds")]
            texts = [Text(shown(cell)) for cell in cells]
            table.add_row(*texts, Text(verdict, style=STYLES.get(verdict, "")))
    return table


def summary_table(results: Iterable[dict[str, Any]], names: Iterable[str]) -> Table:
    """A verdict per experiment and in total; what has no result was not run."""
    found = {result["experiment"]: result for result in results}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("experiment", "scale", "seeds", "numbers", "verdict"):
        table.add_column(name, justify="right" if name == "seeds" else "left")
    totals: dict[str, int] = {}
    for name in names:
        result = found.get(name)
        verdict = result["verdict"] if result else "not run"
        totals[verdict] = totals.get(verdict, 0) + 1
        counts: dict[str, int] = {}
        for number in result["numbers"] if result else []:
            counts[number["verdict"]] = counts.get(number["verdict"], 0) + 1
        told = ", ".join(f"{count} {one}" for one, count in counts.items())
        seeds = result["provenance"].get("seeds") if result else None
        table.add_row(
            Text(name),
            Text(result["scale"] if result else ""),
            str(len(seeds) if isinstance(seeds, list) and seeds else ""),
            Text(told),
            Text(verdict, style=STYLES.get(verdict, "")),
        )
    told = ", ".join(f"{count} {verdict}" for verdict, count in totals.items())
    table.add_section()
    table.add_row("in total", "", "", Text(f"experiments: {told}"), "")
    return table


def details(result: dict[str, Any], claim: str) -> RenderableType:
    """A result's own table and notes under its claim."""
    parts: list[RenderableType] = [Text(f"\n{result['experiment']}: {claim}", style="bold")]
    if result.get("rows"):
        parts.append(plain_table(list(result["rows"])))
    parts += [Text(f"- {note}") for note in result.get("notes", ())]
    return Group(*parts)


def plain_table(rows: list[dict[str, Any]]) -> Table:
    """Rows with the union of their columns, in order of appearance."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in names:
        numeric = any(isinstance(row.get(name), int | float) for row in rows)
        table.add_column(name, justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(Text(shown(row.get(name))) for name in names))
    return table


def picture(name: str, matrix: np.ndarray) -> RenderableType:
    """A matrix as blocks: ■ large, ▪ small, filled positive, hollow negative, · zero."""
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
    """One mark and its colour: blue positive, red negative, as in the paper's figures."""
    if entry == 0:
        return "·", "bright_black"
    big = abs(entry) >= 0.5 * largest
    if entry > 0:
        return "■" if big else "▪", "blue"
    return "□" if big else "▫", "red"
