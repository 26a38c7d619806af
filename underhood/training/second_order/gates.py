"""Kernels into gate outputs: K_o = sym(Σ_j D_oj m_j x_jᵀ).

A network reads its neurons through the kernels alone, so gate outputs may be exchanged for any
others that give the same kernels. Rows m, x [gates, neurons], D [d_out, gates].
"""

import numpy as np

# D, m and x.
GateOutputs = tuple[np.ndarray, np.ndarray, np.ndarray]


def stack_gates(parts: list[GateOutputs], d_out: int, neurons: int) -> GateOutputs:
    """Return the gate outputs of all parts, one after the other."""
    nothing = np.zeros((d_out, 0)), np.zeros((0, neurons)), np.zeros((0, neurons))
    D, m, x = zip(nothing, *parts, strict=True)
    return np.hstack(D), np.vstack(m), np.vstack(x)


def eigen_gates(kernels: np.ndarray, tolerance: float = 1e-14) -> GateOutputs:
    """Return D, m and x that give the kernels: for each output, its eigenvectors in pairs.

    λ₁ uuᵀ − λ₂ wwᵀ = sym((√λ₁u + √λ₂w)(√λ₁u − √λ₂w)ᵀ), so a kernel needs as many products as it
    has eigenvalues of the more frequent sign.

    tolerance  smaller eigenvalues are dropped, as a share of the largest entry of all kernels
    """
    d_out, n, _ = kernels.shape
    parts = []
    largest = max(float(np.max(np.abs(kernels), initial=0.0)), 1e-300)
    for o, kernel in enumerate(kernels):
        values, vectors = np.linalg.eigh(kernel)
        scaled = (np.sqrt(np.abs(values)) * vectors).T
        up, down = (scaled[sign * values > tolerance * largest] for sign in (1, -1))
        many = max(len(up), len(down))
        u, w = (np.pad(rows, ((0, many - len(rows)), (0, 0))) for rows in (up, down))
        parts.append((np.eye(d_out)[:, [o] * many], u + w, u - w))
    return stack_gates(parts, d_out, n)
