"""The range of a network's features F, which its linear part can reach, known in two ways.

A Cholesky factor of FᵀF costs a tenth of an orthonormal basis and loses half of the digits: enough
until the loss is small. The last steps use the basis, and reach rounding.
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular

# Added to the diagonal of FᵀF, whose entries are 1, so that its factor exists.
RIDGE = 1e-14
# Singular values of the scaled F below this share of the largest are rounding.
DEPENDENT = 1e-12


@dataclass(frozen=True)
class FastRange:
    """The range of F by a Cholesky factor L of the scaled FᵀF; `features` are scaled too."""

    features: np.ndarray
    L: np.ndarray

    # What the ridge and rounding left is taken out again.
    PASSES = 3

    @classmethod
    def of(cls, features: np.ndarray) -> "FastRange":
        gram = features.T @ features
        gram[np.diag_indices_from(gram)] += RIDGE
        return cls(features, cholesky(gram, lower=True, overwrite_a=True, check_finite=False))

    def solve(self, residual: np.ndarray) -> np.ndarray:
        """Return coefficients of the columns that fit a residual."""
        seen = self.features.T @ residual
        coefficients: np.ndarray = cho_solve((self.L, True), seen, check_finite=False)
        return coefficients

    def outside(self, blocks: list[np.ndarray]) -> list[np.ndarray]:
        """Return the blocks as they are: `normal` takes their part in the range out."""
        return blocks

    def normal(self, J: np.ndarray) -> np.ndarray:
        """Return JᵀJ without the part of J in the range."""
        seen = self.features.T @ J
        inside = solve_triangular(self.L, seen, lower=True, overwrite_b=True, check_finite=False)
        product: np.ndarray = J.T @ J - inside.T @ inside
        return product

    def rest(self, vectors: np.ndarray) -> np.ndarray:
        """Return columns without their part in the range."""
        left: np.ndarray = vectors - self.features @ self.solve(vectors)
        return left


@dataclass(frozen=True)
class ExactRange:
    """The range of F by an orthonormal basis; `inverse` [columns, rank] solves in it."""

    basis: np.ndarray
    inverse: np.ndarray

    PASSES = 2

    @classmethod
    def of(cls, features: np.ndarray) -> "ExactRange":
        left, values, right = np.linalg.svd(features, full_matrices=False)
        kept = values > DEPENDENT * np.max(values, initial=0.0)
        return cls(left[:, kept], right[kept].T / values[kept])

    def solve(self, residual: np.ndarray) -> np.ndarray:
        coefficients: np.ndarray = self.inverse @ (self.basis.T @ residual)
        return coefficients

    def outside(self, blocks: list[np.ndarray]) -> list[np.ndarray]:
        """Return the blocks without their part in the range."""
        return [self.rest(block) for block in blocks]

    def normal(self, J: np.ndarray) -> np.ndarray:
        product: np.ndarray = J.T @ J
        return product

    def rest(self, vectors: np.ndarray) -> np.ndarray:
        left: np.ndarray = vectors - self.basis @ (self.basis.T @ vectors)
        return left
