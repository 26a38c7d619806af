"""Arrays that callers give: NumPy's or JAX's, of finite floating-point numbers."""

from typing import Any

import jax
import numpy as np

Weight = jax.Array | np.ndarray


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
