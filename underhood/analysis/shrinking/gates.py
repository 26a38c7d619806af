"""Kernels into gate outputs: K_o = sym(Σ_j D_oj m_j x_jᵀ).

A network reads its neurons through the kernels alone, so gate outputs may be exchanged for any
others that give the same kernels. Rows m, x [gates, neurons], D [d_out, gates].
"""

import numpy as np


def eigen_gates(kernels: np.ndarray, tolerance: float = 1e-14) -> tuple[np.ndarray, ...]:
    """Gate outputs that give the kernels outright: for each output, its eigenvectors in pairs.

    λ₁ uuᵀ − λ₂ wwᵀ = sym((√λ₁u + √λ₂w)(√λ₁u − √λ₂w)ᵀ), so a kernel needs as many products as it
    has eigenvalues of the more frequent sign.
    """
    d_out, n, _ = kernels.shape
    D, m, x = [], [], []
    largest = max(float(np.max(np.abs(kernels), initial=0.0)), 1e-300)
    for o, kernel in enumerate(kernels):
        values, vectors = np.linalg.eigh(kernel)
        scaled = (np.sqrt(np.abs(values)) * vectors).T
        up, down = (scaled[sign * values > tolerance * largest] for sign in (1, -1))
        for place in range(max(len(up), len(down))):
            u = up[place] if place < len(up) else np.zeros(n)
            w = down[place] if place < len(down) else np.zeros(n)
            D.append(np.eye(d_out)[o])
            m.append(u + w)
            x.append(u - w)
    return (
        np.array(D).reshape(len(D), d_out).T,
        np.array(m).reshape(len(m), n),
        np.array(x).reshape(len(x), n),
    )
