"""Runs on disk: whatever stops a run, the same call ends in the same bits."""

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
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import killable
import numpy as np
import pytest
import safetensors.numpy
from jax.experimental.compilation_cache import compilation_cache
from killable import STEPS, make_student, make_task, train

import underhood as uh
from underhood.training.arrangement import Arrangement, first_group_state
from underhood.training.ensemble import describe_members
from underhood.training.storage import checkpoints as storage
from underhood.training.storage.checksums import arrays_checksum
from underhood.training.storage.settings import begin_run

pytestmark = pytest.mark.usefixtures("unhooked")

PADDED = {"widths": (3, 4), "lanes": 4}


@pytest.fixture(scope="module")
def straight() -> uh.Run:
    """The run that nothing stopped, compiled anew: what all others must equal."""
    # Or programs that other files compiled with `quick_compile` would run here again.
    jax.clear_caches()
    return train()


@pytest.fixture(scope="module")
def straight_padded() -> uh.Run:
    return train(**PADDED)


# After the two above, which are compiled anew: all other runs must equal them, so programs from
# the cache give the same bits.
@pytest.fixture(scope="module")
def cache(straight, straight_padded, tmp_path_factory) -> Iterator[Path]:
    """Compiled programs in a folder of this module's own; conftest.py turns others off."""
    folder = tmp_path_factory.mktemp("cache")
    killable.use_cache(folder)
    compilation_cache.reset_cache()
    yield folder
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()


@pytest.fixture(scope="module")
def finished(cache, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    train(out=folder)
    return folder


def assert_same(one: uh.Run, other: uh.Run) -> None:
    """Rows, curves and models, bit by bit."""
    assert one.rows == other.rows
    for name in ("steps", "losses"):
        assert_same_arrays(getattr(one, name), getattr(other, name))
    ones, others = (jax.tree.flatten(run.models) for run in (one, other))
    assert ones[1] == others[1]
    for left, right in zip(ones[0], others[0], strict=True):
        if eqx.is_array(left):
            assert_same_arrays(left, right)
        else:
            assert left == right


def assert_same_arrays(one: Any, other: Any) -> None:
    one, other = np.asarray(one), np.asarray(other)
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    assert one.tobytes() == other.tobytes()


def steps_kept(folder: Path) -> list[int]:
    """The newest first."""
    return [int(path.stem) for path in storage.checkpoints(folder)]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def hidden(folder: Path) -> list[Path]:
    return [path for path in folder.rglob(".*") if path.is_file()]


def assert_whole(folder: Path) -> None:
    """No file that can be seen under its own name is half there."""
    for path in folder.glob("*.json"):
        assert json.loads(path.read_text())["version"] == 1
    for path in storage.checkpoints(folder):
        raw = path.read_bytes()
        metadata = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])["__metadata__"]
        assert int(metadata["step"]) == int(path.stem)
        tensors = safetensors.numpy.load(raw)
        assert arrays_checksum(tensors, int(path.stem)) == metadata["sha256"]
    for path in folder.glob("*.safetensors"):
        assert safetensors.numpy.load(path.read_bytes())


# --- Killed ------------------------------------------------------------------------------------


