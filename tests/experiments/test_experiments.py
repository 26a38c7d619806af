"""Experiments at smoke scale, their files, and what is kept on --resume."""

import json
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import safetensors.numpy

from underhood.cli.entry import main
from underhood.common.errors import BadInput
from underhood.experiments.registry import EXPERIMENTS, SCALES, Experiment, at_scale
from underhood.experiments.running import outcomes, rules, runner
from underhood.experiments.running.outcomes import Outcome
from underhood.experiments.running.setting import Setting

KEYS = {"experiment", "scale", "verdict", "numbers", "provenance"}


@pytest.fixture
def replace(monkeypatch):
    """Put another function in the place of an experiment's."""

    def put(name: str, run) -> None:
        monkeypatch.setitem(
            EXPERIMENTS, name, Experiment("is made up", run, dict.fromkeys(SCALES, 1))
        )

    return put


@pytest.fixture
def commits(monkeypatch) -> list[str]:
    """Commits that the code is said to be at; the last one holds."""
    said = ["a" * 40]
    for module in (runner, outcomes):
        monkeypatch.setattr(module, "provenance", lambda: {"commit": said[-1]})
    return said


def outcome(value: float) -> Outcome:
    """A number that is reproduced if it is at most 1."""
    return Outcome(numbers=[rules.at_most("n", value, 1.0, what="n", paper=1, seeds=4)])


