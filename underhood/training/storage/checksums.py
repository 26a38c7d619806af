"""What numbers are, up to what a device can change in them.

Random numbers on a GPU differ from a CPU's in their last digit, so a checksum of weights tells
devices apart that ought to agree. A sketch is, for every array, how many numbers it has, and the
mean and root mean square of their sizes.
"""

from typing import Any

import equinox as eqx
import jax
import numpy as np


def sketch(tree: Any) -> list[list[float]]:
    """One row per array of numbers."""
    arrays = [np.abs(leaf) for leaf in jax.tree.leaves(tree) if eqx.is_inexact_array(leaf)]
    return [
        [one.size, float(np.mean(one, dtype=float)), float(np.sqrt(np.mean(one**2, dtype=float)))]
        for one in map(np.asarray, arrays)
        if one.size
    ]


def alike(one: Any, other: Any) -> bool:
    """Whether two dictionaries of sketches agree up to rounding; without them nothing is known."""
    if not isinstance(one, dict) or not isinstance(other, dict) or one.keys() != other.keys():
        return False
    return all(
        np.shape(one[name]) == np.shape(other[name])
        and np.allclose(one[name], other[name], rtol=1e-4, atol=1e-7)
        for name in one
    )
