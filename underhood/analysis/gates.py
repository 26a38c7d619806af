"""Kernels into gate outputs: K_o = sym(Σ_j D_oj m_j x_jᵀ), with few j.

A network reads its neurons through the kernels alone, so gate outputs may be exchanged for any
others that give the same kernels. Few of them are found by damped Gauss–Newton on the entries of
K, from the gate outputs at hand or from random ones; the kernels of all outputs are matched at
once. Rows m, x [gates, neurons], D [d_out, gates].
"""

from dataclasses import dataclass

import numpy as np

STEPS = 300
# Kernels that agree to this share of their norm are the same but for rounding.
EXACT = 1e-13


@dataclass(frozen=True)
class Gates:
    """D, m, x and the share of the kernels' norm that they miss."""

    D: np.ndarray
    m: np.ndarray
    x: np.ndarray
    misfit: float


def kernels_of(D: np.ndarray, m: np.ndarray, x: np.ndarray) -> np.ndarray:
    """K [d_out, neurons, neurons], symmetric."""
    half = np.einsum("oj,ja,jb->oab", D, m, x, optimize=True) / 2
    return half + half.swapaxes(1, 2)


def match(kernels: np.ndarray, D: np.ndarray, m: np.ndarray, x: np.ndarray) -> Gates:
    """Move gate outputs until they give the kernels, by damped Gauss–Newton."""
    norm = float(np.linalg.norm(kernels))
    if norm == 0 or D.shape[1] == 0:
        return Gates(D, m, x, 0.0 if norm == 0 else 1.0)
    kernels = kernels / norm
    D, m, x = balanced(D / norm, m, x)
    d_out, gates, n = len(D), D.shape[1], m.shape[1]
    rows, columns = np.triu_indices(n)
    weight = np.where(rows == columns, 1.0, np.sqrt(2.0))

    def misfit(D: np.ndarray, m: np.ndarray, x: np.ndarray) -> np.ndarray:
        return ((kernels_of(D, m, x) - kernels)[:, rows, columns] * weight).ravel()

    residual, damping = misfit(D, m, x), 1e-3
    for _ in range(STEPS):
        cost = float(residual @ residual)
        if cost < EXACT**2:
            break
        J = jacobian(D, m, x, rows, columns, weight)
        normal = J.T @ J
        level = damping * float(np.trace(normal)) / len(normal)
        try:
            step = -np.linalg.solve(normal + level * np.eye(len(normal)), J.T @ residual)
        except np.linalg.LinAlgError:
            damping *= 10
            continue
        moved = (
            D + step[: d_out * gates].reshape(gates, d_out).T,
            m + step[d_out * gates : (d_out + n) * gates].reshape(gates, n),
            x + step[(d_out + n) * gates :].reshape(gates, n),
        )
        trial = misfit(*moved)
        better = float(trial @ trial)
        if better < cost:
            D, m, x = balanced(*moved)
            residual, damping = trial, max(damping / 5, 1e-15)
            if cost - better < 1e-6 * cost:
                break
        else:
            damping *= 5
            if damping > 1e6:
                break
    return Gates(D * norm, m, x, float(np.linalg.norm(residual)))


def jacobian(
    D: np.ndarray,
    m: np.ndarray,
    x: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    weight: np.ndarray,
) -> np.ndarray:
    """Derivatives of the weighted entries [outputs × entries, parameters], gate by gate."""
    d_out, gates, n, many = len(D), D.shape[1], m.shape[1], len(rows)
    places = np.arange(many)

    def towards(other: np.ndarray) -> np.ndarray:
        """∂/∂m of sym(m xᵀ) [gates, n, entries]; the same for x with m in its place."""
        found = np.zeros((gates, n, many))
        found[:, rows, places] += other[:, columns] / 2
        found[:, columns, places] += other[:, rows] / 2
        return found * weight

    products = (m[:, rows] * x[:, columns] + m[:, columns] * x[:, rows]) / 2 * weight
    by_D = np.zeros((gates, d_out, d_out, many))
    by_D[:, np.arange(d_out), np.arange(d_out)] = products[:, None]
    by_m, by_x = (np.einsum("oj,jne->jnoe", D, towards(one)) for one in (x, m))
    return np.concatenate([one.reshape(-1, d_out * many) for one in (by_D, by_m, by_x)], axis=0).T


def balanced(D: np.ndarray, m: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, ...]:
    """The same products with |D_j| = |m_j| = |x_j|."""
    sizes = [np.linalg.norm(D, axis=0), np.linalg.norm(m, axis=1), np.linalg.norm(x, axis=1)]
    common = np.cbrt(np.prod(sizes, axis=0))
    a, b, c = (common / np.where(one > 0, one, 1.0) for one in sizes)
    return D * a, m * b[:, None], x * c[:, None]


def random_gates(
    kernels: np.ndarray, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, ...]:
    d_out, n, _ = kernels.shape
    return (
        rng.normal(size=(d_out, count)),
        rng.normal(size=(count, n)),
        rng.normal(size=(count, n)),
    )


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
        np.array(D).reshape(-1, d_out).T,
        np.array(m).reshape(-1, n),
        np.array(x).reshape(-1, n),
    )
