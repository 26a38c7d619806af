"""Monomials of degree 4 or less in x, and Hermite polynomials numbered like them.

Order: by degree, then x1 before x2. Place 0 is the constant.
"""

import itertools
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from underhood.common.linear_algebra import upper

DEGREE = 4
# x^n in orthonormal Hermite polynomials of one variable: (order, coefficient).
HERMITE = {
    0: ((0, 1.0),),
    1: ((1, 1.0),),
    2: ((2, 2**0.5), (0, 1.0)),
    3: ((3, 6**0.5), (1, 3.0)),
    4: ((4, 24**0.5), (2, 6 * 2**0.5), (0, 3.0)),
}


@dataclass(frozen=True)
class Monomials:
    """All monomials of d variables.

    powers     [many, d]: row k is the monomial x^powers[k]
    quartic    [entries, entries]: which monomial the product of two entries of v(z) is
    quadratic  [entries]: which monomial an entry of v(z) is
    hermite    rows, columns and values of the sparse matrix that takes coefficients of monomials
               to coefficients of orthonormal Hermite polynomials
    """

    powers: np.ndarray
    quartic: np.ndarray
    quadratic: np.ndarray
    hermite: tuple[np.ndarray, np.ndarray, np.ndarray]

    def collect(self, tables: np.ndarray) -> np.ndarray:
        """Return v(z)ᵀ table v(z) by monomials, for tables [..., entries, entries]."""
        many, places = len(self.powers), self.quartic.ravel()
        flat = tables.reshape(-1, self.quartic.size)
        collected = [np.bincount(places, weights=row, minlength=many) for row in flat]
        return np.reshape(collected, (*tables.shape[:-2], many))

    def to_hermite(self, coefficients: np.ndarray) -> np.ndarray:
        """Return Hermite coefficients of polynomials [..., many] given by their monomials."""
        rows, columns, values = self.hermite
        result = np.zeros_like(coefficients)
        np.add.at(result.T, rows, (coefficients[..., columns] * values).T)
        return result


@lru_cache(maxsize=8)
def monomials(d_in: int) -> Monomials:
    # A monomial is a multiset of four places in z = [x; 1].
    chosen = itertools.combinations_with_replacement(range(d_in + 1), DEGREE)
    powers = np.array([np.bincount(places, minlength=d_in + 1)[:-1] for places in chosen])
    powers = powers[np.lexsort((*-powers.T[::-1], powers.sum(axis=1)))]
    numbers = {tuple(power): place for place, power in enumerate(powers.tolist())}
    v = entry_powers(d_in)
    triplets = [
        (numbers[tuple(order for order, _ in term)], column, np.prod([c for _, c in term]))
        for column, power in enumerate(powers.tolist())
        for term in itertools.product(*(HERMITE[exponent] for exponent in power))
    ]
    rows, columns, values = (np.array(part) for part in zip(*triplets, strict=True))
    quartic, quadratic = find_powers(powers, v[:, None] + v), find_powers(powers, v)
    return Monomials(powers, quartic, quadratic, (rows, columns, values))


def entry_powers(d_in: int) -> np.ndarray:
    """Return the powers of x [entries, d_in] in the entries of v(z)."""
    rows, columns = upper(d_in + 1)
    z = np.eye(d_in + 1, d_in, dtype=int)
    return z[rows] + z[columns]


def find_powers(powers: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return which row of `powers` [many, d] each of the wanted powers [..., d] is."""
    code = (DEGREE + 1) ** np.arange(powers.shape[1])
    order = np.argsort(powers @ code)
    return order[np.searchsorted((powers @ code)[order], wanted @ code)]
