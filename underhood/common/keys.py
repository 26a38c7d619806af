"""Random keys that callers give, of JAX's new kind or its old one."""

from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray


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