# Numbers at smoke scale are not judged, so few optimisations will do. All into one folder, as a
# user would, so that experiments find each other's runs.
def test_all_experiments_run_and_write_their_results(tmp_path, capsys) -> None:
    assert main(["reproduce", "all", "--scale", "smoke", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    for name in at_scale("smoke"):
        result = json.loads((tmp_path / name / "result.json").read_text())
        assert result.keys() >= KEYS
        assert result["verdict"] == "not judged"
        for number in result["numbers"]:
            assert number.keys() == {"name", "value", "paper", "rule", "verdict", "seeds", "whose"}
        expected = {"commit", "source", "versions", "device", "seeds", "asked", "steps", "seconds"}
        assert result["provenance"].keys() == {*expected, "training"}
        assert name in printed.out and f"{name}: runs" in printed.err
        for kind in ("pdf", "svg", "png"):
            assert (tmp_path / name / f"figure.{kind}").stat().st_size > 5_000
        if result["arrays"]:
            arrays = safetensors.numpy.load_file(tmp_path / name / "arrays.safetensors")
            assert {key: list(array.shape) for key, array in arrays.items()} == result["arrays"]
    # table1 and figure2 share a run, and so do figure6 and figures 4a and 4b.
    runs = {path.name for path in (tmp_path / "runs").iterdir()}
    assert "teacher_student_smoke" in runs and not any("figure6" in name for name in runs)
    # What experiments say they train is what they train, beside the short runs that follow.
    setting = Setting("smoke", None, tmp_path, lambda done, total: None)
    said = {
        setting.run_folder(run).name
        for name in at_scale("smoke")
        for run in EXPERIMENTS[name].studies(setting)
    }
    assert said == {run for run in runs if not run.startswith("fine_tuned")}
    page = (tmp_path / "report.html").read_text()
    assert "No figure" not in page and "It was not run" not in page
    # Of figures 4a and 4b alone, without the runs, figure6 is the same.
    shutil.rmtree(tmp_path / "runs")
    first, curves = (tmp_path / "figure6" / name for name in ("result.json", "arrays.safetensors"))
    before, drawn = json.loads(first.read_text()), curves.read_bytes()
    assert main(["reproduce", "figure6", "--scale", "smoke", "--out", str(tmp_path)]) == 0
    after = json.loads(first.read_text())
    assert not (tmp_path / "runs").exists() and curves.read_bytes() == drawn
    for what in ("numbers", "rows", "verdict"):
        assert after[what] == before[what]
    assert after["provenance"]["training"] == before["provenance"]["training"]
    assert sum("finished result of figure4" in note for note in after["notes"]) == 2


def test_a_failing_experiment_gives_status_1_and_the_others_still_run(tmp_path, capsys, replace):
    replace("table3", lambda *_: 1 / 0)
    command = ["reproduce", "table3", "reverse", "--scale", "smoke", "--out", str(tmp_path)]
    assert main(command) == 1
    assert not (tmp_path / "table3").exists()
    assert (tmp_path / "reverse" / "result.json").exists()
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_one_that_is_refused_does_not_stop_the_others(tmp_path, capsys, replace) -> None:
    def damaged(_setting):
        raise BadInput("members.json cannot be read; remove it.")

    for name in ("table1", "table2"):
        replace(name, damaged)
    for name in ("table3", "reverse"):
        replace(name, lambda _setting: outcome(1.0))
    # A file stands where the folder of a result should.
    (tmp_path / "reverse").write_text("mine")
    (tmp_path / "table3").mkdir()
    command = ["reproduce", "table1", "table2", "reverse", "table3", "--out", str(tmp_path)]
    assert main(command) == 1
    said = capsys.readouterr().err
    assert "underhood: table1, table2: members.json cannot be read; remove it.\n" in said
    assert "underhood: reverse: cannot use" in said and "Traceback" not in said
    assert (tmp_path / "table3" / "result.json").exists()
    # Where nothing could be done, one line and status 2.
    assert main(["reproduce", "table1", "table2", "--out", str(tmp_path)]) == 2
    assert "underhood: members.json cannot be read; remove it.\n" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["missing", "cut", "another's"])
def test_a_result_without_its_arrays_is_not_finished(damage, tmp_path, replace, commits) -> None:
    runs = []
    replace("table3", lambda _: runs.append(1) or Outcome(arrays={"curve": np.arange(100.0)}))
    command = ["reproduce", "table3", "--out", str(tmp_path), "--resume"]
    assert main(command) == 0 and main(command) == 0 and len(runs) == 1
    path = tmp_path / "table3" / "arrays.safetensors"
    whole = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(whole[:-8])
    else:
        safetensors.numpy.save_file({"curve": np.arange(99.0)}, path)
    assert main(command) == 0 and len(runs) == 2
    assert path.read_bytes() == whole


# Tests that run in the background have SIGINT ignored, and so has what they start.
COMMAND = """
import signal, sys
from underhood.cli.entry import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""


def test_two_interrupts_are_one(tmp_path) -> None:
    words = ["reproduce", "figure3b", "--scale", "smoke", "--out", str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert "figure3b: runs" in process.stderr.readline()
        # Into the compiling, and then into the end of the process.
        for pause in (1.0, 0.15):
            time.sleep(pause)
            process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == 130
    assert said == "underhood: interrupted; finished work is kept; continue with --resume.\n"


def test_a_page_of_somebody_else_is_not_replaced(tmp_path, capsys) -> None:
    (tmp_path / "report.html").write_text("<html>mine</html>")
    assert main(["reproduce", "reverse", "--scale", "smoke", "--out", str(tmp_path)]) == 2
    assert "report.html was not written by underhood; move it" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text() == "<html>mine</html>"


def test_strict_gives_status_1_when_a_claim_differs(tmp_path, replace, capsys) -> None:
    replace("table3", lambda _: outcome(2.0))
    command = ["reproduce", "table3", "--out", str(tmp_path)]
    assert main(command) == 0
    assert main([*command, "--strict"]) == 1
    assert "differs" in capsys.readouterr().out


def test_finished_results_are_kept_on_resume(tmp_path, replace, commits, capsys) -> None:
    runs, path = [], tmp_path / "table3" / "result.json"
    replace("table3", lambda _: runs.append(1) or outcome(1.0))

    def reproduced(status: int, count: int, *more: str) -> bool:
        ended = main(["reproduce", "table3", "--out", str(tmp_path), *more])
        return (ended, len(runs)) == (status, count)

    resume = "--resume"
    assert reproduced(0, 1) and reproduced(0, 1, resume)
    # Other seeds, a larger scale, another commit, a changed tree, or no wish to resume: run again.
    assert reproduced(0, 2, resume, "--seeds", "3") and reproduced(0, 3, resume)
    capsys.readouterr()
    before = path.read_bytes()
    assert reproduced(2, 3, resume, "--scale", "smoke")
    said = capsys.readouterr().err
    assert "at quick scale" in said and "--out" in said and said.count("\n") == 1
    assert path.read_bytes() == before
    assert reproduced(0, 4, resume, "--scale", "paper") and reproduced(2, 4, resume)
    path.unlink()
    assert reproduced(0, 5, resume)
    commits.append("b" * 40)
    assert reproduced(0, 6, resume)
    commits.append("b" * 40 + "+")
    assert reproduced(0, 7, resume) and reproduced(0, 8, resume) and reproduced(0, 9)
    path.write_text("{")
    assert reproduced(0, 10, resume)


def test_a_result_of_other_code_is_not_kept(tmp_path, replace, monkeypatch) -> None:
    runs, now = [], {"commit": "a" * 40, "source": "1"}
    for module in (runner, outcomes):
        monkeypatch.setattr(module, "provenance", lambda: dict(now))
    replace("table3", lambda _: runs.append(1) or outcome(1.0))
    command = ["reproduce", "table3", "--out", str(tmp_path), "--resume"]
    assert main(command) == 0 and main(command) == 0 and len(runs) == 1
    # UNDERHOOD_COMMIT may name the commit of code that was changed.
    now["source"] = "2"
    assert main(command) == 0 and len(runs) == 2
