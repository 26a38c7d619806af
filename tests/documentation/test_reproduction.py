"""docs/reproduction.md says of each number what the result files say of it."""

import itertools

import claims
import pytest
import sources
from result_files import put, result
from sources import FOLDERS, NUMBER, ROOT, agrees, bare, sections, untied, written

from underhood.results.claims import PAPER_CLAIMS

PAGE = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
# No file holds how long all of figure4a took by the clock; the page says that this is our word.
OUR_WORD = "1,370 in: All of `figure4a` took 1,370 s by the clock."
PAPERS_NAMES = [claim.name for claim in PAPER_CLAIMS]
PAGE_SECTIONS = sections(PAGE)
HISTORY = PAGE_SECTIONS.pop("History", "")


def test_every_claim_has_a_section_and_every_section_a_result() -> None:
    assert list(PAGE_SECTIONS) == PAPERS_NAMES
    assert HISTORY
    for name in PAPERS_NAMES:
        assert any((folder / name / "result.json").exists() for folder in FOLDERS.values()), name


@pytest.mark.parametrize("name", PAPERS_NAMES)
def test_numbers_of_the_page_are_those_of_the_entries_they_stand_for(name: str) -> None:
    assert untied(PAGE_SECTIONS[name], name) == []


def test_numbers_of_the_history_are_in_a_file_of_an_experiment_it_names() -> None:
    for paragraph in HISTORY.split("\n>\n"):
        names = [name for name in PAPERS_NAMES if f"`{name}`" in paragraph]
        if names:
            assert set(untied(paragraph, *names)) <= {OUR_WORD}, paragraph
        else:
            assert not written(paragraph), paragraph


# What the check must notice, by the page as it is.


def rows_of(section: str, head: str) -> list[str]:
    """The rows of the table whose first column has this head."""
    lines = section.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {head} |")) + 2
    return list(itertools.takewhile(lambda line: line.startswith("|"), lines[start:]))


def with_swapped_labels(section: str, first: str, second: str) -> str:
    """The section with the first cells of two rows exchanged, and so all their numbers."""
    labels = [row.split("|")[1] for row in (first, second)]
    swapped = {first: first.replace(*labels, 1), second: second.replace(*reversed(labels), 1)}
    return "\n".join(swapped.get(line, line) for line in section.splitlines())


TABLES = {
    "table1": "number",
    "figure4a": "architecture",
    "figure4b": "architecture",
    "figure6": "number",
    "table2": "number",
    "table3": "network",
    "recall_side": "number",
}


@pytest.mark.parametrize("name", TABLES)
def test_two_rows_whose_numbers_are_swapped_are_noticed(name: str) -> None:
    section = PAGE_SECTIONS[name]
    swapped = 0
    for first, second in itertools.combinations(rows_of(section, TABLES[name]), 2):
        # Rows with the same cells, as those of the LSTM and of Mamba in table3, may be swapped.
        if first.split("|")[2:] != second.split("|")[2:]:
            swapped += 1
            assert untied(with_swapped_labels(section, first, second), name), (first, second)
    assert swapped


@pytest.mark.parametrize("name", ["figure4a", "figure4b"])
def test_the_lstm_and_the_gru_cannot_change_places(name: str) -> None:
    """Everywhere in a section, table and sentences; then in the sentences alone."""
    section = PAGE_SECTIONS[name]
    for part in (section, "\n".join(row for row in section.splitlines() if row[:1] != "|")):
        turned = part.replace("LSTM", "@").replace("GRU", "LSTM").replace("@", "GRU")
        assert untied(part, name) == []
        assert untied(turned, name), name


@pytest.mark.parametrize("name", TABLES)
def test_the_two_scales_cannot_change_places(name: str) -> None:
    turned = PAGE_SECTIONS[name].replace("quick", "@").replace("paper scale", "quick scale")
    turned = turned.replace("@ scale", "paper scale").replace("@", "paper scale")
    # In table3 both scales say the same.
    assert bool(untied(turned, name)) == (name != "table3")


def test_a_row_that_no_number_is_known_for_is_noticed() -> None:
    assert untied(PAGE_SECTIONS["table1"].replace("| loss |", "| the loss |"), "table1")


@pytest.mark.parametrize("name", TABLES)
def test_every_number_of_a_table_is_noticed_when_its_last_digit_is_wrong(name: str) -> None:
    section, tried = PAGE_SECTIONS[name], 0
    for row in rows_of(section, TABLES[name]):
        start = section.index(row) + row.index("|", 1)
        for match in NUMBER.finditer(section, start, section.index(row) + len(row)):
            word = match.group()
            # Before the exponent.
            last = len(word.split("e")[0]) - 1
            wrong = word[:last] + str((int(word[last]) + 5) % 10) + word[last + 1 :]
            # "above 1" is a word of the page for a rule of the file.
            if section[match.start() - 6 : match.start()] != "above ":
                tried += 1
                edited = section[: match.start()] + wrong + section[match.end() :]
                assert untied(edited, name), (row, word, wrong)
    assert tried >= 8


def test_wrong_numbers_of_sentences_are_noticed() -> None:
    assert untied("A loss of 4.98e-8.", "table1") and not untied("A loss of 4.97e-8.", "table1")
    text = "`0.5` of 21 and 4.97e-8, 1,000 steps, two 2s, [1.5](x-1.5.md)"
    assert [bare(match) for match in written(text)] == ["21", "4.97e-8", "1000", "1.5"]
    assert agrees("4.97e-8", 4.974e-8) and not agrees("4.97e-8", 4.98e-8)


def test_architectures_are_told_apart_by_their_whole_names() -> None:
    text = "LRU In+Out MLP, LRU In+Out, LRUs, gated RNN, dense, gated RNNs and the GRU's"
    names = [name for name, _ in sources.architectures_in(text)]
    assert names == ["LRU In+Out MLP", "LRU In+Out", "LRU", "gated RNN, dense", "gated RNN", "GRU"]


# The table of claims.


@pytest.mark.parametrize("page", claims.PAGES)
def test_the_table_of_claims_is_that_of_the_result_files(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert claims.with_table(text, page) == text, "run python docs/claims.py"
    assert [row.experiment for row in claims.ROWS] == PAPERS_NAMES
    for correct, edited in (("4.97e-8", "4.98e-8"), ("| reproduced |", "| better |")):
        wrong = text.replace(correct, edited)
        assert claims.with_table(wrong, page) != wrong


def test_the_number_of_a_claim_has_the_verdict_of_its_experiment() -> None:
    with pytest.raises(ValueError, match="Choose a number with that verdict"):
        claims.read(claims.PAPER, claims.Row("table1", "", "score_kv", ""))


def test_a_number_of_ours_stands_for_no_claim(tmp_path) -> None:
    number = {"name": "loss", "value": 1.0, "paper": 1.0, "rule": "", "verdict": "reproduced"}
    contents = result("table1", numbers=[number | {"whose": "ours"}, number | {"name": "other"}])
    put(tmp_path, "table1", contents)
    assert claims.read(tmp_path, claims.Row("table1", "", "other", "")).value == 1.0
    with pytest.raises(ValueError, match="is ours"):
        claims.read(tmp_path, claims.Row("table1", "", "loss", ""))
