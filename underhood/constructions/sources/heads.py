"""Sources as the constructions read them: NumPy arrays in float64, biases as columns of [W|b].

Ranks count singular values above max(shape)·eps·σ₁, where eps is the source's precision, or that
of float32 if this is smaller. The product M = W_KᵀW_Q carries rounding of size eps·|W_K||W_Q|
however small M itself is, so for M that product takes the place of σ₁.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np

from underhood.layers import GatedRNN, LinearAttention, MultiHead

Source = LinearAttention | MultiHead | GatedRNN


@dataclass(frozen=True)
class Head:
    """One head over x, or over [x;1] if any head has a bias.

    decay   of each value row
    out     the columns of W_O that read this head
    prefix  of the labels of its neurons
    eps     rounding of the source's numbers
    """

    W_V: np.ndarray
    W_K: np.ndarray
    W_Q: np.ndarray
    decay: np.ndarray
    out: np.ndarray
    prefix: str
    eps: float

    @property
    def M(self) -> np.ndarray:
        return self.W_K.T @ self.W_Q

    @property
    def noise(self) -> float:
        """Singular values of M below this are rounding."""
        scale = np.linalg.norm(self.W_K, 2) * np.linalg.norm(self.W_Q, 2) if self.W_K.size else 0.0
        return max(self.M.shape) * self.eps * float(scale)

    def groups(self) -> Iterator[tuple[np.ndarray, float]]:
        """Yield the indices of value rows of equal decay, and the decay."""
        for decay in np.unique(self.decay)[::-1]:
            yield np.flatnonzero(self.decay == decay), float(decay)


@dataclass(frozen=True)
class Attention:
    """Linear attention with one or more heads."""

    heads: tuple[Head, ...]
    d_in: int
    d_out: int
    biased: bool

    @property
    def fades(self) -> bool:
        return any(bool(np.any(head.decay != 1)) for head in self.heads)


def read_attention(source: LinearAttention | MultiHead) -> Attention:
    """Return the source's weights in float64."""
    layers = source.heads if isinstance(source, MultiHead) else (source,)
    biased = any(b is not None for layer in layers for b in (layer.b_V, layer.b_K, layer.b_Q))
    widths = [layer.d_out for layer in layers]
    W_O = source.W_O if isinstance(source, MultiHead) else None
    outs = np.eye(sum(widths)) if W_O is None else np.asarray(W_O, np.float64)
    parts = np.split(outs, np.cumsum(widths)[:-1], axis=1)
    heads = []
    for number, (layer, out) in enumerate(zip(layers, parts, strict=True)):
        weights = layer.augmented()
        W_V, W_K, W_Q = weights if biased else (np.ascontiguousarray(W[:, :-1]) for W in weights)
        prefix = f"head{number}." if len(layers) > 1 else ""
        # The coarsest of the head's arrays decides.
        eps = max(eps_of(leaf.dtype) for leaf in jax.tree.leaves(layer))
        heads.append(Head(W_V, W_K, W_Q, layer.decays, out, prefix, eps))
    return Attention(tuple(heads), source.d_in, source.d_out, biased)


def eps_of(dtype: np.dtype) -> float:
    """Return the eps of a precision; half precision counts as float32.

    Its eps of 1e-3 would take singular values for rounding that the function shows.
    """
    return min(float(np.finfo(dtype).eps), float(np.finfo(np.float32).eps))


def numerical_rank(
    singular_values: np.ndarray, shape: tuple[int, ...], eps: float, floor: float = 0
) -> int:
    """Count the singular values that are more than rounding, and above the floor."""
    if singular_values.size == 0:
        return 0
    return int(np.sum(singular_values > max(max(shape) * eps * singular_values[0], floor)))


class GatedWeights(NamedTuple):
    """The weights of Eq. 2."""

    W_in_m: np.ndarray
    W_in_x: np.ndarray
    decay: np.ndarray
    W_out_m: np.ndarray
    W_out_x: np.ndarray
    D: np.ndarray


def read_gated_rnn(rnn: GatedRNN) -> GatedWeights:
    """Return a gated RNN's weights in float64."""
    weights = (getattr(rnn, name) for name in GatedWeights._fields)
    return GatedWeights(*(np.asarray(W, np.float64) for W in weights))