class Forks:
    """Runs in processes of their own; see killable.py."""

    def __init__(self, cache: Path):
        self.server = subprocess.Popen(
            [sys.executable, killable.__file__, str(cache)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(
        self, out: Path, *, chunk_seconds: float = 1.0, largest_file: int | None = None
    ) -> int:
        """The number of the process that runs now."""
        request = {"out": str(out), "chunk_seconds": chunk_seconds, "largest_file": largest_file}
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
        assert len(kept) <= storage.KEPT_CHECKPOINTS + 1
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
    assert len(steps_kept(folder)) == storage.KEPT_CHECKPOINTS
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


# --- Finished ----------------------------------------------------------------------------------


@pytest.fixture
def no_training(monkeypatch, finished, stopped) -> None:
    # What the module shares is trained before this forbids it.
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing is left to train")

    monkeypatch.setattr(killable.training(), "arrange", refuse)
    monkeypatch.setattr(Arrangement, "advance", refuse)


def test_a_finished_run_is_loaded_and_not_trained(straight, finished, no_training) -> None:
    before = contents(finished)
    for run in (train(out=finished), train(out=str(finished), lanes=2), uh.Run.load(finished)):
        assert_same(run, straight)
    assert contents(finished) == before


def test_a_loaded_run_knows_what_a_fresh_one_knows(cache, tmp_path) -> None:
    fresh = train(out=tmp_path, axes={"learning_rate": [1e-2, 2e-2]}, seeds=1)
    loaded = uh.Run.load(tmp_path)
    assert_same(loaded, fresh)
    assert loaded.provenance == fresh.provenance
    assert loaded.settings == fresh.settings


def test_float64_runs_come_back_as_float64(cache, tmp_path) -> None:
    def make_wide(width: int, *, key: jax.Array) -> uh.GatedRNN:
        return jax.tree.map(np.float64, make_student(width, key=key))

    recipe = uh.Recipe.fast(20, batch=4, precision="float64")
    arguments = {"make_student": make_wide, "recipe": recipe, "seeds": 1, "out": tmp_path}
    fresh = train(**arguments)
    assert fresh.models[0].D.dtype == np.float64
    assert_same(train(**arguments), fresh)
    assert_same(uh.Run.load(tmp_path), fresh)


def test_a_lost_member_does_not_stop_the_others_from_being_loaded(cache, tmp_path) -> None:
    # The rate is infinite in float32, and so are the weights after one step.
    with np.errstate(over="ignore"):
        fresh = train(out=tmp_path, axes={"learning_rate": [1e-2, 1e39]}, seeds=1)
    assert [row["lost_at"] for row in fresh.rows] == [None, 1]
    assert_same(uh.Run.load(tmp_path), fresh)


class Foreign(eqx.Module):
    """A student that we know nothing about."""

    W: jax.Array
    scales: tuple[np.ndarray, float]
    squash: Callable[..., jax.Array] = eqx.field(static=True)

    def __call__(self, xs: jax.Array) -> jax.Array:
        return self.squash(xs @ self.W.T) @ self.W * self.scales[0] * self.scales[1]


def make_foreign(width: int, *, key: jax.Array, squash: Any = jax.numpy.tanh) -> Foreign:
    return Foreign(jax.random.normal(key, (width, 2)), (np.float32([1, 2]), 0.5), squash)


@pytest.fixture(scope="module")
def foreign(cache, tmp_path_factory) -> tuple[Path, uh.Run]:
    folder = tmp_path_factory.mktemp("foreign")
    return folder, train(make_student=make_foreign, out=folder)


def test_foreign_students_are_loaded_with_what_made_them(foreign, no_training) -> None:
    folder, fresh = foreign
    with pytest.raises(uh.BadInput, match="foreign kind; give make_student= too"):
        uh.Run.load(folder)
    assert_same(uh.Run.load(folder, make_foreign), fresh)
    assert_same(train(make_student=make_foreign, out=folder), fresh)
    assert float(np.ptp(fresh.models[0].W - fresh.models[1].W)) > 0


def test_an_unfinished_run_is_not_loaded(tmp_path) -> None:
    with pytest.raises(uh.BadInput, match="holds no run"):
        uh.Run.load(tmp_path)
    begin_run(tmp_path, {}, {})
    with pytest.raises(uh.BadInput, match="is not finished; call train again"):
        uh.Run.load(tmp_path)


@pytest.mark.parametrize("name", ["members.json", "models.safetensors", "losses.safetensors"])
def test_a_damaged_result_is_written_anew_as_the_refusal_says(
    name: str, straight, finished, monkeypatch, tmp_path
) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / name).write_bytes((folder / name).read_bytes()[:-40])
    for load in (uh.Run.load, lambda folder: train(out=folder)):
        with pytest.raises(uh.BadInput, match=name) as refusal:
            load(folder)
        assert str(folder / "members.json") in str(refusal.value)
    (folder / "members.json").unlink()
    steps = noted_steps(monkeypatch)
    assert_same(train(out=folder), straight)
    assert not steps


# --- Chunks ------------------------------------------------------------------------------------


# Where chunks begin that may last as long as they like: each is eight times the one before it.
LONG_CHUNKS = [0, 1, 9, 73, 585]


def chunks_of(monkeypatch, seconds: float) -> None:
    monkeypatch.setattr(killable.training(), "CHUNK_SECONDS", seconds)
    monkeypatch.setattr(killable.training(), "CHECKPOINT_SHARE", 0)


def noted_steps(monkeypatch, after: Callable[[int], None] = lambda chunk: None) -> list[int]:
    """Where chunks begin, from now on; `after` is called at the end of each, with its number."""
    starts: list[int] = []
    advance = Arrangement.advance

    def noted(self: Arrangement, states: Any, start: int, stop: int) -> Any:
        starts.append(start)
        states = advance(self, states, start, stop)
        after(len(starts))
        return states

    monkeypatch.setattr(Arrangement, "advance", noted)
    return starts


CASES = {"one lane": ({"lanes": 1}, "straight"), "padded": (PADDED, "straight_padded")}


@pytest.fixture(params=CASES)
def case(request, cache) -> tuple[dict[str, Any], uh.Run]:
    """Arguments of a call, and the run that it must give."""
    arguments, name = CASES[request.param]
    return arguments, request.getfixturevalue(name)


def test_where_chunks_are_cut_changes_no_bit(case, monkeypatch) -> None:
    arguments, expected = case
    starts = noted_steps(monkeypatch)
    chunks_of(monkeypatch, 1e9)
    assert_same(train(**arguments), expected)
    assert starts == LONG_CHUNKS
    starts.clear()
    chunks_of(monkeypatch, 0.0)
    assert_same(train(**arguments), expected)
    assert starts == list(range(STEPS))


# --- Ctrl-C ------------------------------------------------------------------------------------


def press_after(chunk: int, times: int = 1) -> Callable[[int], None]:
    def press(now: int) -> None:
        for _ in range(times if now == chunk else 0):
            signal.raise_signal(signal.SIGINT)

    return press


@contextlib.contextmanager
def own_handler() -> Iterator[Any]:
    """Somebody's handler of Ctrl-C, which must be there again afterwards."""

    def handler(number: int, frame: Any) -> None:
        raise AssertionError("the run did not hear Ctrl-C")

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_after_ctrl_c_the_same_call_goes_on(case, monkeypatch, tmp_path) -> None:
    arguments, expected = case
    chunks_of(monkeypatch, 1e9)
    with monkeypatch.context() as patch, own_handler():
        starts = noted_steps(patch, press_after(4))
        with pytest.raises(KeyboardInterrupt) as stopped:
            train(out=tmp_path, **arguments)
    said = re.fullmatch(
        rf"stopped after step (\d+) of {STEPS} and kept in {tmp_path}; the same call goes on",
        str(stopped.value),
    )
    step = int(said[1])
    assert starts == LONG_CHUNKS[:4]
    assert steps_kept(tmp_path) == [step, 73] == [585, 73]
    assert_whole(tmp_path)
    starts = noted_steps(monkeypatch)
    # The lanes are those that the run was begun with: others would be other programs.
    assert_same(train(out=tmp_path, **{**arguments, "lanes": 3}), expected)
    assert starts[0] == step


def test_ctrl_c_without_a_folder_keeps_nothing_and_says_so(cache, monkeypatch) -> None:
    noted_steps(monkeypatch, press_after(1))
    with (
        own_handler(),
        pytest.raises(KeyboardInterrupt, match=rf"^stopped after step 1 of {STEPS}$"),
    ):
        train()


def test_a_second_ctrl_c_stops_at_once(straight, cache, monkeypatch, tmp_path) -> None:
    chunks_of(monkeypatch, 1e9)
    with monkeypatch.context() as patch, own_handler():
        starts = noted_steps(patch, press_after(4, times=2))
        with pytest.raises(KeyboardInterrupt):
            train(out=tmp_path)
    # The chunk that it broke off, from step 73 on, left nothing behind.
    assert starts == LONG_CHUNKS[:4]
    assert steps_kept(tmp_path) == [73, 9]
    starts = noted_steps(monkeypatch)
    assert_same(train(out=tmp_path), straight)
    assert starts[0] == 73


def test_a_thread_trains_without_hearing_ctrl_c(straight, cache) -> None:
    runs: list[uh.Run] = []
    with own_handler():
        thread = threading.Thread(target=lambda: runs.append(train()))
        thread.start()
        thread.join()
    assert_same(runs[0], straight)


# --- Damaged checkpoints -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped(straight, cache, tmp_path_factory) -> Path:
    """A run that Ctrl-C stopped, with two checkpoints."""
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.MonkeyPatch.context() as patch, own_handler():
        chunks_of(patch, 1e9)
        noted_steps(patch, press_after(4))
        with pytest.raises(KeyboardInterrupt):
            train(out=folder)
    assert steps_kept(folder) == [585, 73]
    return folder


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
    starts = noted_steps(monkeypatch)
    assert_same(train(out=folder), straight)
    assert starts[0] == int(before.stem)
    [(logger, _, line)] = caplog.record_tuples
    assert logger == "underhood"
    assert re.fullmatch(rf"{newest} is damaged \(.+\); trying the checkpoint before it", line)
    assert_whole(folder)


def test_no_flipped_bit_gets_past_the_checksum(stopped, caplog, tmp_path) -> None:
    folder = shutil.copytree(stopped, tmp_path / "run")
    newest, before = storage.checkpoints(folder)
    recipe, key = uh.Recipe.fast(STEPS, batch=4), jax.random.key(0)
    ensemble = describe_members(make_student, make_task(), recipe, widths=4, seeds=2, key=key)
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
            assert_same_arrays(left, right)
        passed_over += step == int(before.stem)
    assert passed_over >= 190


def test_without_a_whole_checkpoint_a_run_starts_anew(
    straight, stopped, monkeypatch, caplog, tmp_path
) -> None:
    folder = shutil.copytree(stopped, tmp_path / "run")
    for path in storage.checkpoints(folder):
        path.write_bytes(path.read_bytes()[:-1])
    chunks_of(monkeypatch, 0.0)
    with monkeypatch.context() as patch, own_handler():
        starts = noted_steps(patch, press_after(3))
        with pytest.raises(
            KeyboardInterrupt, match=r"stopped after step 3 .* the same call goes on"
        ):
            train(out=folder)
    assert starts == [0, 1, 2]
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    assert "starting from step 0" in caplog.records[-1].message
    # What Ctrl-C promised: the damaged ones, of later steps, do not stand in the way.
    assert steps_kept(folder) == [3, 2]
    caplog.clear()
    chunks_of(monkeypatch, 1.0)
    starts = noted_steps(monkeypatch)
    assert_same(train(out=folder), straight)
    assert starts[0] == 3
    assert not caplog.records


# --- Full disks --------------------------------------------------------------------------------


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

    chunks_of(monkeypatch, 1e9)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space left") as refusal:
            train(out=tmp_path)
    assert refusal.value.errno == errno.ENOSPC
    assert "run the same call again" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not hidden(tmp_path)
    assert_whole(tmp_path)
    kept, goes_on_from = {
        "settings.json": ([], [0]),
        "checkpoint": ([73, 9], [73]),
    }.get(name, ([STEPS, 585], []))
    assert steps_kept(tmp_path) == kept
    starts = noted_steps(monkeypatch)
    assert_same(train(out=tmp_path), straight)
    assert starts[:1] == goes_on_from


# --- Other settings ----------------------------------------------------------------------------


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "rate": (
        {"recipe": uh.Recipe.fast(STEPS, batch=4, learning_rate=0.5)},
        "recipe.learning_rate was 0.03 and is now 0.5.",
    ),
    "steps": (
        {"recipe": uh.Recipe.fast(STEPS + 1, batch=4)},
        f"recipe.steps was {STEPS} and is now {STEPS + 1}.",
    ),
    "teacher": ({"task": make_task(1)}, "the task has another teacher"),
    "length": (
        {"task": uh.tasks.TeacherStudent(make_task().attention, 5)},
        "task.what.fields.length.value was 4 and is now 5.",
    ),
    "seeds": ({"seeds": 3}, "members was"),
    "widths": ({"widths": 3}, "members was"),
    "axes": ({"axes": {"weight_decay": [0.0]}}, "members was"),
    "key": ({"key": jax.random.key(1)}, "key was [0, 0] and is now [0, 1]"),
    "weights": (
        {"make_student": lambda width, key: make_student(width, key=jax.random.split(key)[0])},
        "make_student gives other first weights",
    ),
}


