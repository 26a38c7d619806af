"""Experiments at smoke scale, their files, and the rules that judge them."""

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
from underhood.experiments.registry import EXPERIMENTS
from underhood.experiments.running import outcomes, rules, runner
from underhood.experiments.running.outcomes import Outcome
from underhood.results.verdicts import overall

KEYS = {"experiment", "scale", "verdict", "numbers", "provenance"}


# Numbers at smoke scale are not judged, so few optimisations will do. All into one folder, as a
# user would, so that experiments find each other's runs.
@pytest.mark.usefixtures("quick_compile")
def test_all_experiments_run_and_write_their_results(tmp_path, capsys) -> None:
    assert main(["reproduce", "all", "--scale", "smoke", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr()
    for name in EXPERIMENTS:
        result = json.loads((tmp_path / name / "result.json").read_text())
        assert result.keys() >= KEYS
        assert result["verdict"] == "not judged"
        for number in result["numbers"]:
            assert number.keys() == {"name", "value", "paper", "rule", "verdict", "seeds"}
        expected = {"commit", "versions", "device", "seeds", "asked", "steps", "seconds"}
        assert result["provenance"].keys() == {*expected, "training"}
        assert name in said.out and f"{name}: runs" in said.err
        for kind in ("pdf", "svg", "png"):
            assert (tmp_path / name / f"figure.{kind}").stat().st_size > 5_000
        if result["arrays"]:
            arrays = safetensors.numpy.load_file(tmp_path / name / "arrays.safetensors")
            assert {key: list(array.shape) for key, array in arrays.items()} == result["arrays"]
    # table1 and figure2 share a run, and so do figure6 and figures 4a and 4b.
    runs = {path.name for path in (tmp_path / "runs").iterdir()}
    assert "teacher_student_smoke" in runs and not any("figure6" in name for name in runs)
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
    capsys.readouterr()


def test_a_failing_experiment_gives_status_1_and_the_others_still_run(
    tmp_path, capsys, monkeypatch
) -> None:
    broken = type(EXPERIMENTS["table3"])("breaks", lambda *_: 1 / 0, {})
    monkeypatch.setitem(EXPERIMENTS, "table3", broken)
    command = ["reproduce", "table3", "reverse", "--scale", "smoke", "--out", str(tmp_path)]
    assert main(command) == 1
    assert not (tmp_path / "table3").exists()
    assert (tmp_path / "reverse" / "result.json").exists()
    assert "ZeroDivisionError" in capsys.readouterr().err


def fails_with(error: Exception):
    def run(_setting):
        raise error

    return type(EXPERIMENTS["table3"])("breaks", run, {})


def test_one_that_is_refused_does_not_stop_the_others(tmp_path, capsys, monkeypatch) -> None:
    number = rules.at_most("n", 1.0, 1.0, what="n", paper=1, seeds=4)
    works = type(EXPERIMENTS["table3"])("works", lambda *_: Outcome(numbers=[number]), {})
    damaged = BadInput("members.json cannot be read; remove it.")
    for name, experiment in (
        ("table1", fails_with(damaged)),
        ("table2", fails_with(damaged)),
        ("table3", works),
        ("reverse", works),
    ):
        monkeypatch.setitem(EXPERIMENTS, name, experiment)
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
def test_a_result_without_its_arrays_is_not_finished(damage, tmp_path, monkeypatch, capsys) -> None:
    runs = []

    def count(_setting):
        runs.append(1)
        return Outcome(arrays={"curve": np.arange(100.0)})

    monkeypatch.setitem(EXPERIMENTS, "table3", type(EXPERIMENTS["table3"])("counts", count, {}))
    for module in (runner, outcomes):
        monkeypatch.setattr(module, "provenance", lambda: {"commit": "a" * 40})
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
    capsys.readouterr()


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
    assert "was not written by underhood; move it" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text() == "<html>mine</html>"


def test_strict_gives_status_1_when_a_claim_differs(tmp_path, monkeypatch, capsys) -> None:
    number = rules.at_most("n", 2.0, 1.0, what="n", paper=1, seeds=4)
    differing = type(EXPERIMENTS["table3"])("differs", lambda *_: Outcome(numbers=[number]), {})
    monkeypatch.setitem(EXPERIMENTS, "table3", differing)
    command = ["reproduce", "table3", "--out", str(tmp_path)]
    assert main(command) == 0
    assert main([*command, "--strict"]) == 1
    assert "differs" in capsys.readouterr().out


def test_medians_are_judged_from_four_seeds_on() -> None:
    def verdict(*values: float) -> str:
        return rules.no_more_than("n", list(values), 1.0, what="n").verdict

    assert verdict(0.05, 0.1, 0.1, 9.0) == "better"
    assert verdict(0.05, 2.9, 2.9, 9.0) == "reproduced"
    assert verdict(0.05, 3.1, 3.1, 9.0) == "differs"
    assert verdict(0.05, 0.05, 0.05) == "not judged"


def test_verdicts_follow_their_rules() -> None:
    assert rules.at_most("n", 1.0, 1.0, what="n", paper=1, seeds=1).verdict == "reproduced"
    assert rules.at_most("n", 1.1, 1.0, what="n", paper=1, seeds=1).verdict == "differs"
    assert rules.near("n", 2.1, 2, 0.2, what="n", paper=1, seeds=1).verdict == "reproduced"
    assert rules.near("n", 1.7, 2, 0.2, what="n", paper=1, seeds=1).verdict == "differs"
    assert overall([]) == "not run"
    assert overall(["better", "reproduced"]) == "reproduced"
    assert overall(["reproduced", "refuted"]) == "refuted"
    assert overall(["refuted", "differs"]) == "differs"


def test_finished_results_are_kept_on_resume(tmp_path, monkeypatch, capsys) -> None:
    runs = []

    def count(setting):
        runs.append(setting.seeds)
        number = rules.at_most("n", 1.0, 1.0, what="n", paper=1, seeds=4)
        return Outcome(numbers=[number])

    monkeypatch.setitem(EXPERIMENTS, "table3", type(EXPERIMENTS["table3"])("counts", count, {}))
    commit = "a" * 40
    for module in (runner, outcomes):
        monkeypatch.setattr(module, "provenance", lambda: {"commit": commit})
    command = ["reproduce", "table3", "--out", str(tmp_path)]
    assert main(command) == 0 and len(runs) == 1
    assert main([*command, "--resume"]) == 0 and len(runs) == 1
    # Other seeds, a larger scale, another commit, a changed tree, or no wish to resume: run again.
    assert main([*command, "--resume", "--seeds", "3"]) == 0 and len(runs) == 2
    assert main([*command, "--resume"]) == 0 and len(runs) == 3
    capsys.readouterr()
    before = (tmp_path / "table3" / "result.json").read_bytes()
    assert main([*command, "--resume", "--scale", "smoke"]) == 2 and len(runs) == 3
    said = capsys.readouterr().err
    assert "at quick scale" in said and "--out" in said and said.count("\n") == 1
    assert (tmp_path / "table3" / "result.json").read_bytes() == before
    assert main([*command, "--resume", "--scale", "paper"]) == 0 and len(runs) == 4
    assert main([*command, "--resume"]) == 2 and len(runs) == 4
    (tmp_path / "table3" / "result.json").unlink()
    assert main([*command, "--resume"]) == 0 and len(runs) == 5
    commit = "b" * 40
    assert main([*command, "--resume"]) == 0 and len(runs) == 6
    commit = "b" * 40 + "+"
    assert main([*command, "--resume"]) == 0 and len(runs) == 7
    assert main([*command, "--resume"]) == 0 and len(runs) == 8
    assert main(command) == 0 and len(runs) == 9
    (tmp_path / "table3" / "result.json").write_text("{")
    assert main([*command, "--resume"]) == 0 and len(runs) == 10
    capsys.readouterr()
