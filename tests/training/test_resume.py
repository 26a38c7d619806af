"""Stopped runs: chunks, Ctrl-C, damaged checkpoints and full disks change no bit."""

import errno
import os
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import stored
from killable import STEPS, make_student, make_task, train

import underhood as uh
from underhood.training.arrangement import first_group_state
from underhood.training.ensemble import make_ensemble
from underhood.training.storage import folder as storage

pytestmark = pytest.mark.usefixtures("unhooked", "cache")

CASES = {"one lane": ({"lanes": 1}, "straight"), "padded": (stored.PADDED, "straight_padded")}


@pytest.fixture(params=CASES)
def case(request, cache) -> tuple[dict[str, Any], uh.Run]:
    """Arguments of a call, and the run that it must give."""
    arguments, name = CASES[request.param]
    return arguments, request.getfixturevalue(name)


def test_where_chunks_are_cut_changes_no_bit(case, monkeypatch) -> None:
    arguments, expected = case
    starts = stored.noted_steps(monkeypatch)
    stored.chunks_of(monkeypatch, 1e9)
    stored.assert_same(train(**arguments), expected)
    assert starts == stored.LONG_CHUNKS
    starts.clear()
    stored.chunks_of(monkeypatch, 0.0)
    stored.assert_same(train(**arguments), expected)
    assert starts == list(range(STEPS))


def test_after_ctrl_c_the_same_call_goes_on(case, monkeypatch, tmp_path) -> None:
    arguments, expected = case
    stored.chunks_of(monkeypatch, 1e9)
    starts, said = stored.interrupted(monkeypatch, 4, out=tmp_path, **arguments)
    assert (
        said == f"stopped after step 585 of {STEPS} and kept in {tmp_path}; the same call goes on"
    )
    assert starts == stored.LONG_CHUNKS[:4]
    assert stored.steps_kept(tmp_path) == [585, 73]
    stored.assert_whole(tmp_path)
    starts = stored.noted_steps(monkeypatch)
    # The lanes are those that the run was begun with: others would be other programs.
    stored.assert_same(train(out=tmp_path, **{**arguments, "lanes": 3}), expected)
    assert starts[0] == 585


def test_ctrl_c_without_a_folder_keeps_nothing_and_says_so(cache, monkeypatch) -> None:
    assert stored.interrupted(monkeypatch, 1)[1] == f"stopped after step 1 of {STEPS}"


def test_a_second_ctrl_c_stops_at_once(straight, cache, monkeypatch, tmp_path) -> None:
    stored.chunks_of(monkeypatch, 1e9)
    starts, _ = stored.interrupted(monkeypatch, 4, times=2, out=tmp_path)
    # The chunk that it broke off, from step 73 on, left nothing behind.
    assert starts == stored.LONG_CHUNKS[:4]
    assert stored.steps_kept(tmp_path) == [73, 9]
    starts = stored.noted_steps(monkeypatch)
    stored.assert_same(train(out=tmp_path), straight)
    assert starts[0] == 73


def test_a_thread_trains_without_hearing_ctrl_c(straight, cache) -> None:
    runs: list[uh.Run] = []
    with stored.own_handler():
        thread = threading.Thread(target=lambda: runs.append(train()))
        thread.start()
        thread.join()
    stored.assert_same(runs[0], straight)


# --- Damaged checkpoints


def flipped(raw: bytes, place: int, bits: int = 1) -> bytes:
    return raw[:place] + bytes([raw[place] ^ bits]) + raw[place + 1 :]


