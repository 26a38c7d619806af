"""What `attention_map` refuses: layers without a map, and what is no sequence of tokens."""

import jax.numpy as jnp
import numpy as np

from underhood.common.arrays import Weight
from underhood.common.errors import BadInput

REFUSALS = {
    "LRU": "its maps are powers of λ, the same for all tokens",
    "LRUInOut": "its maps are powers of λ, the same for all tokens",
    "LRUInOutMLP": "its maps are powers of λ, the same for all tokens",
    "LSTM": "its gates read the state, so it is no sum over the past",
    "GRU": "its gates read the state, so it is no sum over the past",
    "Stack": "a product of the maps of its layers explains nothing; ask for one of its layers, "
    "attention_map(stack.layers[0], stack.embed(xs)), or use xs itself if stack.embed is None",
    "Construction": "it is what compile returned; its network is .layer",
}


def refusal(layer: object) -> str:
    """Say in one line why a layer has no map."""
    kind = layer.__name__ if isinstance(layer, type) else type(layer).__name__
    if isinstance(layer, type):
        return f"attention_map: {kind} is a class; give a layer, such as {kind}.init(…)."
    reason = REFUSALS.get(kind, "it is no layer with a map that attention_map knows")
    return f"attention_map: {kind} has no map of its own: {reason}."


def refuse_tokens(xs: Weight) -> None:
    """Refuse tokens that are no finite real numbers, and a sequence without any."""
    if not len(xs):
        raise BadInput("attention_map: the sequence has no tokens.")
    if not any(jnp.issubdtype(xs.dtype, kind) for kind in (np.floating, np.integer, np.bool_)):
        raise BadInput(f"attention_map: the tokens are {xs.dtype}; give real numbers.")
    if not np.all(np.isfinite(np.asarray(xs, np.float64))):
        raise BadInput("attention_map: the tokens hold NaN or infinite numbers.")
