"""A dense recurrence in the basis of its eigenvectors: A = P Λ P⁻¹ with every λ in [0, 1]."""

from dataclasses import dataclass

import numpy as np

from underhood.common.errors import BadInput

# Eigenvalues this far from [0, 1] are there up to rounding.
EIGENVALUE_ROUNDING = 1e-12
# Eigenvectors nearer to each other than this leave too few digits.
LARGEST_CONDITION = 1e6


class NotDiagonal(BadInput):
    """A recurrent matrix without decays: it cannot be read as neurons that fade."""


@dataclass(frozen=True)
class Eigenbasis:
    """decay [n], P [n, n] with columns of length one, P⁻¹, and |P|·|P⁻¹|."""

    decay: np.ndarray
    P: np.ndarray
    P_inverse: np.ndarray
    condition: float


def diagonalise(A: np.ndarray) -> Eigenbasis:
    """Return the eigenbasis of A, or refuse a matrix that has none with decays."""
    values, P = np.linalg.eig(A)
    condition = float(np.linalg.cond(P)) if P.size else 1.0
    reason = None
    if np.any(np.abs(values.imag) > EIGENVALUE_ROUNDING):
        reason = "it has complex eigenvalues"
    elif np.any(np.abs(values.real - np.clip(values.real, 0, 1)) > EIGENVALUE_ROUNDING):
        low, high = float(np.min(values.real)), float(np.max(values.real))
        outside = low if low < -EIGENVALUE_ROUNDING else high
        reason = f"it has the eigenvalue {outside!r}, and decays lie from 0 to 1"
    elif condition > LARGEST_CONDITION:
        reason = f"its eigenvectors are nearly dependent (condition {condition:.2g})"
    if reason is not None:
        raise NotDiagonal(f"DenseGatedRNN: A cannot be read as decays: {reason}.")
    P = P.real
    return Eigenbasis(np.clip(values.real, 0.0, 1.0), P, np.linalg.inv(P), condition)
