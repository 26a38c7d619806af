"""Results on disk, the folders they may go to, and what is shown while they are made."""

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from underhood.cli.entry import main
from underhood.experiments.registry import EXPERIMENTS, SCALES, Experiment
from underhood.experiments.running import display
from underhood.experiments.running.display import ExperimentsDisplay
from underhood.experiments.running.outcomes import Outcome, judge_outcome
from underhood.experiments.running.rules import at_most, ours, shown
from underhood.results.files import (
    FORMAT,
    Result,
    plain_json,
    read_result,
    select_numbers,
    verdict_words,
    write_result,
)


@pytest.fixture
def made(monkeypatch) -> list[int]:
    """table3 replaced by an experiment of no time; its runs are counted."""
    runs: list[int] = []

    def run(setting) -> Outcome:
        runs.append(1)
        return Outcome(numbers=[at_most("n", 1.0, 1.0, what="n", paper=1, seeds=4)])

    monkeypatch.setitem(EXPERIMENTS, "table3", Experiment("is quick", run, dict.fromkeys(SCALES, 1)))
    return runs


def result_of(**fields) -> Result:
    number = at_most("n", np.float64(1.5), 2.0, what="n", paper=np.int64(2), seeds=4)
    return Result("table3", "quick", "reproduced", (number,), **{"rows": (), "notes": (), **fields})


def test_arrays_lie_beside_the_result_and_are_listed_with_their_shapes(tmp_path) -> None:
    arrays = {
        "steps": np.arange(3),
        "a/losses": np.array([[1.0, np.nan], [2.0, 3.0]]),
        # Neither in C's order nor with any axis.
        "turned": np.arange(6.0).reshape(2, 3).T,
        "scalar": np.array(7.0),
    }
    written = write_result(result_of(arrays=arrays), tmp_path)
    read = json.loads((tmp_path / "table3" / "result.json").read_text(encoding="utf-8"))
    assert read == written
    assert read["format"] == FORMAT
    assert read["arrays"] == {"steps": [3], "a/losses": [2, 2], "turned": [3, 2], "scalar": []}
    loaded = safetensors.numpy.load_file(tmp_path / "table3" / "arrays.safetensors")
    assert loaded.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded[name], array)
        assert loaded[name].dtype == array.dtype
    # Nothing else, no half-written file either.
    held = sorted(path.name for path in (tmp_path / "table3").iterdir())
    assert held == ["arrays.safetensors", "result.json"]


def test_numbers_are_json_s_and_what_is_not_finite_is_null(tmp_path) -> None:
    rows = (
        {"seed": np.int64(3), "loss": np.float32(0.5), "lost": np.nan, "holds": np.True_},
        {"seed": 4, "loss": np.inf, "lost": -np.inf, "holds": np.bool_(False)},
    )
    write_result(
        result_of(rows=rows, provenance={"seconds": np.float64(1.25), 7: (np.nan,)}), tmp_path
    )
    text = (tmp_path / "table3" / "result.json").read_text(encoding="utf-8")
    assert "NaN" not in text and "Infinity" not in text
    read = json.loads(text)
    assert read["rows"] == [
        {"seed": 3, "loss": 0.5, "lost": None, "holds": True},
        {"seed": 4, "loss": None, "lost": None, "holds": False},
    ]
    assert read["provenance"] == {"seconds": 1.25, "7": [None]}
    # There are no arrays, so none are written.
    assert read["arrays"] == {}
    assert [path.name for path in (tmp_path / "table3").iterdir()] == ["result.json"]
    assert (read["numbers"][0]["value"], read["numbers"][0]["paper"]) == (1.5, 2)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float64(0.5), 0.5),
        (np.int32(2), 2),
        (np.bool_(True), True),
        (np.str_("λ"), "λ"),
        (float("nan"), None),
        (np.float32("inf"), None),
        ((1, [np.int64(2)], {"a": np.nan}), [1, [2], {"a": None}]),
        ("nan", "nan"),
        (None, None),
        (10**400, 10**400),
    ],
)
def test_plain_values_are_of_python_s_kinds(value, expected) -> None:
    result = plain_json(value)
    assert result == expected and type(result) is type(expected)


