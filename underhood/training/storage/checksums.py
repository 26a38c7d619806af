"""What numbers are: exactly, by a checksum, or up to rounding, by a sketch.

Random numbers on a GPU differ from a CPU's in their last digit, so a checksum of weights tells
devices apart that ought to agree. A sketch is, for every array, how many numbers it has, and the
mean and root mean square of their sizes.
"""

import hashlib

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree


def named_leaves(tree: PyTree) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def arrays_checksum(arrays: dict[str, np.ndarray], step: int = 0) -> str:
    """Return a checksum that depends on the step and on every name, shape, type and number."""
    total = hashlib.sha256(str(step).encode())
    for name in sorted(arrays):
        array = arrays[name]
        total.update(f"{name} {array.dtype} {array.shape}".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


def tree_checksum(tree: PyTree) -> str:
    return arrays_checksum(named_leaves(tree))


def sketch(tree: PyTree) -> list[list[float]]:
    leaves = [leaf for leaf in jax.tree.leaves(tree) if eqx.is_inexact_array(leaf) and leaf.size]
    rows = []
    for sizes in (np.asarray(np.abs(leaf)) for leaf in leaves):
        mean, square = np.mean(sizes, dtype=float), np.mean(sizes**2, dtype=float)
        rows.append([sizes.size, float(mean), float(np.sqrt(square))])
    return rows


def sketches_agree(stored: PyTree, current: PyTree) -> bool:
    """Tell whether two dictionaries of sketches agree up to rounding; False without sketches."""
    if not isinstance(stored, dict) or not isinstance(current, dict):
        return False
    return stored.keys() == current.keys() and all(
        np.shape(stored[name]) == np.shape(current[name])
        and np.allclose(stored[name], current[name], rtol=1e-4, atol=1e-7)
        for name in stored
    )
