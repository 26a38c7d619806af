"""A network's instantaneous function as a polynomial of one token, with exact coefficients.

On its first token every moment is zzᵀ, z = [x; 1], so an output is a quartic form in z. Collecting
equal products gives one coefficient per monomial of x of degree 4 or less.
"""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import numpy as np

from underhood.analysis.moments import moment_form, upper
from underhood.layers import BadInput, GatedRNN, SideGatedRNN
from underhood.layers.decay import NU_ZERO


@dataclass(frozen=True)
class Polynomial:
    """`coefficients` [outputs, monomials]; row k of `powers` [monomials, d] is x^powers[k]."""

    powers: np.ndarray
    coefficients: np.ndarray

    def __call__(self, xs: np.ndarray) -> np.ndarray:
        """The values on tokens [many, d]."""
        return np.prod(np.asarray(xs, float)[:, None] ** self.powers, axis=2) @ self.coefficients.T

    @property
    def degrees(self) -> np.ndarray:
        """The degree of each monomial."""
        return self.powers.sum(axis=1)


def polynomial(layer: Any) -> Polynomial:
    """The function that a gated or side-gated RNN computes on a single token."""
    if not isinstance(layer, GatedRNN | SideGatedRNN):
        kind = type(layer).__name__
        raise BadInput(f"Only a GatedRNN or a SideGatedRNN is a polynomial, not a {kind}.")
    # On one token nothing has faded yet, so the decays may as well all be zero: one table.
    forgetful = eqx.tree_at(lambda one: one.nu, layer, np.full(layer.neurons, NU_ZERO))
    form = moment_form(forgetful)
    size = form.d_in + 1
    rows, columns = upper(size)
    i, j = np.meshgrid(np.arange(len(rows)), np.arange(len(rows)), indexing="ij")
    # A monomial is a multiset of four places in z, coded as one number by its sorted places.
    places = np.sort(np.stack([rows[i], columns[i], rows[j], columns[j]], axis=-1), axis=-1)
    codes = (places @ (size ** np.arange(4)[::-1])).ravel()
    distinct, which = np.unique(codes, return_inverse=True)
    table = form.terms[0, 0].reshape(form.d_out, -1)
    coefficients = np.stack(
        [np.bincount(which, weights=one, minlength=len(distinct)) for one in table]
    )
    chosen = distinct[:, None] // size ** np.arange(4)[::-1] % size
    powers = np.stack([np.sum(chosen == place, axis=1) for place in range(form.d_in)], axis=1)
    order = np.lexsort((*powers.T[::-1] * -1, powers.sum(axis=1)))
    return Polynomial(powers[order], coefficients[:, order])
