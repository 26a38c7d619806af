"""The folder of a run.

DIR/settings.json                  what was asked for; a run is resumed only by the same settings
DIR/checkpoints/STEP.safetensors   all that changes, with a checksum; the last two are kept
DIR/members.json                   the finished run's table and provenance; written last
DIR/losses.safetensors             steps [windows] and losses [members, windows]
DIR/models.safetensors             the members' weights
DIR/lock                           held while a process works on the run

Files are written to a temporary name and renamed, so no file is ever incomplete.
"""

import contextlib
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import safetensors.numpy
from jaxtyping import PyTree

from underhood.common.errors import BadInput
from underhood.common.files import Json, write_atomically
from underhood.common.tensors import read_tensors
from underhood.training.storage.checksums import arrays_checksum, named_leaves

VERSION = 1
SETTINGS, MEMBERS = "settings.json", "members.json"
LOSSES, MODELS = "losses.safetensors", "models.safetensors"
KEPT_CHECKPOINTS = 2

training_log = logging.getLogger("underhood")


def run_folder(path: str | os.PathLike[str]) -> Path:
    """Return a folder's path, with ~ for the home folder; refuse what is no path."""
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise BadInput(f"A run's folder is a path, not {path!r}.")
    return Path(path).expanduser()


@contextlib.contextmanager
def opened_folder(path: str | os.PathLike[str] | None) -> Iterator[Path | None]:
    """Make a run's folder if need be, and hold it; None: nothing is kept on disk."""
    if path is None:
        yield None
        return
    folder = run_folder(path)
    try:
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"Cannot make the run's folder {folder}: {error.strerror}.") from None
    with locked(folder):
        # Temporary files of a killed process; other hidden files are somebody else's.
        patterns = [f".{name}.*" for name in (SETTINGS, MEMBERS, LOSSES, MODELS)]
        for pattern in (*patterns, "checkpoints/.[0-9]*.safetensors.*"):
            for left in folder.glob(pattern):
                left.unlink(missing_ok=True)
        yield folder


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder; the system lets go of it when the process ends, however it ends."""
    import fcntl

    try:
        file = open(folder / "lock", "a+")  # noqa: SIM115  (closed below, once it is open)
    except OSError as error:
        raise BadInput(f"Cannot write in the run's folder {folder}: {error.strerror}.") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = f"Another process (number {file.read().strip() or 'unknown'})"
            advice = "wait for it, stop it, or choose another folder"
            raise BadInput(f"{holder} is training in {folder}; {advice}.") from None
        except OSError as error:
            problem = f"The run's folder {folder} cannot be locked ({error.strerror})"
            raise BadInput(f"{problem}; choose one on another disk.") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def is_finished(folder: Path) -> bool:
    return (folder / MEMBERS).exists()


def write_run_file(path: Path, data: bytes) -> None:
    """Write a file of a run; a failure is one line that says how to go on."""
    try:
        write_atomically(path, data)
    except OSError as error:
        state = f"{path.name} was not written, and all files written before it are whole"
        reason = f"{error.strerror}; {state}. Make room and run the same call again to go on"
        raise OSError(error.errno, reason, str(path)) from None


def read_run_json(path: Path, *, fields: set[str], advice: str) -> Json:
    """Read a JSON file of a run; refuse, with advice, a damaged, old or incomplete one."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            raise ValueError
    except (OSError, ValueError, RecursionError):
        raise BadInput(f"{path} cannot be read as a run's file; {advice}.") from None
    if (version := data.get("version")) != VERSION:
        versions = f"has format version {version!r}, and this underhood reads {VERSION}"
        raise BadInput(f"{path} {versions}; update underhood or choose another folder.")
    if not fields <= data.keys():
        raise BadInput(f"{path} is not complete; {advice}.")
    return data


class Checkpoint(NamedTuple):
    """The steps made so far, the states after them, and the seconds that they took."""

    step: int
    states: PyTree
    seconds: float


def save_checkpoint(folder: Path, now: Checkpoint) -> None:
    arrays = {name: np.ascontiguousarray(a) for name, a in named_leaves(now.states).items()}
    metadata = {"version": str(VERSION), "step": str(now.step), "seconds": str(now.seconds)}
    metadata["sha256"] = arrays_checksum(arrays, now.step)
    path = folder / "checkpoints" / f"{now.step:010d}.safetensors"
    write_run_file(path, safetensors.numpy.save(arrays, metadata))
    # Those of later steps are damaged, or the run would have gone on from them.
    paths = checkpoints(folder)
    for old in set(paths) - set([kept for kept in paths if kept <= path][:KEPT_CHECKPOINTS]):
        old.unlink(missing_ok=True)


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a run, the newest first."""
    return sorted((folder / "checkpoints").glob("[0-9]*.safetensors"), reverse=True)


def load_checkpoint(folder: Path, like: PyTree) -> Checkpoint | None:
    """Return the newest checkpoint that is whole, its states `like` these; None if none is."""
    for path in checkpoints(folder):
        try:
            return read_checkpoint(path, like)
        except Exception as error:
            # Whatever a damaged file makes the parser raise, the one before it may be whole.
            training_log.warning("%s is damaged (%s); trying the checkpoint before it", path, error)
    if checkpoints(folder):
        training_log.warning("No checkpoint in %s is whole; starting from step 0", folder)
    return None


def read_checkpoint(path: Path, like: PyTree) -> Checkpoint:
    """Read one checkpoint; raise if anything about it is wrong."""
    arrays, metadata = read_tensors(path)
    step = int(metadata["step"])
    if arrays_checksum(arrays, step) != metadata["sha256"]:
        raise ValueError("its checksum does not match")

    def restored(keys: PyTree, leaf: jax.Array) -> jax.Array:
        array = arrays[name := jax.tree_util.keystr(keys)]
        if (array.shape, array.dtype) != (leaf.shape, leaf.dtype):
            raise ValueError(f"{name} has another shape or type")
        return jax.numpy.asarray(array)

    states = jax.tree_util.tree_map_with_path(restored, like)
    return Checkpoint(step, states, float(metadata["seconds"]))
