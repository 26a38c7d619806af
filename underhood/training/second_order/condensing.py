"""A network near a solution, with as many neurons as the function asks for.

A wide network finds the function easily, but its surplus neurons make the last digits slow: they
must cancel each other exactly. Near a solution the decays show which neurons are memory (λ = 1) and
which hold the current token (λ = 0). The neurons of one decay are read through the tables

    T_ab = Q_aᵀ K_o Q_b,    Q the reads of the neurons over the products of [x; 1],

so what is read of them is a space of reads, whose dimension is the number of neurons that are
needed. What counts are tables between memory and the current token; the others are left out. New
neurons that span that space take the place of the old ones. Least-squares steps do the rest.
"""

import numpy as np
from scipy.linalg import qr

from underhood.common.decay import kinds
from underhood.common.linear_algebra import symmetric_part, symmetric_reads
from underhood.training.second_order.separable import SeparableNetwork, row_sizes

# What is read is told from noise at the largest gap between singular values, from this ratio on,
# where what is below the gap is at most so many times the noise.
LEAST_GAP, ABOVE_NOISE = 20.0, 30.0
# Random products that are tried per dimension of a space, and how often they go into it and back. A
# product of size one that is so near to the space is in it.
CANDIDATES, RETURNS, INSIDE = 6, 60, 1e-8


def condense(
    network: SeparableNetwork, noise: float, harmless: float = 1e-14
) -> SeparableNetwork | None:
    """Return a smaller network that is nearly the same; None if there is nothing to leave out.

    noise     relative error of the network's outputs
    harmless  relative error of the outputs that the smaller network may have
    """
    if network.W_side is not None:
        return None
    kind = kinds(network.decay)
    groups = [np.flatnonzero(kind == name) for name in ("memory", "query")]
    if min(map(len, groups)) == 0:
        return None
    W_m, W_x, decay = [], [], []
    for group, others, value in zip(groups, groups[::-1], (1.0, 0.0), strict=True):
        m, x = needed_products(network, group, others, noise, harmless)
        W_m.append(m)
        W_x.append(x)
        decay += [value] * len(m)
    if len(decay) >= len(network.decay):
        return None
    return crossed_network(np.vstack(W_m), np.vstack(W_x), np.array(decay), len(network.linear))


def crossed_network(
    W_m: np.ndarray, W_x: np.ndarray, decay: np.ndarray, d_out: int
) -> SeparableNetwork:
    """Return a network of fixed decays whose kernels, still zero, pair memory with the rest."""
    memory = int(np.sum(decay == 1))
    linear = np.zeros((d_out, memory * (len(decay) - memory)))
    return SeparableNetwork(W_m, W_x, decay, np.zeros(len(decay), bool), linear, crossed=True)


def needed_products(
    network: SeparableNetwork,
    group: np.ndarray,
    others: np.ndarray,
    noise: float,
    harmless: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return input gates that span what other neurons read of the neurons of one decay."""
    # Reads of size one, so that kernels compare.
    balanced = network.balanced()
    reads, kernels = balanced.reads, balanced.kernels
    tables = reads[others].T @ kernels[:, others][:, :, group] @ reads[group]
    _, values, right = np.linalg.svd(tables.reshape(-1, reads.shape[1]), full_matrices=False)
    space = right[: rank_at_gap(values[: len(group)], noise, harmless)]
    return spanning_products(space, balanced.W_m.shape[1], noise)


def spanning_products(space: np.ndarray, size: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Return gates of size one whose products span a space of reads.

    The rows of `space` are taken if they are products: what is read weakly is then in neurons of
    its own, and steps near the solution are straight. If they are not, random members of the space
    go to the nearest product and back into the space, again and again. Where they meet is a product
    in the space. Of many such products the most independent are taken.
    """
    count, near = len(space), max(INSIDE, ABOVE_NOISE * noise)
    # An orthonormal basis, in which coordinate i belongs to row i of the space.
    basis = np.linalg.qr(symmetric_reads(space, size).reshape(count, -1).T)[0].T

    def enter(coordinates: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the nearest products m and x, their coordinates, and whether they are inside."""
        unit = coordinates / row_sizes(coordinates)[:, None]
        m, x = nearest_products((unit @ basis).reshape(-1, size, size))
        products = symmetric_part(m[:, :, None] * x[:, None, :]).reshape(len(m), -1)
        inner = products @ basis.T
        return m, x, inner, np.linalg.norm(products - inner @ basis, axis=1) <= near

    m, x, inner, inside = enter(np.eye(count))
    if not np.all(inside):
        inner = np.random.default_rng(0).normal(size=(CANDIDATES * count, count))
        for _ in range(RETURNS):
            m, x, inner, inside = enter(inner)
        ranked = np.where(inside[:, None], inner, 0.0) if np.sum(inside) >= count else inner
        order = qr((ranked / row_sizes(ranked)[:, None]).T, pivoting=True)[2]
        m, x = m[order[:count]], x[order[:count]]
    return m / row_sizes(m)[:, None], x / row_sizes(x)[:, None]


def rank_at_gap(values: np.ndarray, noise: float, harmless: float) -> int:
    """Return how many singular values lie above the largest gap; all of them without a gap."""
    below = np.maximum(values[1:], harmless * values[0] + 1e-300)
    ratios = np.where(
        below <= ABOVE_NOISE * max(noise, harmless) * values[0], values[:-1] / below, 0.0
    )
    return int(np.argmax(ratios)) + 1 if np.max(ratios, initial=0.0) >= LEAST_GAP else len(values)


def nearest_products(matrices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return m and x for symmetric matrices A, with sym(m xᵀ) as near to A as a product can be.

    The matrix of a product has at most one eigenvalue of each sign:
    λ₁uuᵀ − λ₂wwᵀ is that of (√λ₁u + √λ₂w)·z times (√λ₁u − √λ₂w)·z.
    """
    values, vectors = np.linalg.eigh(matrices)
    up = np.sqrt(np.maximum(values[:, -1:], 0)) * vectors[:, :, -1]
    down = np.sqrt(np.maximum(-values[:, :1], 0)) * vectors[:, :, 0]
    return up + down, up - down
