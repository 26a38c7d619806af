"""docs/reproduction.md says nothing that a result file does not hold."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from underhood.experiments.registry import EXPERIMENTS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reproduction.md"
RESULTS = ROOT / "results"
# The last two are kept because the page tells why rates are searched otherwise now, and what the
# search misses.
FOLDERS = (
    RESULTS / "reference" / "quick",
    RESULTS / "paper",
    RESULTS / "reference" / "first_rates",
    RESULTS / "reference" / "other_rates",
)

# 0.0945, 4.97e-8, 1,000; but not the 2 of figure2, nor what stands in `code` or in a link.
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?(?![\w])")
# Smaller whole numbers count things in prose.
COUNTS = 20


def sections(page: str) -> dict[str, str]:
    """The text below each `## name` that is an experiment."""
    parts = re.split(r"^## `(\w+)`.*$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def written(text: str) -> list[str]:
    """The numbers of a section that must be in a file."""
    plain = re.sub(r"`[^`]*`|\]\([^)]*\)", " ", text)
    found = [match.group().replace(",", "") for match in NUMBER.finditer(plain)]
    return [one for one in found if "." in one or "e" in one or abs(int(one)) > COUNTS]


def held(name: str) -> set[float]:
    """Every number in an experiment's result files, those inside their sentences too."""
    values: set[float] = set()

    def collect(data: Any) -> None:
        if isinstance(data, dict):
            for key, one in data.items():
                collect(key)
                collect(one)
        elif isinstance(data, list):
            for one in data:
                collect(one)
        elif isinstance(data, str):
            values.update(float(m.group().replace(",", "")) for m in NUMBER.finditer(data))
        elif isinstance(data, int | float) and not isinstance(data, bool):
            values.add(float(data))

    for folder in FOLDERS:
        path = folder / name / "result.json"
        if path.exists():
            result = json.loads(path.read_text(encoding="utf-8"))
            result["provenance"].pop("versions", None)
            collect(result)
    return values


def agrees(told: str, value: float) -> bool:
    """Whether a value, rounded to as many digits, is what the page says."""
    digits = len(told.split("e")[0].lstrip("-").replace(".", "").lstrip("0")) or 1
    if float(told) == 0:
        return value == 0
    return f"{value:.{digits - 1}e}" == f"{float(told):.{digits - 1}e}"


PAGE_SECTIONS = sections(PAGE.read_text(encoding="utf-8"))


def test_every_claim_has_a_section_and_every_section_a_result() -> None:
    assert list(PAGE_SECTIONS) == list(EXPERIMENTS)
    for name in EXPERIMENTS:
        assert any((folder / name / "result.json").exists() for folder in FOLDERS), name


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_numbers_of_the_page_are_in_a_result_file(name: str) -> None:
    values = held(name)
    missing = [
        one for one in written(PAGE_SECTIONS[name]) if not any(agrees(one, v) for v in values)
    ]
    assert not missing, f"docs/reproduction.md, {name}: no result file holds {missing}"


def test_a_wrong_number_would_be_noticed() -> None:
    values = held("table1")
    assert not any(agrees("4.98e-8", value) for value in values)
    assert any(agrees("4.97e-8", value) for value in values)
    assert written("`0.5` of 21 and 4.97e-8, 1,000 steps, two 2s, [1.5](x-1.5.md)") == [
        "21",
        "4.97e-8",
        "1000",
        "1.5",
    ]
