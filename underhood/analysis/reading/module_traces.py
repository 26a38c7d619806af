"""`trace` of a module of another framework: the layer that is read from it, checked against it.

A patch needs every intermediate, and a framework shows only some. So the layer computes them all,
in the precision of the weights. The module runs too, on the same tokens. What it shows must agree
with the layer; without a patch, those of its own values are returned.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from underhood.common.arrays import Weight
from underhood.common.errors import BadInput, kind_of
from underhood.common.foreign import OBSERVERS, READERS, framework_of
from underhood.layers import Layer

# Rounding is far below this share of the largest value, and another function far above.
LARGEST_DIFFERENCE = 1e-2

# What traces a layer: tokens and a patch to named arrays.
TraceLayer = Callable[[Layer, Any, Any], dict[str, Weight]]  # Any: as in trace


# Any: a module, tokens of any framework, and a patch as `trace` takes it.
def trace_module(
    module: Any,  # Any: see above
    xs: Any,  # Any: see above
    patch: Any,  # Any: see above
    trace_layer: TraceLayer,
) -> dict[str, Weight]:
    """Return every named intermediate of a module on one sequence, as NumPy arrays.

    JAX would warn about float64 numbers where float64 is not switched on.
    """
    framework = framework_of(module)
    assert framework is not None
    layer = READERS[framework](module)
    if not isinstance(layer, Layer):
        raise BadInput(f"trace: {kind_of(module)} has no state, so there is nothing to look into.")
    dtype = np.result_type(*(leaf.dtype for leaf in jax.tree.leaves(layer)))
    tokens = as_numbers(xs, dtype)
    with jax.enable_x64(np.float64 in (dtype, jnp.result_type(float))):
        named = trace_layer(layer, jnp.asarray(tokens), None)
        shown = {
            name: np.asarray(value)
            for name, value in OBSERVERS[framework](module, tokens).items()
            if name in named
        }
        check_agreement(type(module).__name__, named, shown)
        if patch:
            named, shown = trace_layer(layer, jnp.asarray(tokens), patch), {}
        return {name: np.asarray(shown.get(name, value)) for name, value in named.items()}


def as_numbers(xs: Any, dtype: np.dtype) -> np.ndarray:  # Any: tokens of any framework
    """Return tokens as NumPy numbers in the precision of the weights."""
    if hasattr(xs, "detach") and hasattr(xs, "cpu"):
        xs = xs.detach().cpu()
    try:
        tokens = np.asarray(xs)
        numbers = tokens.astype(dtype) if tokens.dtype.kind != "c" else None
    except (TypeError, ValueError):
        raise BadInput(f"trace: xs is {kind_of(xs)}; give tokens [time, d_in].") from None
    if numbers is None:
        raise BadInput("trace: xs holds complex numbers, and the tokens of this layer are real.")
    if not np.all(np.isfinite(numbers)):
        raise BadInput("trace: xs holds NaN or infinite entries.")
    return numbers


def check_agreement(kind: str, named: dict[str, Weight], shown: dict[str, np.ndarray]) -> None:
    """Refuse a module that computes something else than the layer with its weights."""
    for name, value in shown.items():
        expected = np.asarray(named[name])
        size = np.max(np.abs(expected), initial=0.0) or 1.0
        agrees = value.shape == expected.shape
        if not agrees or not np.max(np.abs(value - expected), initial=0.0) <= (
            LARGEST_DIFFERENCE * size
        ):
            raise BadInput(
                f"trace: the {kind}'s own {name!r} is not that of the layer with its weights, so "
                "its forward pass does something else; uh.trace(uh.from_torch(module), xs) traces "
                "the weights alone."
            )
