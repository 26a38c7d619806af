"""What commands print on stdout: tables, verdicts, and matrices as block pictures."""

from collections import Counter
from collections.abc import Iterable

import numpy as np
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from underhood.common.files import Json
from underhood.results.claims import CLAIMS
from underhood.results.files import (
    OURS,
    PAPERS,
    Cell,
    claim_words,
    columns_of,
    number_text,
    select_numbers,
    verdict_words,
)
from underhood.results.verdicts import BETTER, DIFFERS, NOT_RUN, REFUTED, REPRODUCED

OUR_CLAIMS = {claim.name for claim in CLAIMS if claim.ours}
VERDICT_STYLES = {
    BETTER: "bold green",
    REPRODUCED: "green",
    REFUTED: "bold magenta",
    DIFFERS: "bold red",
}

# Pictures are at most this many columns and rows; larger matrices are shown block by block.
WIDEST, TALLEST = 72, 24
# A result with more rows than this is not printed row by row.
LONGEST_TABLE = 100


# Columns of results that hold sentences, which a terminal would print ten letters a line.
SENTENCE_COLUMNS = ("how",)


def console() -> Console:
    """Return a console; 160 columns wide where there is no terminal."""
    made = Console(highlight=False)
    return made if made.is_terminal else Console(highlight=False, width=160)


def show(*tables: list[Json], matrices: Iterable[tuple[str, np.ndarray]] = ()) -> None:
    """Print tables, given as rows, and matrices as block pictures."""
    screen = console()
    for rows in tables:
        if rows:
            screen.print(plain_table(rows))
    for name, matrix in matrices:
        screen.print(picture(name, matrix))


def fact_rows(facts: Json) -> list[Json]:
    """Return a table's rows for the facts that are known."""
    return [{"fact": name, "value": value} for name, value in facts.items() if value is not None]


def verdict_text(verdict: str, words: str | None = None) -> Text:
    """Return a verdict in its colour; `words` stand in its place."""
    return Text(verdict if words is None else words, style=VERDICT_STYLES.get(verdict, ""))


def make_table(
    columns: Iterable[str], right: Iterable[str], rows: Iterable[Iterable[Cell | Text]]
) -> Table:
    """Return rows of cells as a table; the columns in `right` are flushed right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left")
    for row in rows:
        table.add_row(*map(cell_text, row))
    return table


def cell_text(cell: Cell | Text) -> Text:
    return cell if isinstance(cell, Text) else Text(number_text(cell))


def verdict_table(results: Iterable[Json]) -> Table:
    """Return every number of every result: those of the paper, then ours under a heading."""
    columns = ("experiment", "number", "paper", "ours", "rule", "scale", "seeds", "verdict")
    table = make_table(columns, ("paper", "ours", "seeds"), ())
    for result in results:
        name = result["experiment"]
        for whose in (PAPERS, OURS):
            numbers = select_numbers(result, whose)
            if numbers and whose == OURS:
                table.add_row(name, Text("beside the paper: ours", style="italic"))
                name = ""
            for number in numbers:
                values = (number.get(field) for field in ("name", "paper", "value", "rule"))
                verdict = verdict_text(str(number.get("verdict", NOT_RUN)), verdict_words(number))
                cells = (name, *values, result["scale"], number.get("seeds"), verdict)
                table.add_row(*map(cell_text, cells))
                name = ""
    return table


def summary_table(results: Iterable[Json], names: Iterable[str]) -> Table:
    """Return a verdict per experiment and in total; what has no result was not run."""
    by_name = {result["experiment"]: result for result in results}
    not_run: Json = {"scale": "", "numbers": [], "verdict": NOT_RUN}
    chosen = {name: by_name.get(name, not_run) for name in names}
    rows = []
    for name, result in chosen.items():
        seeds = result.get("provenance", {}).get("seeds")
        count = len(seeds) if isinstance(seeds, list) and seeds else ""
        papers, ours = (counted(select_numbers(result, whose)) for whose in (PAPERS, OURS))
        verdict = verdict_text(result["verdict"], claim_words(result))
        rows.append((name, result["scale"], count, papers, verdict, ours))
    columns = ("experiment", "scale", "seeds", "numbers of the paper", "verdict", "ours")
    table = make_table(columns, ("seeds",), rows)
    table.add_section()
    ours = counted(number for result in chosen.values() for number in select_numbers(result, OURS))
    tallies = {"the paper's claims": Counter[str](), "claims of our own": Counter[str]()}
    for name, result in chosen.items():
        whose = "claims of our own" if name in OUR_CLAIMS else "the paper's claims"
        tallies[whose][claim_words(result)] += 1
    for whose, counts in tallies.items():
        if counts:
            table.add_row("in total", "", "", Text(f"{whose}: {in_counts(counts)}"), "", Text(ours))
            ours = ""
    return table


def counted(numbers: Iterable[Json]) -> str:
    """Return the verdicts of numbers in words: 3 reproduced, 1 differs, 2 shown."""
    return in_counts(Counter(verdict_words(number) or "shown" for number in numbers))


def in_counts(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items())


def details(result: Json, claim: str) -> RenderableType:
    """Return a result's rows and notes under its claim."""
    parts: list[RenderableType] = [Text(f"\n{result['experiment']}: {claim}", style="bold")]
    rows = list(result.get("rows", ()))
    if len(rows) > LONGEST_TABLE:
        parts.append(Text(f"{len(rows)} rows, which the page of the report shows"))
    elif rows:
        parts.append(plain_table([without_sentences(row) for row in rows]))
    parts += [Text(f"- {note}") for note in result.get("notes", ())]
    return Group(*parts)


def without_sentences(row: Json) -> Json:
    """Return a row of a result without the columns that hold sentences."""
    return {name: value for name, value in row.items() if name not in SENTENCE_COLUMNS}


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