def begun_elsewhere(folder: Path, **changes: Any) -> None:
    """Settings as another device would have written them: its last digits give other checksums."""
    settings = json.loads((folder / "settings.json").read_text())
    settings["begun"]["device"] = "gpu (another)"
    settings["first_weights"] = settings["task"]["numbers"] = "0" * 64
    (folder / "settings.json").write_text(json.dumps(settings | changes))


def test_a_run_of_another_device_is_known_by_its_sketch(tmp_path, finished, no_training) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    begun_elsewhere(folder)
    assert_same(train(out=folder), uh.Run.load(finished))
    sketch = json.loads((folder / "settings.json").read_text())["sketch"]
    # Rounding is forgiven, other numbers are not, and without a sketch nothing is known.
    near = json.loads(json.dumps(sketch))
    near["first_weights"][0][1] *= 1 + 1e-6
    begun_elsewhere(folder, sketch=near)
    assert_same(train(out=folder), uh.Run.load(finished))
    far = json.loads(json.dumps(sketch))
    far["first_weights"][0][2] *= 1.01
    for other in (far, {"first_weights": sketch["first_weights"]}, None):
        begun_elsewhere(folder, sketch=other)
        with pytest.raises(uh.BadInput, match="begun with other settings"):
            train(out=folder)


def test_on_the_same_device_the_checksums_count(tmp_path, finished, no_training) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    settings = json.loads((folder / "settings.json").read_text())
    settings["first_weights"] = "0" * 64
    (folder / "settings.json").write_text(json.dumps(settings))
    with pytest.raises(uh.BadInput, match="other first weights"):
        train(out=folder)


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("state", ["stopped", "finished"])
def test_other_settings_are_refused_by_name(name: str, state: str, request, no_training) -> None:
    folder = request.getfixturevalue(state)
    before = contents(folder)
    changes, message = OTHERS[name]
    with pytest.raises(uh.BadInput, match="begun with other settings") as refusal:
        train(out=folder, **changes)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert contents(folder) == before


