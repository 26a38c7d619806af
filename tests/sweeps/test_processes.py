"""Several processes train the runs of one command; the parent reads and judges."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from underhood.cli.entry import main
from underhood.sweeps.processes import rarely

# An experiment of one run.
NAME = "figure3a"


@pytest.mark.slow
def test_runs_of_processes_are_the_runs_of_one_process(tmp_path) -> None:
    # Not by main(): functions with checked types cannot travel to another process.
    command = [sys.executable, "-m", "underhood", "reproduce", NAME, "--scale", "smoke"]
    for engine in (["local"], ["processes", "--workers", "2"]):
        words = [*command, "--out", str(tmp_path / engine[0]), "--engine", *engine]
        subprocess.run(words, check=True, capture_output=True, timeout=300)
    numbers = [
        json.loads((tmp_path / engine / NAME / "result.json").read_text())["numbers"]
        for engine in ("local", "processes")
    ]
    assert numbers[0] == numbers[1]
    assert len(list((tmp_path / "processes/runs").iterdir())) == 1


def alive_in_session(session: int) -> list[str]:
    """Processes of a session that run; those that wait to be collected do not count."""
    states = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, its_session = path.read_text().rpartition(") ")[2].split()[:4]
            if int(its_session) == session and state != "Z":
                states.append(f"{path.parent.name} {state}")
    return states


@pytest.mark.slow
def test_ctrl_c_ends_the_processes_and_says_how_to_go_on(tmp_path) -> None:
    words = ["reproduce", NAME, "--scale", "quick", "--out", str(tmp_path / "out")]
    command = subprocess.Popen(
        [sys.executable, "-m", "underhood", *words, "--engine", "processes", "--workers", "1"],
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("out/runs/*/*")) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert list(tmp_path.glob("out/runs/*/*")), "training has begun"
    os.killpg(command.pid, signal.SIGINT)
    _, said = command.communicate(timeout=60)
    assert command.returncode == 130
    assert b"interrupted; finished work is kept; continue with --resume" in said
    assert b"Traceback" not in said
    deadline = time.monotonic() + 30
    while alive_in_session(command.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive_in_session(command.pid)


def test_progress_is_reported_rarely() -> None:
    reports = []
    tick = rarely(lambda done, total: reports.append(done))
    for done in range(1000):
        tick(done, 1000)
    assert 1 <= len(reports) < 20


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("processes",), "--engine processes needs --workers"),
        (("processes", "--workers", "0"), "give a whole number of at least 1"),
        (("processes", "--workers", "2", "--insecure"), "--insecure is for --engine dask"),
    ],
)
def test_options_that_do_not_fit_are_refused(words, said, capsys, tmp_path) -> None:
    out = tmp_path / "out"
    assert main(["reproduce", "reverse", "--out", str(out), "--engine", *words]) == 2
    assert said in capsys.readouterr().err
    assert not out.exists()
