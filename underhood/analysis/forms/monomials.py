"""Monomials of degree 4 or less in x, and Hermite polynomials numbered like them.

Order: by degree, then x1 before x2. Place 0 is the constant. A monomial is a sorted list of four
places in z = [x; 1], which is a number of four digits to the base d + 1.
"""

import itertools
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.sparse import csr_array

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
# More powers than this take one byte each.
MANY_POWERS = 10_000_000


@dataclass(frozen=True)
class Monomials:
    """All monomials of d variables.

    powers  [many, d]: row k is the monomial x^powers[k]
    codes   [many]: the numbers of all lists of places, in their order
    order   [many]: which monomial each of them is
    """

    powers: np.ndarray
    codes: np.ndarray
    order: np.ndarray

    @property
    def d_in(self) -> int:
        return self.powers.shape[1]

    def numbers(self, places: np.ndarray) -> np.ndarray:
        """Return which monomials the products of four entries of z are; places [..., 4]."""
        codes = np.sort(places, axis=-1) @ place_values(self.d_in)
        return np.asarray(self.order[np.searchsorted(self.codes, codes)])

    @cached_property
    def quartic(self) -> np.ndarray:
        """Which monomial the product of two entries of v(z) is [entries, entries]."""
        v = np.stack(upper(self.d_in + 1), axis=1)
        both = np.broadcast_arrays(v[:, None], v[None])
        return self.numbers(np.concatenate(both, axis=2))

    @cached_property
    def cubic(self) -> np.ndarray:
        """Which monomial the product of an entry of v(z) and one of z is [entries, d + 1]."""
        v, z = np.stack(upper(self.d_in + 1), axis=1), np.arange(self.d_in + 1)
        places = np.full((len(v), len(z), DEGREE), self.d_in)
        places[:, :, :2], places[:, :, 2] = v[:, None], z
        return self.numbers(places)

    @property
    def quadratic(self) -> np.ndarray:
        """Which monomial an entry of v(z) is [entries]."""
        return self.cubic[:, -1]

    @cached_property
    def hermite(self) -> csr_array:
        """The matrix from coefficients of monomials to those of orthonormal Hermite polynomials."""
        rows, columns, values = [], [], []
        numbers = {tuple(power): place for place, power in enumerate(self.powers.tolist())}
        for column, power in enumerate(self.powers.tolist()):
            for term in itertools.product(*(HERMITE[exponent] for exponent in power)):
                rows.append(numbers[tuple(order for order, _ in term)])
                columns.append(column)
                values.append(float(np.prod([coefficient for _, coefficient in term])))
        return csr_array((values, (rows, columns)), shape=(len(numbers), len(numbers)))

    def collect(self, tables: np.ndarray) -> np.ndarray:
        """Return v(z)ᵀ table v(z), or v(z)ᵀ table z, by monomials.

        tables  [..., entries, entries] or [..., entries, d + 1]
        """
        width = tables.shape[-1]
        places = (self.cubic if width == self.d_in + 1 else self.quartic).ravel()
        collected = np.zeros((*tables.shape[:-2], len(self.powers)))
        flat = collected.reshape(-1, len(self.powers))
        for row, table in zip(flat, tables.reshape(-1, len(places)), strict=True):
            row[:] = np.bincount(places, weights=table, minlength=len(row))
        return collected

    def to_hermite(self, coefficients: np.ndarray) -> np.ndarray:
        """Return Hermite coefficients of polynomials [..., many] given by their monomials."""
        flat = coefficients.reshape(-1, len(self.powers))
        return np.asarray((self.hermite @ flat.T).T).reshape(coefficients.shape)


@lru_cache(maxsize=8)
def monomials(d_in: int) -> Monomials:
    """Return the monomials of d variables."""
    chosen = itertools.combinations_with_replacement(range(d_in + 1), DEGREE)
    places = np.fromiter(itertools.chain.from_iterable(chosen), int).reshape(-1, DEGREE)
    # The constant has the last place, so that lists of one degree are in order already.
    by_degree = np.argsort(np.sum(places < d_in, axis=1), kind="stable")
    order = np.empty(len(places), int)
    order[by_degree] = np.arange(len(places))
    powers = np.zeros((len(places), d_in + 1), int if places.size * d_in < MANY_POWERS else np.int8)
    for column in places[by_degree].T:
        powers[np.arange(len(powers)), column] += 1
    return Monomials(powers[:, :-1], places @ place_values(d_in), order)


def place_values(d_in: int) -> np.ndarray:
    """Return the values of the digits of a list of places."""
    return (d_in + 1) ** np.arange(DEGREE - 1, -1, -1)


def entry_powers(d_in: int) -> np.ndarray:
    """Return the powers of x [entries, d_in] in the entries of v(z)."""
    rows, columns = upper(d_in + 1)
    z = np.eye(d_in + 1, d_in, dtype=int)
    return z[rows] + z[columns]
