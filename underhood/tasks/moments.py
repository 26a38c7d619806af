"""Mean and variance of what linear attention outputs on x ~ N(0, I), in closed form (ours).

With z = [x; 1], w = row i of [W_V|b_V], M = [W_K|b_K]ᵀ[W_Q|b_Q] and λ the decay of row i,

    y_t = p·z_t + (w·z_t)(z_tᵀMz_t),    p = Σ_{s<t} λ^{t−s} (w·z_s) Mᵀz_s.

p and z_t are independent, and products of quadratic forms in z follow from their cumulants.
docs/population.md has the derivation; e is the unit vector of the constant, σ = eᵀSe.
"""

import jax
import numpy as np

from underhood.common.errors import BadInput
from underhood.layers import LinearAttention


def output_moments(attention: LinearAttention, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return E[y] and E[y²], both [d_v, length]."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(attention)):
        raise BadInput(
            "The closed form needs the numbers in the weights: call it outside jit and vmap."
        )
    W, K, Q = attention.augmented()
    M = K.T @ Q
    S = (M + M.T) / 2
    e = np.eye(len(M))[-1]
    mu, w0, trace, sigma = W @ M, W[:, -1], np.trace(S), S[-1, -1]

    def dot(A: np.ndarray, B: np.ndarray) -> np.ndarray:
        return np.sum(A * B, axis=-1)

    def with_form(A: np.ndarray, B: np.ndarray) -> np.ndarray:
        """Return E[(a·z)(b·z)(zᵀMz)], row by row."""
        return dot(A, B) * trace + 2 * (dot(A @ S, B) - A[..., -1] * B[..., -1] * sigma)

    spread = dot(mu, mu) + dot(W, W) * np.sum(M**2) - 2 * w0**2 * np.sum(M[-1] ** 2)
    with_square = (
        dot(W, W) * (trace**2 + 2 * np.sum(S**2) - 2 * sigma**2)
        + 4 * trace * (dot(W @ S, W) - w0**2 * sigma)
        + 8 * (dot(W @ S, W @ S) - w0**2 * np.sum(S[-1] ** 2))
        - 16 * sigma * w0 * (W @ S[-1] - sigma * w0)
    )

    powers = attention.decays[:, None] ** np.arange(1, length)
    s1, s2 = (np.cumsum(np.pad(kept, ((0, 0), (1, 0))), axis=1) for kept in (powers, powers**2))
    means = s1 * mu[:, -1:] + with_form(W, e)[:, None]
    earlier = s1**2 * dot(mu, mu)[:, None] + s2 * spread[:, None]
    squares = earlier + 2 * s1 * with_form(mu, W)[:, None] + with_square[:, None]
    return means, squares
