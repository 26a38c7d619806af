"""Input gates whose products are a basis of what is read of a moment."""

import numpy as np
from numpy.random import Generator

from underhood.analysis.shrinking.products import Pair, gate_basis, spanning_rows
from underhood.common.linear_algebra import symmetric_products as reads_of

# If neurons are less spread than this, better ones are searched for.
WELL_SPREAD = 0.05


def neuron_basis(
    W_m: np.ndarray, W_x: np.ndarray, space: np.ndarray, accuracy: float, rng: Generator
) -> Pair:
    """Return input gates whose products span a space of reads: the given ones where they do."""
    if len(space) == 0:
        return W_m[:0], W_x[:0]
    given = spanning_neurons(W_m, W_x, space)
    pairs = [] if given is None else [given]
    # Neurons that nearly depend on each other need large kernels that cancel.
    if not pairs or spread(pairs[0]) < WELL_SPREAD:
        searched = gate_basis(space, W_m.shape[1], accuracy, rng)
        pairs += [] if searched is None else [of_size_one(*searched)]
    if pairs:
        return max(pairs, key=spread)
    # No products span what is read: keep neurons that span all that is written.
    reads = reads_of(W_m, W_x)
    values = np.linalg.svd(reads, compute_uv=False)
    rank = int(np.sum(values > 1e-10 * np.max(values, initial=0.0)))
    picked = (spanning_rows(reads, count) for count in range(rank, 0, -1))
    rows = next((rows for rows in picked if rows is not None), np.zeros(0, int))
    return of_size_one(W_m[rows], W_x[rows])


def spanning_neurons(W_m: np.ndarray, W_x: np.ndarray, space: np.ndarray) -> Pair | None:
    """Return neurons among the given ones whose products are a basis of a space of reads."""
    reads = reads_of(W_m, W_x)
    outside = reads - (reads @ space.T) @ space
    sizes = np.linalg.norm(reads, axis=1)
    inside = (np.linalg.norm(outside, axis=1) < 1e-9 * sizes) & (sizes > 0)
    chosen = spanning_rows(reads[inside] @ space.T, len(space)) if inside.any() else None
    return None if chosen is None else of_size_one(W_m[inside][chosen], W_x[inside][chosen])


def spread(pair: Pair) -> float:
    """Return the smallest singular value of reads of size one: 1 for an orthonormal basis."""
    return float(np.linalg.svd(reads_of(*pair), compute_uv=False)[-1])


def of_size_one(W_m: np.ndarray, W_x: np.ndarray) -> Pair:
    """Scale neurons to reads of size one, so that their kernels compare."""
    scale = np.sqrt(np.linalg.norm(reads_of(W_m, W_x), axis=1))[:, None]
    return W_m / scale, W_x / scale
