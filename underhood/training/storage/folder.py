"""A run on disk.

DIR/settings.json                  what was asked for; a run is resumed only by the same settings
DIR/checkpoints/STEP.safetensors   all that changes, with a checksum; the last two are kept
DIR/members.json                   the finished run's table and provenance; written last
DIR/losses.safetensors             steps [windows] and losses [members, windows]
DIR/models.safetensors             the members' weights
DIR/lock                           held while a process works on the run

Files are written to a temporary name and renamed, so none is ever half there.
"""

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import safetensors.numpy

from underhood.common.errors import BadInput
from underhood.common.files import as_json, write_atomically
from underhood.common.provenance import provenance
from underhood.training.storage.checksums import alike

VERSION = 1
KEPT = 2
FILES = ("settings.json", "members.json", "losses.safetensors", "models.safetensors")

# What a changed checksum means to people.
MEANING = {
    "task.numbers": "the task has another teacher",
    "students": "make_student gives another kind of student",
    "first_weights": "make_student gives other first weights (does it use its key alone?)",
}
CHECKSUMS = ("task.numbers", "first_weights")

log = logging.getLogger("underhood")


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run's folder; the system lets go of it when the process ends, however it ends."""
    import fcntl

    try:
        file = open(folder / "lock", "a+")  # noqa: SIM115  (held below, once it is open)
    except OSError as error:
        raise BadInput(f"Cannot write in the run's folder {folder}: {error.strerror}.") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise BadInput(
                f"Another process (number {holder}) is training in {folder}; wait for it, stop "
                "it, or choose another folder."
            ) from None
        except OSError as error:
            raise BadInput(
                f"The run's folder {folder} cannot be locked ({error.strerror}); choose one on "
                "another disk."
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        # What a killed process was writing; other hidden files are somebody's own.
        for place in (*FILES, "checkpoints/[0-9]*.safetensors"):
            where, _, name = place.rpartition("/")
            for left in (folder / where).glob(f".{name}.*"):
                left.unlink(missing_ok=True)
        yield


def folder_of(path: Any) -> Path:
    """A folder's path, ~ for one's home; refuses what names none."""
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise BadInput(f"A run's folder is a path, not {path!r}.")
    return Path(path).expanduser()


def make_folder(folder: Path) -> None:
    """The run's folders, made if need be."""
    try:
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"Cannot make the run's folder {folder}: {error.strerror}.") from None


def write(path: Path, data: bytes) -> None:
    """Write a file of a run; what goes wrong is one line that says how to go on."""
    try:
        write_atomically(path, data)
    except OSError as error:
        raise OSError(
            error.errno,
            f"{error.strerror}; {path.name} was not written, and all that was before it stands. "
            "Make room and run the same call again to go on",
            str(path),
        ) from None


def write_json(path: Path, data: Any) -> None:
    write(path, as_json(data))


def read_json(path: Path, *, advice: str) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            raise ValueError
    except (OSError, ValueError, RecursionError):
        raise BadInput(f"{path} cannot be read as a run's file; {advice}.") from None
    if data.get("version") != VERSION:
        raise BadInput(
            f"{path} has format version {data.get('version')!r}, and this underhood reads "
            f"{VERSION}; update underhood or choose another folder."
        )
    return data


def begin(folder: Path, settings: dict[str, Any], where: dict[str, Any]) -> None:
    """Write down what a new run is, and where it began."""
    write_json(folder / "settings.json", {"version": VERSION, "begun": where, **settings})