def test_smoke_results_are_not_judged() -> None:
    number = at_most("n", 1.0, 2.0, what="n", paper=1, seeds=4)
    outcome = Outcome(numbers=[number], seeds=range(2), steps=7)
    for scale, verdict in (("quick", "reproduced"), ("smoke", "not judged")):
        result = judge_outcome("table3", scale, outcome, 1.239, asked=2)
        assert result.verdict == result.numbers[0].verdict == verdict
        origin = {name: result.provenance[name] for name in ("seeds", "asked", "steps", "seconds")}
        assert origin == {"seeds": [0, 1], "asked": 2, "steps": 7, "seconds": 1.24}
        assert result.provenance["training"] == []


def complaint(capsys) -> str:
    """The one line on stderr."""
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1 and output.err.startswith("underhood: ")
    return output.err


def reproduce(out: Path, *more: str) -> int:
    return main(["reproduce", "table3", "--out", str(out), *more])


def test_a_result_of_a_later_version_is_not_replaced(tmp_path, capsys, made) -> None:
    path = tmp_path / "table3" / "result.json"
    path.parent.mkdir()
    path.write_text('{"format": 99, "experiment": "table3"}')
    for more in ((), ("--resume",)):
        assert reproduce(tmp_path, *more) == 2
        assert "has format 99" in complaint(capsys)
    assert path.read_text() == '{"format": 99, "experiment": "table3"}'
    # Before anything else has run.
    assert main(["reproduce", "reverse", "table3", "--out", str(tmp_path)]) == 2
    assert not made and not (tmp_path / "reverse").exists()


@pytest.mark.parametrize("text", ["{", "[]", '{"format": "99"}', '{"format": 1}', "{}", ""])
def test_results_of_other_formats_or_none_are_replaced(text: str, tmp_path, made) -> None:
    path = tmp_path / "table3" / "result.json"
    path.parent.mkdir()
    path.write_text(text)
    assert reproduce(tmp_path) == 0
    assert json.loads(path.read_text(encoding="utf-8"))["verdict"] == "reproduced"


def test_a_folder_with_results_may_hold_other_files_too(tmp_path, made) -> None:
    assert reproduce(tmp_path) == 0
    (tmp_path / "notes.txt").write_text("mine")
    assert reproduce(tmp_path) == 0
    assert (tmp_path / "notes.txt").read_text() == "mine" and len(made) == 2


@pytest.mark.parametrize("held", ["runs", "figures", "report.html", ".hidden", "reverse"])
def test_what_we_write_ourselves_and_hidden_files_do_not_count(held, tmp_path, made):
    (tmp_path / held).mkdir()
    # A page cannot replace a folder: the results are there, and the status says what is missing.
    assert reproduce(tmp_path) == (1 if held == "report.html" else 0)


@pytest.mark.parametrize(
    ("out", "expected"),
    [("", "notes.txt"), ("notes.txt", "is a file"), ("notes.txt/deeper", "cannot be written")],
)
def test_what_is_not_a_folder_of_results_is_refused(out, expected, tmp_path, capsys, made) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert reproduce(tmp_path / out) == 2
    assert expected in complaint(capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"] and not made
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_written_is_refused_at_once(tmp_path, capsys, made, monkeypatch):
    def refuse(self, *_, **__) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    # Permissions do not bind root, so the file system is asked for nothing.
    monkeypatch.setattr(Path, "touch", refuse)
    assert reproduce(tmp_path) == 2
    assert "cannot be written: Permission denied" in complaint(capsys)
    assert not list(tmp_path.iterdir()) and not made


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["figur3a"], "Did you mean 'figure3a'?"),
        (["table3", "recal_side"], "Did you mean 'recall_side'?"),
        (["table3", "--scale", "quik"], "Did you mean 'quick'?"),
        (["table3", "--seeds", "0"], "--seeds is 0; give a whole number of at least 1"),
        (["table3", "--seeds", "-1"], "--seeds is -1; give a whole number"),
    ],
)
def test_misspelt_requests_write_nothing(words, expected, tmp_path, capsys, made) -> None:
    out = tmp_path / "new"
    assert main(["reproduce", *words, "--out", str(out)]) == 2
    assert expected in complaint(capsys)
    assert not out.exists() and not made


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """The seconds that the display believes have passed."""
    now = [0.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    return now


def test_without_a_terminal_every_experiment_has_two_lines(capsys, clock) -> None:
    with ExperimentsDisplay({"a": 60, "b": 20}) as shown:
        tick = shown.start("a")
        for done in range(50):
            tick(done, 50)
        clock[0] = 40
        shown.finish("a", "reproduced")
        shown.finish("b", "differs, finished before")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "a: runs, about 80 s left in all",
        "a: reproduced after 40 s",
        "b: differs, finished before",
    ]


