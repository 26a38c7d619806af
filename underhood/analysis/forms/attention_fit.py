"""The attention nearest to a table of coefficients.

Attention y = W_V S M z is linear in the memory S, a symmetric matrix, and in the current z, so it
is the table T[o, a, b, c] = ½(W_V[o,a] M[b,c] + W_V[o,b] M[a,c]) over S_ab z_c. Given any such
table, W_V and M are fitted by turns. Each turn is a small linear system, because

    ⟨sym(V⊗M), sym(V'⊗M)⟩ = ½ Σ_o v_oᵀ(|M|²I + MMᵀ)v'_o
    ⟨sym(V⊗M), sym(V⊗M')⟩ = ½ ⟨M, (|V|²I + VᵀV)M'⟩,

and no turn makes the fit worse. The first guess is the leading singular pair of T as a matrix from
(b, c) to (o, a), where sym(V⊗M) is ½ V⊗M and a remainder spread over many directions; random
guesses follow where that is not enough.
"""

from dataclasses import dataclass

import numpy as np

TURNS = 2000
# A fit of this relative accuracy is exact but for rounding.
EXACT = 1e-13


@dataclass(frozen=True)
class AttentionFit:
    """W_V [outputs, p] and M [p, columns], with |W_V| = |M|, and what they leave unexplained."""

    W_V: np.ndarray
    M: np.ndarray
    residual: float


def table_of(W_V: np.ndarray, M: np.ndarray) -> np.ndarray:
    """Attention's coefficients over S_ab z_c, symmetric in a and b."""
    table = np.einsum("oa,bc->oabc", W_V, M)
    return (table + table.swapaxes(1, 2)) / 2


def fit_attention(table: np.ndarray, *, guesses: int = 8, seed: int = 0) -> AttentionFit:
    """The best W_V and M for a table [outputs, p, p, columns], symmetric in its middle axes.

    `residual` is the norm of the difference over the norm of the table; 0 for a table of zeros.
    """
    outputs, p, _, columns = table.shape
    norm = float(np.linalg.norm(table))
    nothing = AttentionFit(np.zeros((outputs, p)), np.zeros((p, columns)), 0.0)
    if norm == 0:
        return nothing
    scaled = table / norm
    rng = np.random.default_rng(seed)
    _, _, right = np.linalg.svd(scaled.reshape(outputs * p, p * columns), full_matrices=False)
    best = nothing
    for guess in range(guesses):
        start = right[guess] if guess < min(2, len(right)) else rng.normal(size=p * columns)
        found = by_turns(scaled, start.reshape(p, columns))
        if guess == 0 or found.residual < best.residual:
            best = found
        if best.residual < EXACT * 100:
            break
    size = np.sqrt(norm)
    return AttentionFit(size * best.W_V, size * best.M, best.residual)


def by_turns(table: np.ndarray, M: np.ndarray) -> AttentionFit:
    """Fit W_V to M and M to W_V until neither moves."""
    V, before = np.zeros(table.shape[:2]), np.inf
    for _ in range(TURNS):
        V = np.linalg.solve(normal(M), np.einsum("oabc,bc->ao", table, M)).T
        M = np.linalg.solve(normal(V.T), np.einsum("oabc,oa->bc", table, V))
        # The split of scale between the two is free; equal norms keep both systems sound.
        ratio = np.sqrt(np.linalg.norm(M) / max(float(np.linalg.norm(V)), 1e-300))
        V, M = V * ratio, M / ratio
        residual = float(np.linalg.norm(table - table_of(V, M)))
        if residual < EXACT or before - residual < 1e-4 * EXACT * max(residual, 1.0):
            break
        before = residual
    return AttentionFit(V, M, residual)


def normal(M: np.ndarray) -> np.ndarray:
    """½(|M|²I + MMᵀ), with a floor that rounding cannot go below."""
    size = float(np.sum(M**2))
    return 0.5 * (max(size, 1e-300) * np.eye(len(M)) + M @ M.T)