def agree_or_none(folder: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    """The settings of the run that the folder holds, if it holds one; refuses other settings.

    Where it began and its `grouping`, which depends on that, are not compared. On another device
    random numbers differ in their last digit, and with them the checksums of weights and teachers;
    there it is enough that their sketches agree.
    """
    path = folder / "settings.json"
    if not path.exists():
        if checkpoints(folder):
            raise BadInput(f"{folder} holds checkpoints but no settings; choose another folder.")
        return None
    stored = read_settings(folder)
    then, now = flat(stored), flat(json.loads(json.dumps(settings)))
    # In the order of `describe`, what was asked for before what follows from it.
    different = [
        name
        for name in {**now, **then}
        if name != "grouping" and not name.startswith("sketch") and then.get(name) != now.get(name)
    ]
    if different and not (
        set(different) <= set(CHECKSUMS)
        and began_elsewhere(folder)
        and alike(stored.get("sketch"), settings.get("sketch"))
    ):
        first, others = different[0], len(different) - 1
        change = MEANING.get(first) or (
            f"{first} was {str(then.get(first))[:60]} and is now {str(now.get(first))[:60]}"
        )
        more = f" (and {others} more)" if others else ""
        raise BadInput(
            f"The run in {folder} was begun with other settings: {change}{more}. Use the old "
            "settings to go on, or another folder to start anew."
        )
    return stored


def began_elsewhere(folder: Path) -> bool:
    """Whether a run began on another kind of device than this one."""
    begun = read_json(folder / "settings.json", advice="remove it").get("begun") or {}
    return begun.get("device") != provenance()["device"]


def read_settings(folder: Path) -> dict[str, Any]:
    """What the run in a folder was begun with."""
    advice = "choose another folder, or remove this one to start anew"
    stored = read_json(folder / "settings.json", advice=advice)
    if "grouping" not in stored:
        raise BadInput(f"{folder / 'settings.json'} is not complete; {advice}.")
    return {name: value for name, value in stored.items() if name not in ("version", "begun")}


def flat(data: Any, name: str = "") -> dict[str, Any]:
    """Nested settings as one level of dotted names."""
    if not isinstance(data, dict):
        return {name: data}
    return {
        inner: value
        for key, one in data.items()
        for inner, value in flat(one, f"{name}.{key}" if name else str(key)).items()
    }


def named_leaves(tree: Any) -> dict[str, np.ndarray]:
    """Every array of a tree under its path."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def checksum(tensors: dict[str, np.ndarray], step: int) -> str:
    """Depends on every name, shape, type and number."""
    digest = hashlib.sha256(str(step).encode())
    for name in sorted(tensors):
        array = tensors[name]
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


class Checkpoint(NamedTuple):
    """Where a run stands: its step, its states, and the seconds that its steps have taken."""

    step: int
    states: Any
    seconds: float


def save_checkpoint(folder: Path, now: Checkpoint) -> None:
    """Write a checkpoint, then remove all but the last few."""
    tensors = {name: np.ascontiguousarray(a) for name, a in named_leaves(now.states).items()}
    metadata = {
        "version": str(VERSION),
        "step": str(now.step),
        "seconds": str(now.seconds),
        "sha256": checksum(tensors, now.step),
    }
    path = folder / "checkpoints" / f"{now.step:010d}.safetensors"
    write(path, safetensors.numpy.save(tensors, metadata))
    # Those of later steps are damaged, or the run would have gone on from them.
    found = checkpoints(folder)
    for old in set(found) - set([one for one in found if one <= path][:KEPT]):
        old.unlink(missing_ok=True)


def checkpoints(folder: Path) -> list[Path]:
    """The newest first."""
    return sorted((folder / "checkpoints").glob("[0-9]*.safetensors"), reverse=True)


def load_checkpoint(folder: Path, like: Any) -> Checkpoint | None:
    """The newest checkpoint that is whole; None if there is none."""
    for path in checkpoints(folder):
        try:
            return read_checkpoint(path, like)
        except Exception as error:
            # Whatever a damaged file makes the parser raise, the one before it may be whole.
            log.warning("%s is damaged (%s); trying the checkpoint before it", path, error)
    if checkpoints(folder):
        log.warning("No checkpoint in %s is whole; starting from step 0", folder)
    return None


def read_checkpoint(path: Path, like: Any) -> Checkpoint:
    raw = path.read_bytes()
    tensors = safetensors.numpy.load(raw)
    metadata = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])["__metadata__"]
    step = int(metadata["step"])
    if checksum(tensors, step) != metadata["sha256"]:
        raise ValueError("its checksum does not match")
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    restored = []
    for name, leaf in ((jax.tree_util.keystr(keys), leaf) for keys, leaf in leaves):
        if tensors[name].shape != leaf.shape or tensors[name].dtype != leaf.dtype:
            raise ValueError(f"{name} has another shape or type")
        restored.append(jax.numpy.asarray(tensors[name]))
    states = jax.tree_util.tree_unflatten(structure, restored)
    return Checkpoint(step, states, float(metadata["seconds"]))
