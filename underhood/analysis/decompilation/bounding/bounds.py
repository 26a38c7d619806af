"""Upper bounds for polynomials on balls, from singular values.

A multilinear map τ(u, x, x, y, …) on unit vectors is at most the largest singular value of τ laid
out as a matrix, whichever of its legs are the rows. So the smallest of a few layouts is a bound.
Degrees are taken apart first, and a part of degree p counts r^p on a ball of radius r.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from underhood.analysis.forms.monomials import DEGREE, monomials
from underhood.analysis.forms.quadratic import entry_degrees
from underhood.common.linear_algebra import upper


def largest_norms(matrices: np.ndarray) -> np.ndarray:
    """Return the largest singular value of each matrix [many, rows, columns]; 0 for empty ones."""
    if 0 in matrices.shape[-2:]:
        return np.zeros(matrices.shape[:-2])
    across = matrices.swapaxes(-1, -2)
    # The smaller Gram matrix is quicker, and accurate enough for the largest singular value.
    gram = matrices @ across if matrices.shape[-2] <= matrices.shape[-1] else across @ matrices
    return np.asarray(np.sqrt(np.maximum(np.linalg.eigvalsh(gram)[..., -1], 0.0)))


def two_token_bound(tables: np.ndarray, d_in: int, radius: float) -> np.ndarray:
    """Bound |v(z)ᵀ G v(z')| over |x|, |x'| ≤ radius, for tables [many, d_out, entries, entries]."""
    degrees, weight = entry_degrees(d_in), entry_scales(d_in)
    scaled = tables * weight[:, None] * weight
    total = np.zeros(tables.shape[:-3])
    for i, j in np.ndindex(3, 3):
        block = scaled[..., degrees == i, :][..., degrees == j]
        *many, o, a, b = block.shape
        layouts = (
            block.reshape(*many, o, a * b),
            block.reshape(*many, o * a, b),
            block.swapaxes(-3, -2).reshape(*many, a, o * b),
        )
        total = total + smallest_norms(layouts) * radius ** (i + j)
    return total


def entry_scales(d_in: int) -> np.ndarray:
    """Return weights with which the entries of xxᵀ have the norm |x|², those of x the norm |x|."""
    rows, columns = upper(d_in + 1)
    return np.where((rows == columns) | (entry_degrees(d_in) < 2), 1.0, np.sqrt(0.5))


def smallest_norms(layouts: Sequence[np.ndarray]) -> np.ndarray:
    """Return the smallest largest singular value among layouts of the same tensors."""
    return np.asarray(np.min([largest_norms(layout) for layout in layouts], axis=0))


def one_token_bound(tables: np.ndarray, d_in: int, radius: float) -> np.ndarray:
    """Bound |v(z)ᵀ G v(z)| over |x| ≤ radius: a quartic polynomial, degree by degree."""
    coefficients = monomials(d_in).collect(tables)
    total = np.zeros(tables.shape[:-3])
    for degree in range(DEGREE + 1):
        places, counts = tensor_places(d_in, degree)
        tensor = coefficients[..., places] / counts
        *many, o, width = tensor.shape
        half = d_in ** (degree // 2)
        layouts = [tensor, tensor.reshape(*many, o * half, width // half)]
        if degree >= 2:
            layouts.append(tensor.reshape(*many, o * d_in, width // d_in))
        total = total + smallest_norms(layouts) * radius**degree
    return total


@lru_cache(maxsize=64)
def tensor_places(d_in: int, degree: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the monomial of each entry of a symmetric tensor [d^degree], and how many share it."""
    # Every entry of the tensor is a list of places in x, filled up with the constant.
    lists = np.full((d_in**degree, DEGREE), d_in)
    lists[:, :degree] = np.indices((d_in,) * degree).reshape(degree, d_in**degree).T
    places = monomials(d_in).numbers(lists)
    return places, np.bincount(places)[places].astype(float)
