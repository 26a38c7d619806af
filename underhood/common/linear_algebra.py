"""Linear algebra of gated networks: symmetric matrices, products, decayed sums, lines."""

from functools import cache

import numpy as np
from scipy.sparse import csr_array

# Products with a large matrix skip its zeros if all but this share of its entries are zero.
LARGE_MATRIX, FEW_ENTRIES = 10_000, 0.02


def thin(matrix: np.ndarray | csr_array) -> np.ndarray | csr_array:
    """Return a large matrix with few entries in a form whose products skip the zeros.

    Compiled networks are made of such matrices. A matrix with many entries comes back as it is.
    """
    if isinstance(matrix, csr_array) or matrix.size < LARGE_MATRIX:
        return matrix
    few = np.count_nonzero(matrix) <= FEW_ENTRIES * matrix.size
    return csr_array(matrix) if few else matrix


@cache
def upper(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and columns of the entries on and above the diagonal."""
    rows, columns = np.triu_indices(size)
    # All callers get the same arrays.
    rows.flags.writeable = columns.flags.writeable = False
    return rows, columns


def symmetric_part(matrices: np.ndarray) -> np.ndarray:
    """Return ½(A + Aᵀ) over the last two axes."""
    return (matrices + matrices.swapaxes(-1, -2)) / 2


def symmetric_reads(reads: np.ndarray, size: int) -> np.ndarray:
    """Return symmetric A [..., size, size] with zᵀA z = q·v(z), for q [..., entries] (`upper`)."""
    matrices = np.zeros((*reads.shape[:-1], size, size))
    matrices[..., *upper(size)] = reads
    return symmetric_part(matrices)


def symmetric_products(W_m: np.ndarray, W_x: np.ndarray) -> np.ndarray:
    """Return rows q_i with (w_m·z)(w_x·z) = q_i·v(z)."""
    rows, columns = upper(W_m.shape[-1])
    both = W_m[..., rows] * W_x[..., columns] + W_m[..., columns] * W_x[..., rows]
    return np.where(rows == columns, both / 2, both)


def decayed_sums(decay: np.ndarray | float, written: np.ndarray, axis: int = 1) -> np.ndarray:
    """Return h_t = λ h_{t−1} + written_t for all t; λ broadcasts over what follows the axis."""
    states = written.copy()
    in_time = np.moveaxis(states, axis, 0)
    for t in range(1, len(in_time)):
        in_time[t] += decay * in_time[t - 1]
    return states


def decay_slopes(decay: np.ndarray | float, states: np.ndarray, axis: int = 1) -> np.ndarray:
    """Return dh_t/dλ of decayed sums h."""
    earlier = np.zeros_like(states)
    np.moveaxis(earlier, axis, 0)[1:] = np.moveaxis(states, axis, 0)[:-1]
    return decayed_sums(decay, earlier, axis)


def group_by_line(vectors: np.ndarray, tolerance: float) -> list[np.ndarray]:
    """Return groups of row numbers: rows of length 1 within `tolerance` of one line."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    left = np.arange(len(unit))
    groups = []
    while len(left):
        apart = unit[left] - np.outer(unit[left] @ unit[left[0]], unit[left[0]])
        near = np.linalg.norm(apart, axis=1) < tolerance
        near[0] = True
        groups.append(left[near])
        left = left[~near]
    return groups


def line_coordinates(vectors: np.ndarray) -> np.ndarray:
    """Return the coordinates of rows on one line, in units of the first row."""
    return vectors @ vectors[0] / (vectors[0] @ vectors[0])


def solve_least_squares(A: np.ndarray, b: np.ndarray, *, cutoff: float) -> np.ndarray:
    """Return the smallest X with least |A X − b|; singular values below the cutoff count as 0.

    cutoff  relative to the largest singular value
    """
    try:
        return np.asarray(np.linalg.lstsq(A, b, rcond=cutoff)[0])
    except np.linalg.LinAlgError:
        # LAPACK's divide and conquer gives up on some matrices with many tiny singular values.
        # The QR iteration is slower and does not.
        # Here, because scipy takes long to import and `import underhood` should not.
        from scipy.linalg import lstsq

        return np.asarray(lstsq(A, b, cond=cutoff, lapack_driver="gelss")[0])
