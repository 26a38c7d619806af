"""Fitting linear attention to given outputs: a least-squares problem at one λ.

    ŷ_t = W_V S_t M z_t,  S_t = Σ_{s≤t} λ^{t−s} z_s z_sᵀ    (z = x, or [x; 1] for biases)

The features are f_ak = S_ab z_c, k = (b, c), so that ŷ_o = Σ W_V[o,a] M[k] f_ak. The Gram matrix is
G[a,A,j,k] = Σ f_aj f_Ak over all tokens. S is symmetric, so features with a ≤ b are enough.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from underhood.analysis.forms.linear_algebra import decay_slopes, decayed_sums, upper


@dataclass(frozen=True)
class Fit:
    """W_V [outputs, p], M [p, p], λ, and the sum of squares that they leave."""

    W_V: np.ndarray
    M: np.ndarray
    decay: float
    cost: float


class Problem:
    """Tokens [batch, time, p] and outputs [batch, time, outputs] at one λ."""

    def __init__(self, tokens: np.ndarray, outputs: np.ndarray, decay: float):
        self.tokens, self.outputs, self.decay = tokens, outputs, decay
        self.p = tokens.shape[2]
        self.zs, self.ys = (array.reshape(-1, array.shape[2]) for array in (tokens, outputs))
        self.S, self.S_slope = memories(tokens, decay)
        self.total = float(np.sum(self.ys**2))

    def at(self, decay: float) -> "Problem":
        return self if decay == self.decay else Problem(self.tokens, self.outputs, decay)

    @cached_property
    def features(self) -> np.ndarray:
        """S_ab z_c for a ≤ b: [tokens, pairs·p]."""
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

    def onto_features(self, values: np.ndarray) -> np.ndarray:
        """Return Σ over tokens of values_o f_ak: [outputs, p, p·p]."""
        return (self.features.T @ values)[self.places].transpose(2, 0, 1)

    def regression(self) -> np.ndarray:
        """Return the best coefficients of all S_ab z_c: [outputs, p, p, p]."""
        coefficients = np.linalg.solve(ridged(self.gram), self.features.T @ self.ys)
        # A feature with a < b stands for two entries of the symmetric table.
        share = np.where(np.eye(self.p, dtype=bool), 1.0, 0.5)[:, :, None]
        return share * coefficients.T[:, self.places.reshape(self.p, self.p, self.p)]

    def read(self, M: np.ndarray) -> np.ndarray:
        """Return S M z, what W_V reads: [tokens, p]."""
        return apply(self.S, self.zs @ M.T)

    def residuals(self, W_V: np.ndarray, M: np.ndarray) -> np.ndarray:
        """Return y − ŷ: [tokens, outputs]."""
        return self.ys - self.read(M) @ W_V.T

    def fit(self, W_V: np.ndarray, M: np.ndarray) -> Fit:
        """Return W_V and M with the cost they leave."""
        return Fit(W_V, M, self.decay, float(np.sum(self.residuals(W_V, M) ** 2)))


def memories(tokens: np.ndarray, decay: float) -> tuple[np.ndarray, np.ndarray]:
    """Return S and dS/dλ after every token: [tokens, p, p] each."""
    S = decayed_sums(decay, tokens[:, :, :, None] * tokens[:, :, None])
    slope = decay_slopes(decay, S)
    return S.reshape(-1, *S.shape[2:]), slope.reshape(-1, *S.shape[2:])


def apply(matrices: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Multiply one matrix per token with one vector per token."""
    return (matrices @ vectors[:, :, None])[:, :, 0]


def ridged(matrix: np.ndarray) -> np.ndarray:
    """Add 1e-13 of a matrix's size to its diagonal: what no feature determines stays near 0."""
    return matrix + max(1e-13 * np.trace(matrix) / len(matrix), 1e-300) * np.eye(len(matrix))
