"""Sources in one form: heads in float64, biases as the last column of [W|b] on [x;1].

Ranks count singular values above max(shape)·eps·σ₁, with eps of the source's own precision.
The product M = W_KᵀW_Q carries rounding of size eps·|W_K||W_Q| however small M itself is, so
for M that product takes the place of σ₁.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import jax
import numpy as np

from underhood.common.arrays import Weight
from underhood.layers import LinearAttention, MultiHead


@dataclass(frozen=True)
class Head:
    """One head: W_V, W_K, W_Q [rows, d̃], the decay of each value row, and its way out."""

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
        """Value rows of equal decay: their indices and the decay."""
        for decay in np.unique(self.decay)[::-1]:
            yield np.flatnonzero(self.decay == decay), float(decay)


@dataclass(frozen=True)
class Attention:
    """Linear attention with any number of heads, as the constructions read it."""

    heads: tuple[Head, ...]
    d_in: int
    d_out: int
    biased: bool

    @property
    def decays(self) -> bool:
        """Whether any row fades."""
        return any(bool(np.any(head.decay != 1)) for head in self.heads)


def read_attention(source: LinearAttention | MultiHead) -> Attention:
    """The source's weights in float64."""
    layers = source.heads if isinstance(source, MultiHead) else (source,)
    biased = any(b is not None for one in layers for b in (one.b_V, one.b_K, one.b_Q))
    widths = [one.d_out for one in layers]
    mixed = None if not isinstance(source, MultiHead) else source.W_O
    outs = np.eye(sum(widths)) if mixed is None else np.asarray(mixed, np.float64)
    heads = []
    for number, (one, out) in enumerate(
        zip(layers, np.split(outs, np.cumsum(widths)[:-1], axis=1), strict=True)
    ):
        decay = np.ones(one.d_out) if one.nu is None else np.asarray(one.decay, np.float64)
        pairs = ((one.W_V, one.b_V), (one.W_K, one.b_K), (one.W_Q, one.b_Q))
        W_V, W_K, W_Q = (with_bias(W, b) if biased else np.asarray(W, np.float64) for W, b in pairs)
        prefix = f"head{number}." if len(layers) > 1 else ""
        heads.append(Head(W_V, W_K, W_Q, decay, out, prefix, precision(one)))
    return Attention(tuple(heads), source.d_in, source.d_out, biased)


def with_bias(W: Weight, b: Weight | None) -> np.ndarray:
    """[W|b], b = 0 when there is none."""
    column = np.zeros(W.shape[0]) if b is None else np.asarray(b, np.float64)
    return np.column_stack([np.asarray(W, np.float64), column])


def precision(layer: LinearAttention) -> float:
    """The rounding of the source's own numbers: the coarsest of its arrays."""
    return max(float(np.finfo(leaf.dtype).eps) for leaf in jax.tree.leaves(layer))


def rank(singular_values: np.ndarray, shape: tuple[int, ...], eps: float, floor: float = 0) -> int:
    """How many singular values are not rounding."""
    if singular_values.size == 0:
        return 0
    return int(np.sum(singular_values > max(max(shape) * eps * singular_values[0], floor)))
