"""Monomials of degree 4 or less in x, and Hermite polynomials numbered like them.

Order: by degree, then x1 before x2. Place 0 is the constant.
"""

import itertools
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from underhood.analysis.forms.quadratic import upper

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
    """Row k of `powers` [many, d] is the monomial x^powers[k].

    `quartic` [entries, entries] says which monomial the product of two entries of v(z) is, and
    `quadratic` [entries] which one an entry is. `hermite` is the sparse map from coefficients of
    monomials to coefficients of orthonormal Hermite polynomials, as (rows, columns, values).
    """

    powers: np.ndarray
    quartic: np.ndarray
    quadratic: np.ndarray
    hermite: tuple[np.ndarray, np.ndarray, np.ndarray]

    def collect(self, table: np.ndarray) -> np.ndarray:
        """v(z)ᵀ table v(z) by monomials; table [..., entries, entries]."""
        flat = table.reshape(-1, self.quartic.size)
        collected = [
            np.bincount(self.quartic.ravel(), weights=one, minlength=len(self.powers))
            for one in flat
        ]
        return np.reshape(collected, (*table.shape[:-2], len(self.powers)))

    def to_hermite(self, coefficients: np.ndarray) -> np.ndarray:
        """Hermite coefficients of polynomials [..., many] given by their monomials."""
        rows, columns, values = self.hermite
        result = np.zeros_like(coefficients)
        np.add.at(result.T, rows, (coefficients[..., columns] * values).T)
        return result


@lru_cache(maxsize=8)
def monomials(d_in: int) -> Monomials:
    """Everything about the monomials of d_in variables."""
    # A monomial is a multiset of four places in z = [x; 1].
    chosen = itertools.combinations_with_replacement(range(d_in + 1), DEGREE)
    powers = np.array([np.bincount(one, minlength=d_in + 1)[:-1] for one in chosen])
    powers = powers[np.lexsort((*-powers.T[::-1], powers.sum(axis=1)))]
    numbers = {tuple(power): place for place, power in enumerate(powers.tolist())}
    code = (DEGREE + 1) ** np.arange(d_in)
    order = np.argsort(powers @ code)
    rows, columns = upper(d_in + 1)
    identity = np.eye(d_in + 1, dtype=int)[:, :-1]
    entry = identity[rows] + identity[columns]
    both = (entry @ code)[:, None] + entry @ code

    def place(codes: np.ndarray) -> np.ndarray:
        return order[np.searchsorted((powers @ code)[order], codes)]

    triplets = [
        (numbers[tuple(order for order, _ in term)], column, np.prod([c for _, c in term]))
        for column, power in enumerate(powers.tolist())
        for term in itertools.product(*(HERMITE[one] for one in power))
    ]
    to, of, values = (np.array(one) for one in zip(*triplets, strict=True))
    return Monomials(powers, place(both), place(entry @ code), (to, of, values))
