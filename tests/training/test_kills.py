"""Killed runs: whatever stops a process, the same call ends in the same bits."""

import contextlib
import errno
import fcntl
import itertools
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import killable
import numpy as np
import pytest
from killable import STEPS, train
from stored import assert_same, assert_whole, hidden, steps_kept

import underhood as uh
from underhood.training.storage.folder import KEPT_CHECKPOINTS

pytestmark = pytest.mark.usefixtures("unhooked", "cache")


class Forks:
    """Runs in processes of their own; see killable.py."""

    def __init__(self, cache: Path):
        self.server = subprocess.Popen(
            [sys.executable, killable.__file__, str(cache)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, out: Path, **changes: Any) -> int:
        """The number of the process that runs now."""
        request = {"out": str(out), "chunk_seconds": 1.0, "largest_file": None} | changes
        self.server.stdin.write(json.dumps(request) + "\n")
        self.server.stdin.flush()
        return int(self.server.stdout.readline())

    def wait(self, happened: Callable[[], Any]) -> None:
        """Until something happens or the process ends."""
        deadline = time.monotonic() + 60
        while not happened() and not select.select([self.server.stdout], [], [], 0.001)[0]:
            assert time.monotonic() < deadline

    def ended(self) -> dict[str, Any]:
        """How the process ended; waits for it."""
        return json.loads(self.server.stdout.readline())

    def kill(self, process: int) -> bool:
        """Whether the process was still alive."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        status = self.ended()["status"]
        assert status in (0, -signal.SIGKILL)
        return status != 0


@pytest.fixture(scope="module")
def forks(straight, tmp_path_factory) -> Iterator[Forks]:
    forks = Forks(tmp_path_factory.mktemp("cache"))
    with forks.server:
        # The first run fills the cache, so that a fork that is killed leaves no half of an entry.
        forks.start(folder := tmp_path_factory.mktemp("forks"))
        assert forks.ended() == {"status": 0, "error": ""}
        assert_same(uh.Run.load(folder), straight)
        yield forks
    assert forks.server.returncode == 0


def test_thirty_kills_change_no_bit(straight, forks, tmp_path) -> None:
    rng = np.random.default_rng(0)
    # A run that gets to its end although it is killed is followed by another.
    folders = (tmp_path / str(number) for number in itertools.count())
    folder = next(folders)
    kills, in_writing, at_the_end, resumed_from = 0, 0, 0, set()

    began = time.monotonic()
    process = forks.start(folder, chunk_seconds=0.0)
    forks.wait(lambda: steps_kept(folder))
    until_first_step = time.monotonic() - began
    kills += forks.kill(process)

    while kills < 30:
        before = steps_kept(folder)[0] if steps_kept(folder) else 0
        stage = rng.choice(["compile", "steps", "end"], p=[0.4, 0.5, 0.1])
        chunk_seconds = 1.0 if stage == "end" else float(rng.choice([0.0, 0.005, 0.02]))
        process = forks.start(folder, chunk_seconds=chunk_seconds)
        if stage == "compile":
            time.sleep(rng.uniform(0, until_first_step))
        elif stage == "steps":
            forks.wait(lambda folder=folder, before=before: steps_kept(folder)[:1] > [before])
            time.sleep(rng.uniform(0, 0.06))
        else:
            forks.wait(lambda folder=folder: steps_kept(folder)[:1] == [STEPS])
            time.sleep(rng.uniform(0, until_first_step / 2))
        alive = forks.kill(process)
        assert_whole(folder)
        kept = steps_kept(folder)
        assert (kept[0] if kept else 0) >= before
        assert len(kept) <= KEPT_CHECKPOINTS + 1
        if alive:
            kills += 1
            resumed_from.add(before)
            in_writing += bool(hidden(folder))
            at_the_end += kept[:1] == [STEPS]
        if (folder / "members.json").exists():
            assert_same(uh.Run.load(folder), straight)
            folder = next(folders)

    forks.start(folder)
    assert forks.ended() == {"status": 0, "error": ""}
    assert_same(uh.Run.load(folder), straight)
    assert not hidden(folder)
    assert len(steps_kept(folder)) == KEPT_CHECKPOINTS
    assert len(resumed_from) >= 6
    assert in_writing >= 3
    assert at_the_end >= 1


def test_a_folder_has_one_process_at_a_time(straight, forks, tmp_path) -> None:
    process = forks.start(tmp_path, chunk_seconds=0.0)
    try:
        forks.wait(lambda: steps_kept(tmp_path))
        os.kill(process, signal.SIGSTOP)
        with pytest.raises(uh.BadInput, match=rf"process \(number {process}\) is training"):
            train(out=tmp_path)
    finally:
        assert forks.kill(process)
    assert 0 < steps_kept(tmp_path)[0] < STEPS
    assert_same(train(out=tmp_path), straight)


def test_a_file_system_without_locks_is_not_another_process(monkeypatch, tmp_path) -> None:
    def flock(file: Any, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises((uh.BadInput, OSError), match="No locks available"):
        train(out=tmp_path)


def test_a_file_that_may_not_be_written_is_said_in_one_line(straight, forks, tmp_path) -> None:
    # Settings fit, a checkpoint does not.
    forks.start(tmp_path, largest_file=4000)
    ending = forks.ended()
    assert ending["status"] == 1
    assert re.fullmatch(
        r"OSError: \[Errno 27\] File too large; .* was not written.* are whole\. Make room and run "
        r"the same call again to go on: '.*0000000001\.safetensors'",
        ending["error"],
    )
    assert (tmp_path / "settings.json").exists()
    assert not steps_kept(tmp_path)
    assert not hidden(tmp_path)
    assert_whole(tmp_path)
    assert_same(train(out=tmp_path), straight)


def test_what_a_killed_process_was_writing_is_removed_and_nothing_else(
    straight, stopped, tmp_path
) -> None:
    folder = shutil.copytree(stopped, tmp_path / "run")
    names = ("settings.json", "members.json", "models.safetensors", "losses.safetensors")
    left = [folder / f".{name}.a1b2c3" for name in names]
    left.append(folder / "checkpoints" / ".0000000123.safetensors.a1b2c3")
    # out="." is somebody's own folder.
    theirs = [folder / ".pre-commit-config.yaml", folder / ".notes.txt", folder / "notes.txt"]
    for path in (*left, *theirs):
        path.write_text("half")
    (folder / ".cache.d").mkdir()
    assert_same(train(out=folder), straight)
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in (*theirs, folder / ".cache.d"))