def header_of(raw: bytes) -> int:
    """Where the numbers of a safetensors file begin."""
    return 8 + int.from_bytes(raw[:8], "little")


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda raw: b"",
    "cut in the header": lambda raw: raw[: header_of(raw) // 2],
    "cut in the numbers": lambda raw: raw[:-1],
    "a bit of the numbers": lambda raw: flipped(raw, header_of(raw) + 100),
    "another step": lambda raw: raw.replace(b'"step":"', b'"step":"1', 1),
    "garbage": lambda raw: np.random.default_rng(0).bytes(len(raw)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_passed_over(
    damage: str, straight, stopped, monkeypatch, caplog, tmp_path
) -> None:
    folder = shutil.copytree(stopped, tmp_path / "run")
    newest, before = storage.checkpoints(folder)
    raw = newest.read_bytes()
    newest.write_bytes(DAMAGE[damage](raw))
    assert newest.read_bytes() != raw
    starts = stored.noted_steps(monkeypatch)
    stored.assert_same(train(out=folder), straight)
    assert starts[0] == int(before.stem)
    [(logger, _, line)] = caplog.record_tuples
    assert logger == "underhood"
    assert re.fullmatch(rf"{newest} is damaged \(.+\); trying the checkpoint before it", line)
    stored.assert_whole(folder)


def test_no_flipped_bit_gets_past_the_checksum(stopped, caplog, tmp_path) -> None:
    folder = shutil.copytree(stopped, tmp_path / "run")
    newest, before = storage.checkpoints(folder)
    recipe, key = uh.Recipe.fast(STEPS, batch=4), jax.random.key(0)
    ensemble = make_ensemble(make_student, make_task(), recipe, widths=4, seeds=2, key=key)
    like = [first_group_state(ensemble, (number,)) for number in range(2)]
    wholes = {int(path.stem): storage.read_checkpoint(path, like)[1] for path in (newest, before)}
    raw, rng = newest.read_bytes(), np.random.default_rng(0)
    header = header_of(raw)
    places = np.concatenate([rng.integers(header, size=150), rng.integers(header, len(raw), 50)])
    passed_over = 0
    for place in places.tolist():
        newest.write_bytes(flipped(raw, place, 1 << int(rng.integers(8))))
        caplog.clear()
        step, states, _ = storage.load_checkpoint(folder, like)
        # Some of the header is not a part of the state: the format's version, blanks.
        assert place < header or step == int(before.stem)
        assert len(caplog.records) == (step == int(before.stem))
        for left, right in zip(*map(jax.tree.leaves, (states, wholes[step])), strict=True):
            stored.assert_same_arrays(left, right)
        passed_over += step == int(before.stem)
    assert passed_over >= 190


def test_without_a_whole_checkpoint_a_run_starts_anew(
    straight, stopped, monkeypatch, caplog, tmp_path
) -> None:
    folder = shutil.copytree(stopped, tmp_path / "run")
    for path in storage.checkpoints(folder):
        path.write_bytes(path.read_bytes()[:-1])
    stored.chunks_of(monkeypatch, 0.0)
    starts, said = stored.interrupted(monkeypatch, 3, out=folder)
    assert re.search(r"stopped after step 3 .* the same call goes on", said)
    assert starts == [0, 1, 2]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    assert "starting from step 0" in caplog.records[-1].message
    # What Ctrl-C promised: the damaged ones, of later steps, do not stand in the way.
    assert stored.steps_kept(folder) == [3, 2]
    caplog.clear()
    stored.chunks_of(monkeypatch, 1.0)
    starts = stored.noted_steps(monkeypatch)
    stored.assert_same(train(out=folder), straight)
    assert starts[0] == 3
    assert not caplog.records


# --- Full disks

FILES = ["checkpoint", "settings.json", "losses.safetensors", "models.safetensors", "members.json"]


@pytest.mark.parametrize("name", FILES)
def test_a_full_disk_costs_nothing_that_was_written(
    name: str, straight, cache, monkeypatch, tmp_path
) -> None:
    replace, written = os.replace, []

    def full(source: Any, target: Any) -> None:
        if Path(target).parent.name == "checkpoints":
            written.append(target)
        if Path(target).name == name or (name == "checkpoint" and len(written) == 4):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    stored.chunks_of(monkeypatch, 1e9)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space left") as refusal:
            train(out=tmp_path)
    assert refusal.value.errno == errno.ENOSPC
    assert "run the same call again" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not stored.hidden(tmp_path)
    stored.assert_whole(tmp_path)
    kept, goes_on_from = {"settings.json": ([], [0]), "checkpoint": ([73, 9], [73])}.get(
        name, ([STEPS, 585], [])
    )
    assert stored.steps_kept(tmp_path) == kept
    starts = stored.noted_steps(monkeypatch)
    stored.assert_same(train(out=tmp_path), straight)
    assert starts[:1] == goes_on_from
