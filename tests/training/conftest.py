"""Runs that several files of tests share; each is trained once a session."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
import stored
from compilation import compiled_for_users
from killable import train

import underhood as uh
from underhood.training import training
from underhood.training.arrangement import Arrangement


@pytest.fixture(scope="session")
def straight() -> uh.Run:
    """The run that nothing stopped, compiled anew: what all others must equal."""
    with compiled_for_users(), stored.compiled_anew():
        return train()


@pytest.fixture(scope="session")
def straight_padded(straight) -> uh.Run:
    with compiled_for_users(), stored.compiled_anew():
        return train(**stored.PADDED)


# After the two above, which are compiled anew: all other runs must equal them, so programs from
# the cache give the same bits.
@pytest.fixture(scope="session")
def programs(straight, straight_padded, tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def cache(as_users_compile, programs) -> Iterator[None]:
    """Compiled programs from a folder of this session."""
    jax.clear_caches()
    with stored.cached_programs(programs):
        yield


@pytest.fixture(scope="session")
def finished(programs, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    with compiled_for_users(), stored.cached_programs(programs):
        train(out=folder)
    return folder


@pytest.fixture(scope="session")
def foreign(programs, tmp_path_factory) -> tuple[Path, uh.Run]:
    folder = tmp_path_factory.mktemp("foreign")
    with compiled_for_users(), stored.cached_programs(programs):
        return folder, train(make_student=stored.make_foreign, out=folder)


@pytest.fixture(scope="session")
def stopped(programs, tmp_path_factory) -> Path:
    """A run that Ctrl-C stopped, with two checkpoints."""
    folder = tmp_path_factory.mktemp("stopped")
    with (
        pytest.MonkeyPatch.context() as patch,
        compiled_for_users(),
        stored.cached_programs(programs),
    ):
        stored.chunks_of(patch, 1e9)
        stored.interrupted(patch, 4, out=folder)
    assert stored.steps_kept(folder) == [585, 73]
    return folder


@pytest.fixture
def no_training(monkeypatch, finished, stopped) -> None:
    # What the module shares is trained before this forbids it.
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing is left to train")

    monkeypatch.setattr(training, "arrange", refuse)
    monkeypatch.setattr(Arrangement, "advance", refuse)
