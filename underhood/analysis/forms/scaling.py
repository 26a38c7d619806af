"""Weights within range: the same function up to a power of two, without any rounding.

Products of seven weights leave the range of float64 long before the weights do. Every row of the
input gates and of the output gates is divided by a power of two, and so is D. The powers are moved
on to whatever reads the row, and the last one stands before the whole function:

    network(x) = 2^exponent · scaled(x).

Weights of ordinary size stay as they are, with exponent 0.
"""

from dataclasses import dataclass
from functools import singledispatch

import equinox as eqx
import numpy as np

from underhood.analysis.arguments import ReadableNetwork
from underhood.common.arrays import Weight, in_float64
from underhood.layers import DenseGatedRNN, GatedRNN, LinearAttention, MultiHead, SideGatedRNN

# Weights between 2^−ORDINARY and 2^ORDINARY multiply seven times without leaving float64's range.
ORDINARY = 60
# The exponent is a multiple of this, so that W_V takes half of it, W_K and W_Q a quarter each.
PARTS = 4


@dataclass(frozen=True)
class Scaled:
    """network(x) = 2^exponent · layer(x)."""

    layer: ReadableNetwork
    exponent: int


def in_range(network: ReadableNetwork) -> Scaled:
    """Return the network with weights whose products stay within float64's range."""
    network = in_float64(network)
    weights = [value for name, value in vars(network).items() if name != "nu"]
    exponents = np.concatenate([np.frexp(W[W != 0])[1] for W in weights])
    if np.all(np.abs(exponents) <= ORDINARY):
        return Scaled(network, 0)
    rescaled, left = rescale(network)
    largest = (np.frexp(network.D)[1] + left)[np.asarray(network.D) != 0]
    exponent = PARTS * -(-int(np.max(largest)) // PARTS) if largest.size else 0
    D = np.ldexp(np.asarray(network.D), left - exponent)
    return Scaled(eqx.tree_at(lambda layer: layer.D, rescaled, D), exponent)


def row_exponents(W: np.ndarray, columns: np.ndarray | int = 0) -> np.ndarray:
    """Return the exponent of the largest entry of every row of W·2^columns; 0 for rows of zeros."""
    exponents = np.where(W != 0, np.frexp(W)[1] + columns, np.iinfo(np.int32).min)
    largest = np.max(exponents, axis=1, initial=np.iinfo(np.int32).min)
    return np.where(largest == np.iinfo(np.int32).min, 0, largest)


@singledispatch
def rescale(network: ReadableNetwork) -> tuple[ReadableNetwork, np.ndarray]:
    """Return the network with rows of size one, and the exponents left for the columns of D."""
    raise TypeError(f"There is no scaling of a {type(network).__name__}.")


@rescale.register
def _(network: GatedRNN) -> tuple[ReadableNetwork, np.ndarray]:
    W_in_m, m = rows_of_size_one(network.W_in_m)
    W_in_x, x = rows_of_size_one(network.W_in_x)
    W_out_m, out_m = rows_of_size_one(network.W_out_m, m + x)
    W_out_x, out_x = rows_of_size_one(network.W_out_x, m + x)
    where = lambda layer: (layer.W_in_m, layer.W_in_x, layer.W_out_m, layer.W_out_x)  # noqa: E731
    return eqx.tree_at(where, network, (W_in_m, W_in_x, W_out_m, W_out_x)), out_m + out_x


@rescale.register
def _(network: DenseGatedRNN) -> tuple[ReadableNetwork, np.ndarray]:
    # Neurons mix in A, so that only the whole function is scaled.
    return network, np.zeros(network.gate_width, int)


@rescale.register
def _(network: SideGatedRNN) -> tuple[ReadableNetwork, np.ndarray]:
    W_in_m, m = rows_of_size_one(network.W_in_m)
    W_in_x, x = rows_of_size_one(network.W_in_x)
    W_side, side = rows_of_size_one(network.W_side)
    where = lambda layer: (layer.W_in_m, layer.W_in_x, layer.W_side)  # noqa: E731
    return eqx.tree_at(where, network, (W_in_m, W_in_x, W_side)), m + x + side


def rows_of_size_one(W: Weight, columns: np.ndarray | int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of W·2^columns divided by powers of two, and the exponents of these."""
    W = np.asarray(W)
    exponents = row_exponents(W, columns)
    return np.ldexp(W, columns - exponents[:, None]), exponents


def scaled_attention(
    attention: LinearAttention | MultiHead, exponent: int
) -> LinearAttention | MultiHead:
    """Return 2^exponent times an attention; OverflowError if its weights cannot hold that."""
    if exponent == 0:
        return attention
    if isinstance(attention, LinearAttention):
        return scaled_head(attention, exponent)
    return MultiHead([scaled_head(head, exponent) for head in attention.heads], attention.W_O)


def scaled_head(attention: LinearAttention, exponent: int) -> LinearAttention:
    """Scale one head: W_V takes half of the exponent, and W_K and W_Q a quarter each."""
    arrays = {}
    powers = {"V": exponent // 2, "K": exponent // PARTS, "Q": exponent // PARTS}
    for letter, power in powers.items():
        for name in (f"W_{letter}", f"b_{letter}"):
            before = getattr(attention, name)
            if before is not None:
                arrays[name] = np.ldexp(before, power)
                kept = np.isfinite(arrays[name]) & ((arrays[name] != 0) | (before == 0))
                if not np.all(kept):
                    raise OverflowError(name)
    return LinearAttention(**arrays, decay=attention.decay)