def test_the_time_left_falls_as_shares_grow(clock) -> None:
    shown = ExperimentsDisplay({"a": 80, "b": 20})
    # 100 s, in whole minutes.
    assert shown.left() == "about 2 min"
    tick = shown.start("a")
    clock[0] = 20
    # Early on the budget less what has passed; then what the share foretells.
    for share, left in ((0.1, 80), (0.25, 80), (0.5, 40), (0.8, 25), (1.0, 20)):
        tick(share, 1)
        assert shown.left() == f"about {left} s"
    # Half of its budget was enough: the other will need half of its own.
    clock[0] = 40
    shown.finish("a", "reproduced")
    assert shown.left() == "about 10 s"
    shown.start("b")
    # What takes longer than its budget has no time left, not less than none.
    for now, left in ((45, 5), (500, 0)):
        clock[0] = now
        assert shown.left() == f"about {left} s"
    shown.finish("b", "failed")
    assert shown.left() == "about 0 s"


@pytest.mark.parametrize(
    ("done", "total", "share"), [(3, 2, 1), (-1, 2, 0), (0, 0, 1), (1, 4, 0.25)]
)
def test_shares_stay_between_nothing_and_all(done, total, share) -> None:
    shown = ExperimentsDisplay({"a": 10})
    shown.start("a")(done, total)
    assert shown.shares["a"] == share


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_table_instead_of_lines(monkeypatch, clock) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stderr", terminal)
    with ExperimentsDisplay({"first": 60, "second": 30}) as shown:
        shown.start("first")(1, 2)
        clock[0] = 20
        shown.finish("first", "reproduced")
        shown.start("second")(0, 1)
        shown.live.refresh()
        during = terminal.getvalue()
        shown.finish("second", "differs")
    after = terminal.getvalue()[len(during) :]
    # A third of the budget so far.
    for expected in ("first", "20 s", "reproduced", "second", "runs", "1 of 2", "about 10 s left"):
        assert expected in during
    for expected in ("differs", "2 of 2", "about 0 s left"):
        assert expected in after
    assert "runs, about" not in during + after


def test_the_table_has_a_line_per_experiment_and_one_for_all(clock) -> None:
    from rich.console import Console

    shown = ExperimentsDisplay({"first": 60, "second": 30})
    shown.start("first")
    console = Console(width=80, file=io.StringIO())
    console.print(shown.table())
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("first") and lines[0].rstrip().endswith("runs")
    assert lines[1].startswith("second") and lines[1].rstrip().endswith("waits")
    assert lines[2].startswith("0 of 2")


def test_a_number_of_a_file_without_the_field_is_the_papers(tmp_path) -> None:
    write_result(result_of(), tmp_path)
    path = tmp_path / "table3/result.json"
    contents = json.loads(path.read_text(encoding="utf-8"))
    (number,) = contents["numbers"]
    del number["whose"]
    ours, strange = number | {"whose": "ours"}, number | {"whose": ["?"]}
    path.write_text(json.dumps(contents | {"numbers": [number, ours, strange]}), encoding="utf-8")
    read = read_result(path)
    assert [entry["whose"] for entry in read["numbers"]] == ["paper", "ours", "paper"]
    assert len(select_numbers(read, "ours")) == 1


def test_the_words_of_a_verdict() -> None:
    number = vars(at_most("n", 3.0, 2.0, what="n", paper=2, seeds=4))
    assert verdict_words(number) == "differs"
    assert verdict_words(vars(ours(at_most("n", 3.0, 2.0, what="n", paper=2, seeds=4)))) == (
        "does not hold"
    )
    assert verdict_words(vars(ours(at_most("n", 1.0, 2.0, what="n", paper=2, seeds=4)))) == "holds"
    # What the experiments call shown is what the readers know by this rule.
    assert verdict_words(vars(shown("n", 1.0, seeds=2))) == ""
