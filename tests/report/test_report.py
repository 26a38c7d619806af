"""The report: safe with any file, complete with none, small and offline."""

import base64
import json
import re
import zlib
from html.parser import HTMLParser

import numpy as np
import pytest
import safetensors.numpy
from result_files import COMMITTED, page_of, put, result

from underhood.cli.entry import main
from underhood.cli.printing import VERDICT_STYLES, console, details, summary_table, verdict_table
from underhood.experiments.protocols.architectures import ARCHITECTURES
from underhood.experiments.registry import EXPERIMENTS
from underhood.report import page as report_page
from underhood.report.charts import PALETTE, share_lists
from underhood.report.curves import COLOURS
from underhood.report.figures import CAPTIONS, FIGURES
from underhood.report.page import SIGNS, packed_json
from underhood.report.tallies import deciding, tally_of_ours, what_we_found
from underhood.results.architectures import ARCHITECTURE_NAMES
from underhood.results.claims import CLAIMS, PAPER_CLAIMS
from underhood.results.files import FORMAT, find

LARGEST = 1_000_000
TABLE3 = json.loads((COMMITTED["paper"] / "table3/result.json").read_text())
NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;{{ 7*7 }}"


def unpacked(text: str) -> dict:
    """What page.js reads of packed charts."""
    return json.loads(zlib.decompress(base64.b64decode(text)))


