"""What commands print on stdout: tables and pictures of matrices."""

from collections.abc import Iterable

import numpy as np

from underhood.common.files import Json
from underhood.report.terminal import console, picture, plain_table


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
