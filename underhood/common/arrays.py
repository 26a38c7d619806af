"""Arrays and random keys that callers give, NumPy's or JAX's, and arrays in float64."""

from typing import Any

import jax
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import PRNGKeyArray, PyTree

from underhood.common.errors import kind_of

Weight = jax.Array | np.ndarray

FLOATS: dict[str, np.dtype] = {"float64": np.dtype(np.float64), "float32": np.dtype(np.float32)}


# Any: whatever the caller gave.
def array_problem(name: str, value: Any, *, infinite: bool = False) -> str | None:
    """Return what stops a value from being an array of finite numbers; None if nothing does.

    infinite  ±inf is allowed
    """
    if not isinstance(value, Weight):
        return f"{name} is {kind_of(value)}; give a NumPy or JAX array"
    if value.dtype == object:
        return f"{name} holds Python objects; give float32 or float64 numbers"
    if np.issubdtype(value.dtype, np.complexfloating):
        return (
            f"{name} holds {value.dtype} numbers, and layers are real; give the two parts as "
            "separate rows, np.concatenate([W.real, W.imag]), or W.real alone if W.imag is zero"
        )
    if not np.issubdtype(value.dtype, np.floating):
        return f"{name} holds {value.dtype} numbers; convert it with .astype(float)"
    if isinstance(value, jax.core.Tracer):
        return None
    if infinite:
        return f"{name} holds NaN entries" if np.any(np.isnan(value)) else None
    if not np.all(np.isfinite(value)):
        return f"{name} holds NaN or infinite entries"
    return None


def float_name(dtype: DTypeLike) -> str:
    """Return "float32" for np.float32, np.dtype("float32") and jnp.float32; names as they are."""
    if dtype is None or isinstance(dtype, str):
        return str(dtype)
    try:
        return np.dtype(dtype).name
    except TypeError:
        return str(dtype)


def in_float64(model: PyTree) -> Any:  # Any: a module of the same kind, its arrays NumPy's
    """Return the same module with NumPy arrays in float64."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), model)


def key_problems(key: Any) -> list[str]:  # Any: whatever the caller gave
    """List what stops a value from being one key."""
    dtype, shape = getattr(key, "dtype", None), getattr(key, "shape", None)
    typed = dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)
    if (typed and shape == ()) or (dtype == np.uint32 and shape == (2,)):
        return []
    given = repr(key) if dtype is None else f"an array {dtype} of shape {shape}"
    return [f"key is {given}; give one key, jax.random.key(0) for example"]


def typed_key(key: PRNGKeyArray) -> PRNGKeyArray:
    """Return a key of the new kind, made from one of the old kind if need be."""
    return jax.random.wrap_key_data(key) if key.dtype == np.uint32 else key
