"""docs/reproduction.md says nothing that a result file does not hold."""

import json
import re
from typing import Any

import claims
import pytest
from claims import ROOT

from underhood.experiments.registry import EXPERIMENTS

PAGE = ROOT / "docs" / "reproduction.md"
# The last two are kept because the page tells why rates are searched otherwise now, and what the
# search misses.
NAMES = ("reference/quick", "paper", "reference/first_rates", "reference/other_rates")
FOLDERS = [ROOT / "results" / name for name in NAMES]

# 0.0945, 4.97e-8, 1,000; but not the 2 of figure2, nor what stands in `code` or in a link.
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?(?![\w])")
# Smaller whole numbers count things in prose.
COUNTS = 20
# No file holds how long all of figure4a took by the clock; the page says that this is our word.
OUR_WORD = "1370"


def sections(page: str) -> dict[str, str]:
    """The text below each `## name`: experiments, and the history."""
    parts = re.split(r"^## `?(\w+)`?$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def written(text: str) -> list[str]:
    """The numbers of a section that must be in a file."""
    plain = re.sub(r"`[^`]*`|\]\([^)]*\)", " ", text)
    numbers = [match.group().replace(",", "") for match in NUMBER.finditer(plain)]
    return [word for word in numbers if "." in word or "e" in word or abs(int(word)) > COUNTS]


def held(name: str) -> set[float]:
    """Every number in an experiment's result files, those inside their sentences too."""
    values: set[float] = set()

    def collect(data: Any) -> None:
        if isinstance(data, dict | list):
            parts = [*data, *data.values()] if isinstance(data, dict) else data
            for part in parts:
                collect(part)
        elif isinstance(data, str):
            values.update(float(m.group().replace(",", "")) for m in NUMBER.finditer(data))
        elif isinstance(data, int | float) and not isinstance(data, bool):
            values.add(float(data))

    for path in (folder / name / "result.json" for folder in FOLDERS):
        if path.exists():
            result = json.loads(path.read_text(encoding="utf-8"))
            result["provenance"].pop("versions", None)
            collect(result)
    return values


def agrees(word: str, value: float) -> bool:
    """Whether a value, rounded to as many digits, is what the page says."""
    digits = len(word.split("e")[0].lstrip("-").replace(".", "").lstrip("0")) or 1
    if float(word) == 0:
        return value == 0
    return f"{value:.{digits - 1}e}" == f"{float(word):.{digits - 1}e}"


def missing(text: str, *names: str) -> list[str]:
    """The numbers of a text that no result file of these experiments holds."""
    values = set().union(*map(held, names))
    return [word for word in written(text) if not any(agrees(word, value) for value in values)]


PAGE_SECTIONS = sections(PAGE.read_text(encoding="utf-8"))
HISTORY = PAGE_SECTIONS.pop("History", "")


def test_every_claim_has_a_section_and_every_section_a_result() -> None:
    assert list(PAGE_SECTIONS) == list(EXPERIMENTS)
    assert HISTORY
    for name in EXPERIMENTS:
        assert any((folder / name / "result.json").exists() for folder in FOLDERS), name


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_numbers_of_the_page_are_in_a_result_file(name: str) -> None:
    absent = missing(PAGE_SECTIONS[name], name)
    assert not absent, f"docs/reproduction.md, {name}: no result file holds {absent}"


def test_numbers_of_the_history_are_in_a_file_of_an_experiment_it_names() -> None:
    for paragraph in HISTORY.split("\n>\n"):
        names = [name for name in EXPERIMENTS if f"`{name}`" in paragraph]
        assert set(missing(paragraph, *names)) <= {OUR_WORD}, paragraph


@pytest.mark.parametrize("page", claims.PAGES)
def test_the_table_of_claims_is_that_of_the_result_files(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert claims.with_table(text, page) == text, "run python docs/claims.py"
    assert [row.experiment for row in claims.ROWS] == list(EXPERIMENTS)
    for correct, edited in (("4.97e-8", "4.98e-8"), ("| reproduced |", "| better |")):
        wrong = text.replace(correct, edited)
        assert claims.with_table(wrong, page) != wrong


def test_the_number_of_a_claim_has_the_verdict_of_its_experiment() -> None:
    with pytest.raises(ValueError, match="Choose a number with that verdict"):
        claims.read(claims.PAPER, claims.Row("table1", "", "score_kv", ""))


def test_a_wrong_number_would_be_noticed() -> None:
    values = held("table1")
    assert not any(agrees("4.98e-8", value) for value in values)
    assert any(agrees("4.97e-8", value) for value in values)
    text = "`0.5` of 21 and 4.97e-8, 1,000 steps, two 2s, [1.5](x-1.5.md)"
    assert written(text) == ["21", "4.97e-8", "1000", "1.5"]
