"""Upper bounds for polynomials on balls, from singular values.

A multilinear map τ(u, x, x, y, …) on unit vectors is at most the largest singular value of τ laid
out as a matrix, whichever of its legs are the rows, so the smallest of a few layouts is a bound.
Degrees are taken apart first, and a part of degree p counts r^p on a ball of radius r.
"""

from functools import lru_cache

import numpy as np

from underhood.analysis.forms.monomials import DEGREE, monomials
from underhood.analysis.forms.quadratic import entry_degrees, upper


def spectral(matrices: np.ndarray) -> np.ndarray:
    """The largest singular value of each matrix [many, rows, columns]; 0 for empty ones."""
    if 0 in matrices.shape[-2:]:
        return np.zeros(matrices.shape[:-2])
    across = matrices.swapaxes(-1, -2)
    # The largest singular value is safe to take from the smaller Gram matrix, and quicker.
    gram = matrices @ across if matrices.shape[-2] <= matrices.shape[-1] else across @ matrices
    return np.sqrt(np.maximum(np.linalg.eigvalsh(gram)[..., -1], 0.0))


def two_token_bound(tables: np.ndarray, d_in: int, radius: float) -> np.ndarray:
    """sup |v(z)ᵀ G v(z')| over |x|, |x'| ≤ radius, for tables [many, d_out, entries, entries]."""
    degrees = entry_degrees(d_in)
    rows, columns = upper(d_in + 1)
    # With these weights the entries of xxᵀ have the norm |x|², those of x the norm |x|.
    weight = np.where((rows == columns) | (degrees < 2), 1.0, np.sqrt(0.5))
    scaled = tables * weight[:, None] * weight
    total = np.zeros(tables.shape[:-3])
    for i in range(3):
        for j in range(3):
            block = scaled[..., degrees == i, :][..., degrees == j]
            total = total + smallest_layout(block) * radius ** (i + j)
    return total


def smallest_layout(block: np.ndarray) -> np.ndarray:
    """A bound for tensors [many, o, a, b] on unit vectors: the best of its three layouts."""
    *many, o, a, b = block.shape
    layouts = (
        block.reshape(*many, o, a * b),
        block.reshape(*many, o * a, b),
        block.swapaxes(-3, -2).reshape(*many, a, o * b),
    )
    return np.min([spectral(one) for one in layouts], axis=0)


def one_token_bound(tables: np.ndarray, d_in: int, radius: float) -> np.ndarray:
    """sup |v(z)ᵀ G v(z)| over |x| ≤ radius: a quartic polynomial, degree by degree."""
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
        total = total + np.min([spectral(one) for one in layouts], axis=0) * radius**degree
    return total


@lru_cache(maxsize=64)
def tensor_places(d_in: int, degree: int) -> tuple[np.ndarray, np.ndarray]:
    """Which monomial each entry of a symmetric tensor [d^degree] is, and how many share it."""
    known = monomials(d_in)
    code = (DEGREE + 1) ** np.arange(d_in)
    order = np.argsort(known.powers @ code)
    codes = np.zeros(1, int)
    for _ in range(degree):
        codes = (codes[:, None] + code).ravel()
    places = order[np.searchsorted((known.powers @ code)[order], codes)]
    return places, np.bincount(places)[places].astype(float)