class Reader(HTMLParser):
    """Tags, attributes and texts as a browser would see them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data) -> None:
        self.texts.append(data)

    def all(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.tags if name == tag]


# What the parts promise each other across folders that may not import one another.


def test_claims_figures_architectures_and_verdicts_agree_with_the_experiments() -> None:
    assert [claim.name for claim in CLAIMS] == list(FIGURES) == list(EXPERIMENTS)
    assert set(CAPTIONS) == set(FIGURES)
    assert tuple(architecture.name for architecture in ARCHITECTURES) == ARCHITECTURE_NAMES
    assert len(COLOURS) == len(ARCHITECTURE_NAMES)
    assert set(SIGNS) == set(VERDICT_STYLES)
    assert all(0 <= colour < len(PALETTE) for colour in COLOURS)


def test_scripts_define_every_name_once_and_build_no_markup_from_strings() -> None:
    text = report_page.script()
    names = re.findall(r"^(?:async )?(?:function\*?|class|const|let) (\w+)", text, re.M)
    assert len(names) > 50
    assert sorted(names) == sorted(set(names))
    assert not re.search(r"^(import|export)\b", text, re.M)
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
    assert not re.search(forbidden, text)


# The page.


@pytest.mark.parametrize("scale", COMMITTED)
def test_the_committed_results_make_a_whole_page_that_leads_nowhere(scale: str, tmp_path) -> None:
    text = page_of(COMMITTED[scale], tmp_path / "report.html")
    assert len(text.encode()) < LARGEST
    read = Reader(text)
    claims = [tag["data-claim"] for tag in read.all("section") if "data-claim" in tag]
    # The paper's always; ours where they were run.
    shown = [
        claim.name for claim in CLAIMS if not claim.ours or (COMMITTED[scale] / claim.name).exists()
    ]
    assert claims == shown
    charts = unpacked(re.search(r'id="charts">(.*?)</script>', text, re.S)[1])["charts"]
    places = [int(tag["data-chart"]) for tag in read.all("div") if "data-chart" in tag]
    assert places == list(range(len(charts)))
    assert len(charts) >= len(shown)
    # All fifteen are there, at both scales.
    assert "No figure" not in text and "It was not run." not in text
    for name in shown:
        assert f"underhood reproduce {name} --scale {scale}" in text
    for tag, attributes in read.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form")
        assert "src" not in attributes
        assert attributes.get("href", "#").startswith("#")
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
    assert not re.search(r"@import|url\((?!#)", report_page.style())


def test_verdicts_lead_to_sections_and_the_policy_allows_the_page_s_script_alone(tmp_path) -> None:
    text = page_of(put(tmp_path, "table1", result()), tmp_path / "report.html")
    read = Reader(text)
    links = [tag["href"] for tag in read.all("a") if tag.get("href", "").startswith("#claim-")]
    anchors = [f"#{tag['id']}" for tag in read.all("section") if tag.get("id")]
    assert len(links) == len(PAPER_CLAIMS)
    assert set(links) <= set(anchors)
    policies = {tag.get("http-equiv"): tag.get("content") for tag in read.all("meta")}
    policy = policies["Content-Security-Policy"]
    inline = re.search(r'<script type="module">(.*?)</script>', text, re.S)[1]
    styles = re.search(r"<style>(.*?)</style>", text, re.S)[1]
    assert f"script-src '{report_page.policy_hash(inline)}'" in policy
    assert f"style-src '{report_page.policy_hash(styles)}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


def test_hostile_strings_are_text(tmp_path) -> None:
    long = "long" * 5_000
    nasty = result(
        "table1",
        scale=NASTY,
        verdict=NASTY,
        numbers=[dict.fromkeys(("name", "value", "paper", "rule", "verdict", "seeds"), NASTY)],
        rows=[{NASTY: NASTY, long: long}],
        notes=[NASTY],
        provenance={"commit": NASTY, "versions": {NASTY: NASTY}, "training": [{"device": NASTY}]},
    )
    put(tmp_path, "table1", nasty)
    put(tmp_path, "other", result(NASTY))
    text = page_of(tmp_path, tmp_path / "report.html")
    read = Reader(text)
    assert [tag.get("type") for tag in read.all("script")] == ["text/plain", "module"]
    assert not read.all("img")
    assert "alert(1)" not in re.sub(r"&lt;/?script&gt;alert\(1\)", "", text)
    assert any(NASTY in piece for piece in read.texts)
    assert "{{ 7*7 }}" in text and long in text


def test_series_names_cannot_leave_the_data(tmp_path) -> None:
    text = packed_json({"name": "</script><!--\u2028"})
    assert re.fullmatch("[A-Za-z0-9+/=]+", text)
    assert unpacked(text) == {"name": "</script><!--\u2028"}


BROKEN = {
    "newer": json.dumps(result(format=FORMAT + 98)),
    "not JSON": "{",
    "not text": "\udcff",
    "a list": "[1, 2]",
    "empty": "",
    "lacks numbers": json.dumps({"experiment": "table1"}),
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_file_that_cannot_be_shown_is_named_with_the_reason(kind: str, tmp_path, capsys) -> None:
    (tmp_path / "table1").mkdir()
    text = BROKEN[kind].encode(errors="surrogateescape")
    (tmp_path / "table1/result.json").write_bytes(text)
    put(tmp_path, "reverse", result("reverse"))
    assert main(["report", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    assert page.count("Its file cannot be shown") == 2
    assert ("format 99" in page) == (kind == "newer")
    said = capsys.readouterr().err
    assert "left out table1/result.json" in said and "Traceback" not in said


PARTIAL = {
    "no numbers": {"numbers": []},
    "numbers of another kind": {"numbers": {"a": 1}},
    "numbers that are texts": {"numbers": ["a", None, 3]},
    "a number without a name": {"numbers": [{"value": 1.0}]},
    "values of another kind": {"numbers": [{"name": "a", "value": [1], "paper": {"b": 2}}]},
    "rows of another kind": {"rows": 7},
    "rows that differ": {"rows": [{"a": 1}, {"b": None}, "text"]},
    "notes of another kind": {"notes": "one"},
    "no provenance": {"provenance": None},
    "strange provenance": {"provenance": {"seeds": 4, "versions": [1], "training": {"a": 1}}},
}


@pytest.mark.parametrize("kind", PARTIAL)
def test_partial_results_still_make_a_page(kind: str, tmp_path) -> None:
    put(tmp_path, "table1", result(**PARTIAL[kind]))
    assert main(["report", str(tmp_path), "--no-figures"]) == 0
    assert "No figure: arrays.safetensors is not there" in (tmp_path / "report.html").read_text()


def test_arrays_that_do_not_fit_are_said_on_the_page(tmp_path, capsys) -> None:
    put(tmp_path, "figure3a", result("figure3a"), {"sizes": np.zeros((2, 2))})
    put(tmp_path, "table2", result("table2"), {"powers": np.zeros(3), "coefficients": np.eye(2)})
    put(tmp_path, "recall_side", result("recall_side"))
    (tmp_path / "recall_side/arrays.safetensors").write_bytes(b"nothing of the kind")
    contents = result("reverse", arrays={"linear": [5], "gated": [5]})
    put(tmp_path, "reverse", contents, {"linear": np.ones(5), "gated": np.ones(4)})
    assert main(["report", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "it lacks &#39;excess&#39;" in page
    assert "has another shape of &#39;gated&#39; than the result says" in page
    assert page.count("No figure:") == 4
    assert capsys.readouterr().err.count("no figure of") == 4


SPOILT = {
    "all NaN": lambda array: np.full(array.shape, np.nan) if array.dtype.kind == "f" else array,
    "all zero": np.zeros_like,
    "no rows": lambda array: array[:0],
    "one column": lambda array: array[..., :1],
}


@pytest.mark.parametrize("kind", SPOILT)
def test_spoilt_arrays_spoil_their_own_figure_alone(kind: str, tmp_path, capsys) -> None:
    """Whatever is in the arrays: a page with all sections, and no traceback."""
    for name in ("figure2", "figure3a", "lstm_weights", "recall_gated"):
        source = COMMITTED["paper"] / name / "arrays.safetensors"
        contents = json.loads((source.parent / "result.json").read_text())
        spoilt = {}
        for key, array in safetensors.numpy.load_file(source).items():
            spoilt[key] = SPOILT[kind](array) if array.ndim else array
            contents["arrays"][key] = list(spoilt[key].shape)
        put(tmp_path, source.parent.name, contents, spoilt)
    put(tmp_path, "table3", TABLE3)
    assert main(["report", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "data-chart=" in page and page.count("<section") == len(PAPER_CLAIMS) + 2
    assert "Traceback" not in capsys.readouterr().err
    assert (tmp_path / "table3/figure.pdf").exists()
    assert not list(tmp_path.glob("*/.figure*"))


def test_the_page_tells_what_holds_and_what_does_not() -> None:
    names = {"a": "better", "b": "reproduced", "c": "differs", "d": "refuted", "e": "not judged"}
    numbers = [{"name": name, "verdict": verdict} for name, verdict in names.items()]
    text = what_we_found({"numbers": numbers})
    assert text == "2 of 4 judged numbers of the paper hold; differs: c; refuted: d; 1 not judged."
    assert "Nothing was judged" in what_we_found({"numbers": numbers[-1:]})
    ours = [number | {"whose": "ours"} for number in numbers]
    assert tally_of_ours(ours) == "Ours: 2 hold, 2 do not hold, 1 not judged."
    text = what_we_found({"numbers": [numbers[1], *ours, SHOWN_NUMBER]})
    assert text == (
        "1 of 1 judged numbers of the paper hold. "
        "Ours: 2 hold, 2 do not hold, 1 not judged, 1 shown without a verdict."
    )


def test_the_deciding_number_is_the_first_of_the_worst_that_the_paper_has() -> None:
    numbers = [
        {"name": "a", "verdict": "reproduced", "paper": 1},
        {"name": "b", "verdict": "differs", "paper": None},
        {"name": "c", "verdict": "differs", "paper": 2},
    ]
    assert deciding({"verdict": "differs", "numbers": numbers})["name"] == "c"
    assert deciding({"verdict": "differs", "numbers": numbers[:2]})["name"] == "b"
    assert deciding({"verdict": "refuted", "numbers": numbers})["name"] == "a"
    assert deciding({"verdict": "refuted", "numbers": []}) is None
    # A number of ours decides nothing, whatever its verdict.
    ours = numbers[1] | {"whose": "ours", "paper": 3}
    assert deciding({"verdict": "differs", "numbers": [ours, *numbers]})["name"] == "c"
    # Only an experiment of our own has none of the paper's.
    assert deciding({"verdict": "differs", "numbers": [ours]})["name"] == "b"


SHOWN_NUMBER = {"name": "untrained", "value": 0.25, "paper": None, "seeds": 4, "whose": "ours"}
SHOWN_NUMBER |= {"rule": "shown, not judged", "verdict": "not judged"}


def both_kinds() -> dict:
    """A result with numbers of the paper and of ours, which stand first in the file."""
    contents = result()
    (loss,) = contents["numbers"]
    ours = loss | {"name": "polished", "verdict": "differs", "whose": "ours"}
    return contents | {"numbers": [SHOWN_NUMBER, ours, loss | {"whose": "paper"}]}


def test_the_page_parts_the_paper_s_numbers_from_ours(tmp_path) -> None:
    text = page_of(put(tmp_path, "table1", both_kinds()), tmp_path / "report.html")
    totals = re.search(r'<p class="totals">(.*?)</p>', text, re.S)[1]
    assert "1 reproduced" in totals and "14 not run" in totals and "differs" not in totals
    second = re.search(r'<p class="totals-ours[^>]*>(.*?)</p>', text, re.S)[1]
    assert second.startswith("Ours: 1 do not hold, 1 shown without a verdict.")
    numbers = re.search(r'<details class="numbers".*?</details>', text, re.S)[0]
    papers, ours = re.findall(r'<tbody data-whose="(\w+)">(.*?)</tbody>', numbers, re.S)
    assert (papers[0], ours[0]) == ("paper", "ours")
    assert ">loss<" in papers[1] and "✓</span> reproduced" in papers[1]
    assert "Beside the paper: ours" in ours[1] and "Beside the paper" not in papers[1]
    _, _, untrained, polished = re.split("<tr", ours[1])
    assert ">polished<" in polished and 'data-verdict="differs"' in polished
    assert "does not hold" in polished
    assert ">untrained<" in untrained and "shown, not judged" in untrained
    assert "data-verdict" not in untrained


def test_a_page_without_numbers_of_ours_does_not_speak_of_them(tmp_path) -> None:
    text = page_of(put(tmp_path, "table1", result()), tmp_path / "report.html")
    assert 'class="totals-ours' not in text and "Beside the paper" not in text


def test_the_terminal_parts_the_paper_s_numbers_from_ours(tmp_path, capsys) -> None:
    read = find(put(tmp_path, "table1", both_kinds())).results
    console().print(verdict_table(read), summary_table(read, ["table1", "table2"]))
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    names = ("loss", "beside the paper: ours", "polished", "untrained")
    at = {
        name: next(i for i, line in enumerate(lines) if re.search(rf"(^|  ){name}( |$)", line))
        for name in names
    }
    assert at["loss"] < at["beside the paper: ours"] < at["untrained"] < at["polished"]
    assert lines[at["loss"]].endswith("reproduced")
    assert lines[at["polished"]].endswith("does not hold")
    assert lines[at["untrained"]].endswith("4")
    summary = next(line for line in lines if line.startswith("table1") and "1 reproduced" in line)
    assert summary.endswith("1 shown, 1 does not hold")
    total = next(line for line in lines if line.startswith("in total"))
    assert "the paper's claims: 1 reproduced, 1 not run" in total


def test_the_terminal_shows_short_tables_row_by_row(capsys) -> None:
    for count, words in ((2, "neurons"), (260, "260 rows, which the page of the report shows")):
        console().print(details(result() | {"rows": count * [{"neurons": 3}]}, "a claim"))
        printed = capsys.readouterr().out
        assert words in printed and len(printed.splitlines()) < 20


def test_the_terminal_leaves_sentences_to_the_page(capsys) -> None:
    row = {"neurons": 3, "how": "1 layer by compile, form minimal."}
    console().print(details(result() | {"rows": [row]}, "a claim"))
    printed = capsys.readouterr().out
    assert "neurons" in printed and "how" not in printed and "layer" not in printed


def test_claims_of_our_own_are_tallied_apart_and_hold_or_do_not(tmp_path, capsys) -> None:
    ours = result("identifiability") | {"verdict": "differs"}
    ours["numbers"] = [number | {"whose": "ours"} for number in ours["numbers"]]
    put(tmp_path, "table1", result())
    put(tmp_path, "identifiability", ours)
    read = find(tmp_path).results
    console().print(summary_table(read, ["table1", "identifiability", "weight_decay"]))
    text = " ".join(capsys.readouterr().out.split())
    assert "the paper's claims: 1 reproduced" in text
    assert "claims of our own: 1 does not hold, 1 not run" in text
    page = page_of(tmp_path, tmp_path / "report.html")
    totals = re.search(r'class="totals">(.*?)</p>', page, re.S)[1]
    beyond = re.search(r'class="totals-beyond">(.*?)</p>', page, re.S)[1]
    assert "1 reproduced" in totals and "does not hold" not in totals
    assert "1 does not hold" in beyond and "differs" not in re.sub(r'"[^"]*"', "", beyond)


def test_long_lists_that_repeat_are_sent_once() -> None:
    steps, short = list(range(30)), [1, 2]
    charts = [{"x": steps, "y": [0.5] * 30, "z": short}, {"deep": [{"x": steps, "z": short}]}]
    sent = share_lists(charts)
    assert sent["shared"] == [steps]
    place = {"shared": 0}
    assert sent["charts"][0] == {"x": place, "y": [0.5] * 30, "z": short}
    assert sent["charts"][1] == {"deep": [{"x": place, "z": short}]}


# The command.

WRONG = {
    "report {file}": "is a file; give the folder",
    "report {parent}": "did you mean",
    "report {folder} -o {folder}": "is a folder, or lies in one that does not exist",
    "report {folder} -o {folder}/absent/page.html": "lies in one that does not exist",
    "report {folder} -o {file}": "is not a report",
    "report {folder} --figuers": "Did you mean '--figures'?",
    "report {folder} --no-figurs": "Did you mean '--no-figures'?",
    "report {folder}/reverse": "it is one result; did you mean",
}


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_request_gets_one_line_and_writes_nothing(words: str, tmp_path, capsys) -> None:
    folder = put(tmp_path / "results/quick", "reverse", result("reverse"))
    places = {"folder": folder, "parent": folder.parent, "file": tmp_path / "file.txt"}
    places["file"].write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    assert main([word.format(**places) for word in words.split()]) == 2
    said = capsys.readouterr().err
    assert WRONG[words] in said and said.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before
    assert places["file"].read_text() == "mine"


def test_figures_lie_beside_the_page_where_an_output_is_given(tmp_path) -> None:
    folder = put(tmp_path / "results", "table3", TABLE3)
    assert main(["report", str(folder), "-o", str(tmp_path / "mine.html")]) == 0
    figures = sorted(path.name for path in (tmp_path / "mine_figures/table3").iterdir())
    assert figures == ["figure.pdf", "figure.png", "figure.svg"]
    assert [path.name for path in folder.rglob("*.*")] == ["result.json"]


def test_a_report_replaces_a_report_and_other_studies_get_sections_too(tmp_path) -> None:
    put(tmp_path, "mine", result("my own study"))
    for _ in range(2):
        assert main(["report", str(tmp_path), "--no-figures"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "report.html"]
    page = (tmp_path / "report.html").read_text()
    assert 'data-claim="my own study"' in page
    assert page.count("It was not run.") == 2 * len(PAPER_CLAIMS)
