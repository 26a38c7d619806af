"""Several processes with one command: they divide the runs, and each run is trained once."""

import json
import subprocess
import sys

import pytest

from underhood.cli.entry import main
from underhood.sweeps.engines import Shared

# Two experiments of one run each.
NAMES = ("figure3a", "recall_side")


@pytest.mark.slow
def test_two_processes_divide_the_runs_and_both_judge_all(tmp_path) -> None:
    words = ["reproduce", *NAMES, "--scale", "smoke", "--engine", "shared", "--out", str(tmp_path)]
    second = subprocess.Popen(
        [sys.executable, "-m", "underhood", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert main(words) == 0
    said, _ = second.communicate(timeout=300)
    assert second.returncode == 0, said.decode()
    for name in NAMES:
        result = json.loads((tmp_path / name / "result.json").read_text())
        assert result["verdict"] == "not judged"
    assert len(list((tmp_path / "runs").iterdir())) == 2


@pytest.mark.usefixtures("unhooked")
def test_what_another_process_trains_is_waited_for(tmp_path, monkeypatch) -> None:
    from underhood.sweeps import engines
    from underhood.training.storage.folder import BusyFolder

    looks = []

    def busy_twice(self, study, folder, progress):
        looks.append(folder)
        if len(looks) < 3:
            raise BusyFolder("Another process is training here.")
        return "the run"

    monkeypatch.setattr(engines.Local, "train", busy_twice)
    monkeypatch.setattr(engines, "SECONDS_BETWEEN_LOOKS", 0.0)
    assert Shared().train(None, tmp_path, lambda done, total: None) == "the run"
    assert len(looks) == 3


def test_options_of_dask_are_refused(capsys, tmp_path) -> None:
    words = ["reproduce", "reverse", "--engine", "shared", "--workers", "2"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    assert "--workers is for --engine dask" in capsys.readouterr().err
