"""Tokens of another size than one, for layers whose sigmoids and tanhs must stay in their range.

Linearised networks are built for tokens of size one: entries from N(0, 1). For tokens of size s,
x = s x', the source as a function of x' is compiled instead, y(x) = y'(x/s), and the input weights
of the network are divided by s. Its error at size s is that of the compiled y' at size one.
"""

from dataclasses import replace

import equinox as eqx
import numpy as np

from underhood.constructions.sources.heads import Attention, read_gated_rnn
from underhood.layers import GRU, LRU, LSTM, GatedRNN, Layer, LRUInOut, Stack

# The fields of a first layer that multiply tokens.
INPUT_FIELDS: dict[type[Layer], tuple[str, ...]] = {
    LSTM: ("U_f", "U_c", "U_g", "U_o"),
    GRU: ("U_r", "U_h", "U_z"),
    LRU: ("B_re", "B_im", "D"),
    LRUInOut: ("W_in_m", "W_in_x"),
}


def attention_at(attention: Attention, size: float) -> Attention:
    """Return attention as a function of x/size."""

    def scaled(W: np.ndarray) -> np.ndarray:
        return columns_times(W, attention.d_in, size)

    heads = [
        replace(head, W_V=scaled(head.W_V), W_K=scaled(head.W_K), W_Q=scaled(head.W_Q))
        for head in attention.heads
    ]
    return replace(attention, heads=tuple(heads))


def gated_rnn_at(rnn: GatedRNN, size: float) -> GatedRNN:
    """Return a gated RNN as a function of x/size."""
    weights = read_gated_rnn(rnn)
    scaled = {
        name: columns_times(getattr(weights, name), rnn.d_in, size) for name in ("W_in_m", "W_in_x")
    }
    return GatedRNN(**weights._replace(**scaled)._asdict())


def columns_times(W: np.ndarray, d_in: int, size: float) -> np.ndarray:
    """Multiply the columns that read x; the last one may read the constant 1."""
    return np.hstack([size * W[:, :d_in], W[:, d_in:]])


def with_tokens_divided(stack: Stack, size: float) -> Stack:
    """Return the network that computes stack(x/size)."""
    if stack.embed is not None:
        return eqx.tree_at(lambda s: s.embed.W, stack, stack.embed.W / size)
    first = stack.layers[0]
    fields = INPUT_FIELDS[type(first)]
    divided = replace(first, **{name: getattr(first, name) / size for name in fields})
    return eqx.tree_at(lambda s: s.layers[0], stack, divided)