def test_another_student_with_the_same_weights_is_refused(foreign, no_training) -> None:
    folder, _ = foreign
    before = contents(folder)
    with pytest.raises(uh.BadInput, match="make_student gives another kind of student"):
        train(
            make_student=lambda width, key: make_foreign(width, key=key, squash=jax.nn.relu),
            out=folder,
        )
    assert contents(folder) == before


# --- Folders that cannot be used ---------------------------------------------------------------


def edit_settings(**changes: Any) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return edit


BAD_SETTINGS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "half": (lambda path: path.write_bytes(path.read_bytes()[:200]), "cannot be read"),
    "no JSON": (lambda path: path.write_text("{"), "cannot be read"),
    "no text": (lambda path: path.write_bytes(b"\xff\xfe"), "cannot be read"),
    "a list": (lambda path: path.write_text("[]"), "cannot be read"),
    "deep": (lambda path: path.write_text("[" * 10**5 + "]" * 10**5), "cannot be read"),
    "of the future": (edit_settings(version=2), "format version 2, and this underhood reads 1"),
    "of no version": (lambda path: path.write_text("{}"), "format version None"),
    "missing": (lambda path: path.unlink(), "holds checkpoints but no settings"),
}


@pytest.mark.parametrize("name", BAD_SETTINGS)
def test_damaged_settings_are_refused_in_one_line(name: str, stopped, tmp_path) -> None:
    folder = shutil.copytree(stopped, tmp_path / "run")
    damage, message = BAD_SETTINGS[name]
    damage(folder / "settings.json")
    before = contents(folder)
    with pytest.raises(uh.BadInput, match=message) as refusal:
        train(out=folder)
    assert "\n" not in str(refusal.value)
    # Without its settings nobody knows whose checkpoints these are.
    assert "another folder" in str(refusal.value)
    assert contents(folder) == before


