"""Fitting linear attention to what the past decides: a least-squares problem at one λ.

    ŷ_t = W_V S_t M z_t,  S_t = Σ_{s≤t} λ^{t−s} z_s z_sᵀ    (z = x, or [x; 1] for biases)

A row is two sequences with the same token z_t and different pasts (`pairs.py`). Attention's two
outputs differ by Δŷ = W_V ΔS M z_t, where the term of z_t itself has dropped out of ΔS. Several
attentions may agree on all Δŷ, as on one-hot tokens. To choose among them, the outputs themselves
are rows too, with a thousandth of the weight.

The features are f_ak = ΔS_ab z_c, k = (b, c), so that Δŷ_o = Σ W_V[o,a] M[k] f_ak. The Gram matrix
is G[a,A,j,k] = Σ f_aj f_Ak over all rows. S is symmetric, so features with a ≤ b are enough.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from underhood.analysis.scoring.pairs import SequencePairs
from underhood.common.linear_algebra import upper

# What all outputs weigh in the fit, against all differences.
WHOLE_WEIGHT = 1e-3


@dataclass(frozen=True)
class AttentionPoint:
    """W_V [outputs, p], M [p, p], λ, and the sum of squares that they leave."""

    W_V: np.ndarray
    M: np.ndarray
    decay: float
    cost: float


class Problem:
    """Pairs, the differences and the outputs [rows, outputs] of a layer on them, at one λ."""

    def __init__(
        self, pairs: SequencePairs, differences: np.ndarray, outputs: np.ndarray, decay: float
    ):
        self.pairs, self.differences, self.outputs, self.decay = pairs, differences, outputs, decay
        self.p = pairs.pasts.shape[2]
        memories = pairs.memories(decay)
        squares = float(np.sum(differences**2)), float(np.sum(outputs**2))
        weight = float(np.sqrt(WHOLE_WEIGHT * squares[0] / (squares[1] or 1.0)))
        self.zs = np.concatenate([pairs.tokens, pairs.tokens])
        self.ys = np.concatenate([differences, weight * outputs])
        # ΔS above, and S of the outputs below; their derivatives by λ.
        self.S = np.concatenate([memories.difference, weight * memories.S])
        self.S_slope = np.concatenate([memories.difference_slope, weight * memories.slope])
        self.total = float(np.sum(self.ys**2))

    def at(self, decay: float) -> "Problem":
        if decay == self.decay:
            return self
        return Problem(self.pairs, self.differences, self.outputs, decay)

    @cached_property
    def features(self) -> np.ndarray:
        """ΔS_ab z_c for a ≤ b: [rows, entries·p]."""
        rows, columns = upper(self.p)
        return (self.S[:, rows, columns, None] * self.zs[:, None]).reshape(len(self.zs), -1)

    @cached_property
    def places(self) -> np.ndarray:
        """Where f_ak stands among the features: [p, p·p]."""
        rows, columns = upper(self.p)
        pair = np.zeros((self.p, self.p), int)
        pair[rows, columns] = pair[columns, rows] = np.arange(len(rows))
        return (pair[:, :, None] * self.p + np.arange(self.p)).reshape(self.p, -1)

    @cached_property
    def gram(self) -> np.ndarray:
        """FᵀF over the features."""
        return self.features.T @ self.features

    @cached_property
    def G(self) -> np.ndarray:
        """G[a,A,j,k] as a matrix [p·p, (p·p)·(p·p)]."""
        full = self.gram[self.places[:, None, :, None], self.places[None, :, None, :]]
        return full.reshape(self.p**2, -1)

    def onto_features(self, values: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """Return Σ over all rows, or over the given ones, of values_o f_ak: [outputs, p, p·p]."""
        if rows is None:
            return (self.features.T @ values)[self.places].transpose(2, 0, 1)
        return (self.features[rows].T @ values[rows])[self.places].transpose(2, 0, 1)

    def regression(self) -> np.ndarray:
        """Return the best coefficients of all ΔS_ab z_c: [outputs, p, p, p]."""
        coefficients = np.linalg.solve(ridged(self.gram), self.features.T @ self.ys)
        # A feature with a < b stands for two entries of the symmetric table.
        share = np.where(np.eye(self.p, dtype=bool), 1.0, 0.5)[:, :, None]
        return share * coefficients.T[:, self.places.reshape(self.p, self.p, self.p)]

    def read(self, M: np.ndarray) -> np.ndarray:
        """Return ΔS M z, what W_V reads: [rows, p]."""
        return apply(self.S, self.zs @ M.T)

    def residuals(self, W_V: np.ndarray, M: np.ndarray) -> np.ndarray:
        """Return Δy − Δŷ: [rows, outputs]."""
        return self.ys - self.read(M) @ W_V.T

    def fit(self, W_V: np.ndarray, M: np.ndarray) -> AttentionPoint:
        """Return W_V and M with the cost they leave."""
        return AttentionPoint(W_V, M, self.decay, float(np.sum(self.residuals(W_V, M) ** 2)))


def apply(matrices: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Multiply one matrix per row with one vector per row."""
    return (matrices @ vectors[:, :, None])[:, :, 0]


def ridged(matrix: np.ndarray) -> np.ndarray:
    """Add 1e-13 of a matrix's size to its diagonal: what no feature determines stays near 0."""
    return matrix + max(1e-13 * np.trace(matrix) / len(matrix), 1e-300) * np.eye(len(matrix))
