"""Checkpoints of a run: DIR/checkpoints/STEP.safetensors, the last two that are whole."""

import logging
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import safetensors.numpy
from jaxtyping import PyTree

from underhood.common.tensors import read_tensors
from underhood.training.storage.checksums import arrays_checksum, named_leaves
from underhood.training.storage.folder import VERSION, write_run_file

KEPT_CHECKPOINTS = 2

training_log = logging.getLogger("underhood")


class Checkpoint(NamedTuple):
    """The steps made so far, the states after them, and the seconds that they took."""

    step: int
    states: PyTree
    seconds: float


def save_checkpoint(folder: Path, now: Checkpoint) -> None:
    """Write a checkpoint, then remove all but the last few."""
    arrays = {name: np.ascontiguousarray(a) for name, a in named_leaves(now.states).items()}
    metadata = {
        "version": str(VERSION),
        "step": str(now.step),
        "seconds": str(now.seconds),
        "sha256": arrays_checksum(arrays, now.step),
    }
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
    """Return the newest checkpoint that is whole; None if there is none.

    like  states of the same shapes and types
    """
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
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    restored = []
    for name, leaf in ((jax.tree_util.keystr(keys), leaf) for keys, leaf in leaves):
        if arrays[name].shape != leaf.shape or arrays[name].dtype != leaf.dtype:
            raise ValueError(f"{name} has another shape or type")
        restored.append(jax.numpy.asarray(arrays[name]))
    states = jax.tree_util.tree_unflatten(structure, restored)
    return Checkpoint(step, states, float(metadata["seconds"]))
