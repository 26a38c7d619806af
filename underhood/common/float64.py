"""The precision of constructions and analysis: NumPy arrays in float64."""

from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree


def in_float64(model: PyTree) -> Any:  # Any: a module of the same kind, its arrays NumPy's
    """Return the same module with NumPy arrays in float64."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), model)
