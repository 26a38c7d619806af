"""A network near a solution, with as many neurons as the function asks for.

A wide network finds the function easily, but its surplus neurons make the last digits slow: they
must cancel each other exactly. Near a solution the decays show which neurons are memory (λ = 1) and
which hold the current token (λ = 0). The neurons of one decay are read through the tables

    T_ab = Q_aᵀ K_o Q_b,    Q the reads of the neurons over the products of [x; 1],

so what is read of them is a space of reads, whose dimension is the number of neurons that are
needed. What counts are tables between memory and the current token; the others are small. Products
of two linear forms nearest to that space take their place. Least-squares steps do the rest.
"""

import numpy as np
from scipy.linalg import qr

from underhood.common.decay import kinds
from underhood.common.linear_algebra import symmetric_products, symmetric_reads
from underhood.training.second_order.separable import SeparableNetwork, row_sizes

# What is read is told from noise at the largest gap between singular values, from this ratio on,
# where what is below the gap is at most so many times the noise.
LEAST_GAP, ABOVE_NOISE = 20.0, 30.0


def condense(network: SeparableNetwork, noise: float) -> SeparableNetwork | None:
    """Return a smaller network that is nearly the same; None if there is nothing to leave out.

    noise  relative error of the network's outputs
    """
    if network.W_side is not None:
        return None
    kind = kinds(network.decay)
    groups = [np.flatnonzero(kind == name) for name in ("memory", "query")]
    if min(map(len, groups)) == 0:
        return None
    W_m, W_x, decay = [], [], []
    for group, others, value in zip(groups, groups[::-1], (1.0, 0.0), strict=True):
        m, x = needed_products(network, group, others, noise)
        W_m.append(m)
        W_x.append(x)
        decay += [value] * len(m)
    if len(decay) >= len(network.decay):
        return None
    n = len(decay)
    linear = np.zeros((len(network.linear), n * (n + 1) // 2))
    fixed = np.zeros(n, bool)
    return SeparableNetwork(np.vstack(W_m), np.vstack(W_x), np.array(decay), fixed, linear)


def needed_products(
    network: SeparableNetwork, group: np.ndarray, others: np.ndarray, noise: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return input gates that span what other neurons read of the neurons of one decay."""
    # Reads of size one, so that kernels compare.
    balanced = network.balanced()
    reads, kernels = balanced.reads, balanced.kernels
    tables = reads[others].T @ kernels[:, others][:, :, group] @ reads[group]
    _, values, right = np.linalg.svd(tables.reshape(-1, reads.shape[1]), full_matrices=False)
    space = right[: rank_at_gap(values[: len(group)], noise)]
    if len(space) == len(group):
        return balanced.W_m[group], balanced.W_x[group]
    nearest = nearest_products(reads[group] @ space.T @ space, balanced.W_m.shape[1])
    candidates = symmetric_products(*nearest) @ space.T
    _, _, order = qr((candidates / row_sizes(candidates)[:, None]).T, pivoting=True)
    chosen = order[: len(space)]
    return nearest[0][chosen], nearest[1][chosen]


def rank_at_gap(values: np.ndarray, noise: float) -> int:
    """Return how many singular values lie above the largest gap; all of them without a gap."""
    below = np.maximum(values[1:], 1e-14 * values[0] + 1e-300)
    ratios = np.where(below <= ABOVE_NOISE * noise * values[0], values[:-1] / below, 0.0)
    return int(np.argmax(ratios)) + 1 if np.max(ratios, initial=0.0) >= LEAST_GAP else len(values)


def nearest_products(reads: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return m and x for each row of reads, with (m·z)(x·z) as near to it as a product can be.

    The matrix of a product has at most one eigenvalue of each sign:
    λ₁uuᵀ − λ₂wwᵀ is that of (√λ₁u + √λ₂w)·z times (√λ₁u − √λ₂w)·z.
    """
    values, vectors = np.linalg.eigh(symmetric_reads(reads, size))
    up = np.sqrt(np.maximum(values[:, -1:], 0)) * vectors[:, :, -1]
    down = np.sqrt(np.maximum(-values[:, :1], 0)) * vectors[:, :, 0]
    return up + down, up - down
