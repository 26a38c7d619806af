"""What the tests of storage share: equal bits, what lies in a folder, chunks, Ctrl-C."""

import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import killable
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import underhood as uh
from underhood.common.tensors import read_tensors
from underhood.training import training
from underhood.training.arrangement import Arrangement
from underhood.training.storage.checksums import arrays_checksum
from underhood.training.storage.folder import checkpoints

PADDED = {"widths": (3, 4), "lanes": 4}
# Where chunks begin that may last as long as they like: each is eight times the one before it.
LONG_CHUNKS = [0, 1, 9, 73, 585]


@contextlib.contextmanager
def cached_programs(folder: Path) -> Iterator[None]:
    """Keep compiled programs in a folder of their own, not in the one that all tests share."""
    shared = jax.config.jax_compilation_cache_dir
    killable.use_cache(folder)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_compilation_cache_dir", shared)
        compilation_cache.reset_cache()


@contextlib.contextmanager
def compiled_anew() -> Iterator[None]:
    """Take no program from this process or from the disk."""
    jax.clear_caches()
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", True)


def assert_same(run: uh.Run, expected: uh.Run) -> None:
    """Rows, curves and models, bit by bit."""
    assert run.rows == expected.rows
    for name in ("steps", "losses"):
        assert_same_arrays(getattr(run, name), getattr(expected, name))
    leaves, structure = jax.tree.flatten(run.models)
    expected_leaves, expected_structure = jax.tree.flatten(expected.models)
    assert structure == expected_structure
    for left, right in zip(leaves, expected_leaves, strict=True):
        if eqx.is_array(left):
            assert_same_arrays(left, right)
        else:
            assert left == right


def assert_same_arrays(left: Any, right: Any) -> None:
    left, right = np.asarray(left), np.asarray(right)
    assert (left.dtype, left.shape) == (right.dtype, right.shape)
    assert left.tobytes() == right.tobytes()


def steps_kept(folder: Path) -> list[int]:
    """The newest first."""
    return [int(path.stem) for path in checkpoints(folder)]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def hidden(folder: Path) -> list[Path]:
    return [path for path in folder.rglob(".*") if path.is_file()]


def assert_whole(folder: Path) -> None:
    """No file that can be seen under its own name is half there."""
    for path in folder.glob("*.json"):
        assert json.loads(path.read_text())["version"] == 1
    for path in checkpoints(folder):
        arrays, metadata = read_tensors(path)
        assert int(metadata["step"]) == int(path.stem)
        assert arrays_checksum(arrays, int(path.stem)) == metadata["sha256"]
    for path in folder.glob("*.safetensors"):
        assert read_tensors(path).arrays


def chunks_of(monkeypatch, seconds: float) -> None:
    monkeypatch.setattr(training, "CHUNK_SECONDS", seconds)
    monkeypatch.setattr(training, "CHECKPOINT_SHARE", 0)


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


def interrupted(monkeypatch, chunk: int, times: int = 1, **arguments: Any) -> tuple[list[int], str]:
    """Train until Ctrl-C at the end of a chunk: where chunks began, and what was said."""

    def press(now: int) -> None:
        for _ in range(times if now == chunk else 0):
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch, own_handler():
        starts = noted_steps(patch, press)
        with pytest.raises(KeyboardInterrupt) as stopped:
            killable.train(**arguments)
    return starts, str(stopped.value)


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


class Foreign(eqx.Module):
    """A student that we know nothing about."""

    W: jax.Array
    scales: tuple[np.ndarray, float]
    squash: Callable[..., jax.Array] = eqx.field(static=True)

    def __call__(self, xs: jax.Array) -> jax.Array:
        return self.squash(xs @ self.W.T) @ self.W * self.scales[0] * self.scales[1]


def make_foreign(width: int, *, key: jax.Array, squash: Any = jax.numpy.tanh) -> Foreign:
    return Foreign(jax.random.normal(key, (width, 2)), (np.float32([1, 2]), 0.5), squash)
