"""Runs that several files of tests share; each is trained once a session."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import killable
import pytest
from killable import train
from stored import (
    PADDED,
    cached_programs,
    chunks_of,
    make_foreign,
    noted_steps,
    own_handler,
    press_after,
    steps_kept,
)

import underhood as uh
from underhood.training.arrangement import Arrangement


@pytest.fixture(scope="session")
def straight() -> uh.Run:
    """The run that nothing stopped, compiled anew: what all others must equal."""
    # Or programs that other files compiled with `quick_compile` would run here again.
    jax.clear_caches()
    return train()


@pytest.fixture(scope="session")
def straight_padded(straight) -> uh.Run:
    return train(**PADDED)


# After the two above, which are compiled anew: all other runs must equal them, so programs from
# the cache give the same bits.
@pytest.fixture(scope="session")
def programs(straight, straight_padded, tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def cache(programs) -> Iterator[None]:
    """Compiled programs from a folder of this session."""
    jax.clear_caches()
    with cached_programs(programs):
        yield


@pytest.fixture(scope="session")
def finished(programs, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    with cached_programs(programs):
        train(out=folder)
    return folder


@pytest.fixture(scope="session")
def foreign(programs, tmp_path_factory) -> tuple[Path, uh.Run]:
    folder = tmp_path_factory.mktemp("foreign")
    with cached_programs(programs):
        return folder, train(make_student=make_foreign, out=folder)


@pytest.fixture(scope="session")
def stopped(programs, tmp_path_factory) -> Path:
    """A run that Ctrl-C stopped, with two checkpoints."""
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.MonkeyPatch.context() as patch, own_handler(), cached_programs(programs):
        chunks_of(patch, 1e9)
        noted_steps(patch, press_after(4))
        with pytest.raises(KeyboardInterrupt):
            train(out=folder)
    assert steps_kept(folder) == [585, 73]
    return folder


@pytest.fixture
def no_training(monkeypatch, finished, stopped) -> None:
    # What the module shares is trained before this forbids it.
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing is left to train")

    monkeypatch.setattr(killable.training(), "arrange", refuse)
    monkeypatch.setattr(Arrangement, "advance", refuse)