def test_a_folder_must_be_a_folder(tmp_path) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(uh.BadInput, match="Cannot make the run's folder") as refusal:
            train(out=out)
        assert "\n" not in str(refusal.value)
    assert contents(tmp_path) == {str(tmp_path / "file"): b"mine"}


@contextlib.contextmanager
def as_somebody() -> Iterator[None]:
    """Not as root, who may write everywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("state", ["empty", "stopped"])
def test_a_folder_that_may_not_be_written_is_refused(state: str, request) -> None:
    # Not under tmp_path, which only its owner may enter.
    with tempfile.TemporaryDirectory() as outer:
        os.chmod(outer, 0o755)
        folder = Path(outer) / "run"
        if state == "stopped":
            shutil.copytree(request.getfixturevalue("stopped"), folder)
        folder.mkdir(exist_ok=True)
        for path in (*folder.rglob("*"), folder):
            os.chmod(path, 0o555 if path.is_dir() else 0o444)
        before = contents(folder)
        try:
            with as_somebody(), pytest.raises(uh.BadInput, match="Permission denied") as refusal:
                train(out=folder)
            assert "\n" not in str(refusal.value)
            assert contents(folder) == before
        finally:
            for path in (folder, *folder.rglob("*")):
                os.chmod(path, 0o755)


# --- Leftovers ---------------------------------------------------------------------------------


def test_what_a_killed_process_was_writing_is_removed_and_nothing_else(
    straight, stopped, tmp_path
) -> None:
    folder = shutil.copytree(stopped, tmp_path / "run")
    left = [
        folder / ".settings.json.a1b2c3",
        folder / ".members.json.a1b2c3",
        folder / ".models.safetensors.a1b2c3",
        folder / ".losses.safetensors.a1b2c3",
        folder / "checkpoints" / ".0000000123.safetensors.a1b2c3",
    ]
    # out="." is somebody's own folder.
    own = [folder / ".pre-commit-config.yaml", folder / ".notes.txt", folder / "notes.txt"]
    for path in (*left, *own):
        path.write_text("half")
    (folder / ".cache.d").mkdir()
    assert_same(train(out=folder), straight)
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in (*own, folder / ".cache.d"))
