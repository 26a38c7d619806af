"""The attention nearest to a table of coefficients.

Attention y = W_V S M z is linear in the memory S, a symmetric matrix, and in the current z, so it
is the table T[o, a, b, c] = ½(W_V[o,a] M[b,c] + W_V[o,b] M[a,c]) over S_ab z_c. For any such table,
W_V is fitted to M and M to W_V, by turns, each a small linear system (docs/inside.md). No turn
makes the fit worse. The first guess is the leading singular pair of T as a matrix from (b, c) to
(o, a). There sym(V⊗M) is ½ V⊗M plus a remainder that is spread over many directions. If that guess
is not enough, random guesses follow.
"""

from dataclasses import dataclass

import numpy as np
from scipy.sparse.linalg import svds

from underhood.constructions.sources.heads import numerical_rank
from underhood.layers import LinearAttention

MOST_TURNS = 2000
# A fit of this relative accuracy is exact up to rounding.
EXACT_TABLE = 1e-13
# Of a larger matrix only two singular vectors are computed.
LARGE = 200


@dataclass(frozen=True)
class AttentionFit:
    """W_V [outputs, p] and M [p, columns], |W_V| = |M|, and the share of the table they miss."""

    W_V: np.ndarray
    M: np.ndarray
    residual: float


def table_of(W_V: np.ndarray, M: np.ndarray) -> np.ndarray:
    """Return attention's coefficients over S_ab z_c, symmetric in a and b."""
    table = np.einsum("oa,bc->oabc", W_V, M)
    return (table + table.swapaxes(1, 2)) / 2


def fit_attention(
    table: np.ndarray, *, guesses: int = 8, seed: int = 0, goal: float = EXACT_TABLE
) -> AttentionFit:
    """Return the best W_V and M for a table [outputs, p, p, columns], symmetric in a and b.

    goal  turns end with a share that is smaller than this
    """
    outputs, p, _, columns = table.shape
    norm = float(np.linalg.norm(table))
    nothing = AttentionFit(np.zeros((outputs, p)), np.zeros((p, columns)), 0.0)
    if norm == 0:
        return nothing
    scaled = table / norm
    rng = np.random.default_rng(seed)
    right = leading_rows(scaled.reshape(outputs * p, p * columns), rng)
    best = nothing
    for guess in range(guesses):
        start = right[guess] if guess < min(2, len(right)) else rng.normal(size=p * columns)
        fit = alternate(scaled, start.reshape(p, columns), goal)
        if guess == 0 or fit.residual < best.residual:
            best = fit
        if best.residual < EXACT_TABLE * 100:
            break
    size = np.sqrt(norm)
    return AttentionFit(size * best.W_V, size * best.M, best.residual)


def leading_rows(matrix: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return right singular vectors of a matrix, the largest first; two of a large matrix."""
    if min(matrix.shape) <= LARGE:
        return np.asarray(np.linalg.svd(matrix, full_matrices=False)[2])
    start = rng.normal(size=min(matrix.shape))
    _, values, right = svds(matrix, k=2, v0=start, tol=1e-4)
    return np.asarray(right[np.argsort(-values)])


def alternate(table: np.ndarray, M: np.ndarray, goal: float = EXACT_TABLE) -> AttentionFit:
    """Fit W_V to M and M to W_V until neither moves, or until they miss less than `goal`."""
    V, before = np.zeros(table.shape[:2]), np.inf
    flat = table.reshape(V.size, M.size)
    for _ in range(MOST_TURNS):
        V = np.linalg.solve(turn_matrix(M), (flat @ M.ravel()).reshape(V.shape).T).T
        M = np.linalg.solve(turn_matrix(V.T), (V.ravel() @ flat).reshape(M.shape))
        # How the two share their scale is free; equal norms keep both systems well-conditioned.
        ratio = np.sqrt(np.linalg.norm(M) / max(float(np.linalg.norm(V)), 1e-300))
        V, M = V * ratio, M / ratio
        residual = distance_to(table, V, M)
        if residual < goal or before - residual < 1e-4 * EXACT_TABLE * max(residual, 1.0):
            break
        before = residual
    return AttentionFit(V, M, residual)


def distance_to(table: np.ndarray, W_V: np.ndarray, M: np.ndarray) -> float:
    """Return |table − attention's table|, output by output to save memory."""
    total = 0.0
    for wanted, values in zip(table, W_V, strict=True):
        apart = wanted - table_of(values[None], M)[0]
        total += float(np.vdot(apart, apart))
    return float(np.sqrt(total))


def turn_matrix(M: np.ndarray) -> np.ndarray:
    """Return ½(|M|²I + MMᵀ), the matrix of one turn; it is invertible for M = 0 too."""
    size = float(np.sum(M**2))
    return 0.5 * (max(size, 1e-300) * np.eye(len(M)) + M @ M.T)


def attention_with(
    V: np.ndarray, M: np.ndarray, decay: np.ndarray, *, d_in: int, biases: bool, noise: float = 0.0
) -> LinearAttention:
    """Return the attention with values V z and with M = W_KᵀW_Q, over z = x or z = [x; 1].

    M is split by its singular values, W_K = √Σ Uᵀ and W_Q = √Σ Vᵀ: one key for each that is not 0.

    decay   of each output
    biases  whether the last columns are biases
    noise   smaller singular values count as 0, as a share of the largest
    """
    left, values, right = np.linalg.svd(M)
    keys = numerical_rank(values, M.shape, float(np.finfo(float).eps), noise * float(values[0]))
    scale = np.sqrt(values[:keys])[:, None]
    weights = (V, scale * left[:, :keys].T, scale * right[:keys])
    extra = dict(zip(("b_V", "b_K", "b_Q"), (W[:, -1] for W in weights), strict=True))
    return LinearAttention(
        *(W[:, :d_in] for W in weights),
        decay=None if np.all(decay == 1) else decay,
        **(extra if biases else {}),
    )
