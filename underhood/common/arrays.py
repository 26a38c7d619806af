"""Arrays that callers give: NumPy's or JAX's, of finite floating-point numbers."""

from typing import Any

import jax
import numpy as np
from jax.typing import DTypeLike

Weight = jax.Array | np.ndarray

FLOATS: dict[str, np.dtype] = {"float64": np.dtype(np.float64), "float32": np.dtype(np.float32)}


def array_problem(name: str, value: Any) -> str | None:  # Any: whatever the caller gave
    """Return what stops a value from being an array of finite numbers; None if nothing does."""
    if not isinstance(value, Weight):
        return f"{name} is a {type(value).__name__}; give a NumPy or JAX array"
    if value.dtype == object:
        return f"{name} holds Python objects; give float32 or float64 numbers"
    if not np.issubdtype(value.dtype, np.floating):
        return f"{name} holds {value.dtype} numbers; convert it with .astype(float)"
    if not isinstance(value, jax.core.Tracer) and not np.all(np.isfinite(value)):
        return f"{name} holds NaN or infinite entries"
    return None


def float_name(dtype: DTypeLike) -> str:
    """Return "float64" or "float32" for NumPy's and JAX's types too; other names as they are.

    np.float32, np.dtype("float32"), jnp.float32 and "float32" are the same.
    """
    if dtype is None or isinstance(dtype, str):
        return str(dtype)
    try:
        return np.dtype(dtype).name
    except TypeError:
        return str(dtype)
