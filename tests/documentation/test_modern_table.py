"""The table of errors of today's layers: complete, within its limits, and as measured now."""

import json
import re
from pathlib import Path

import modern_table
import numpy as np
import pytest

from underhood.constructions import TARGETS

ERRORS = modern_table.written_errors(modern_table.PAGE.read_text(encoding="utf-8"))


def test_every_layer_of_today_has_a_row() -> None:
    assert list(ERRORS) == list(modern_table.TARGETS)
    assert all(len(row) == len(modern_table.PLACES) == 4 for row in ERRORS.values())
    # Exact or below rounding, but for the two that make products by differences.
    for target, (short, _, single, _) in ERRORS.items():
        assert target in TARGETS
        rounds = target not in ("rg_lru", "hgrn2")
        assert short < (1e-14 if rounds else 1e-12) and single < (1e-6 if rounds else 1e-4)


@pytest.mark.parametrize("target", ["jamba", "hgrn2"])
def test_an_entry_is_what_is_measured(target: str) -> None:
    """Within a factor of 5: these errors are rounding."""
    then = ERRORS[target][0]
    assert then / 5 <= modern_table.measured(target, 32, "float64")[1] <= 5 * then


QUICK = Path(__file__).parents[2] / "results" / "reference" / "quick"


def test_the_table_of_learning_in_context_is_that_of_the_result() -> None:
    result = json.loads((QUICK / "architectures2026" / "result.json").read_text(encoding="utf-8"))
    page = modern_table.PAGE.read_text(encoding="utf-8")
    table = page[page.index("| layer | loss on regression |") :].split("\n\n")[0]
    written = re.findall(r"^\| ([^|]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", table, re.M)
    columns = (("regression", "validation"), ("regression", "score"), ("teacher-student", "score"))
    names = {row["architecture"] for row in result["rows"]}
    assert {name for name, *_ in written} == names and len(written) == len(names) == 21
    for name, *values in written:
        for (task, field), value in zip(columns, values, strict=True):
            rows = [
                row for row in result["rows"] if (row["task"], row["architecture"]) == (task, name)
            ]
            median = np.median([row[field] for row in rows])
            assert len(rows) == 4 and abs(float(value) - median) <= 0.006 * median + 5e-4, name
    # The sentences above the table have the result's numbers.
    said = {number["name"]: number["value"] for number in result["numbers"]}
    for name, value in said.items():
        assert f"{value:.2f}" in page or (name == "one gradient step" and f"{value:.3f}" in page), (
            name
        )
