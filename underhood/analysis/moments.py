"""A gated RNN as an exact polynomial of decayed second moments.

    z = [x; 1]    S_λ(t) = Σ_{s≤t} λ^{t−s} z_s z_sᵀ    so that S_0 = z_t z_tᵀ is the current token

A neuron holds a linear function of the moment with its own decay, h_i = ⟨Q_i, S_{λ_i}⟩, where Q_i
is the symmetric part of the outer product of its two input rows. An output of the gated RNN is a
quadratic form of the neurons, y_o = hᵀK_o h with K_o = sym(Σ_j D_oj W_out_m[j] W_out_x[j]ᵀ); of the
side-gated RNN it is Σ_i D_oi h_i (W_side x)_i, and x is the last column of S_0. Neurons of equal
decay add up, so both are

    y_o = Σ_{a≤b} ⟨C_ab[o], s_a ⊗ s_b⟩,    s = the entries of S on and above its diagonal,

one table of coefficients per pair of decays. It describes the network on all sequences, whatever
its neurons: permuted, rescaled, split or dead ones leave it as it is. Moments of different decays
are independent functions, so with C_aa symmetric the only other freedom is that products of
entries of S_0 can be written in several ways (z_i z_j · z_k z_l = z_i z_k · z_j z_l).
"""

from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import numpy as np

from underhood.layers import BadInput, GatedRNN, SideGatedRNN

# Decays closer than this count as equal; λ is stored through ν, which is exact to about 1e-15.
EQUAL = 1e-12


@dataclass(frozen=True)
class MomentForm:
    """Coefficients [d_out, entries, entries] for pairs (a, b), a ≤ b, of places in `decays`."""

    d_in: int
    d_out: int
    decays: tuple[float, ...]
    terms: dict[tuple[int, int], np.ndarray]

    def __call__(self, xs: np.ndarray) -> np.ndarray:
        """The outputs on one sequence [time, d_in], token by token."""
        rows, columns = upper(self.d_in + 1)
        moments = np.zeros((len(self.decays), len(rows)))
        outputs = np.zeros((len(xs), self.d_out))
        for t, x in enumerate(np.asarray(xs, float)):
            z = np.append(x, 1.0)
            moments = np.array(self.decays)[:, None] * moments + z[rows] * z[columns]
            for (a, b), table in self.terms.items():
                outputs[t] += np.einsum("oij,i,j->o", table, moments[a], moments[b])
        return outputs


def upper(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the entries on and above the diagonal."""
    rows, columns = np.triu_indices(size)
    return rows, columns


def entries(size: int) -> int:
    """How many entries lie on and above the diagonal."""
    return size * (size + 1) // 2


def symmetric_products(W_m: np.ndarray, W_x: np.ndarray) -> np.ndarray:
    """Rows q_i with (w_m·z)(w_x·z) = Σ_{k≤l} q_i[kl] z_k z_l."""
    rows, columns = upper(W_m.shape[1])
    both = W_m[:, rows] * W_x[:, columns] + W_m[:, columns] * W_x[:, rows]
    return np.where(rows == columns, both / 2, both)


def equal_decays(decay: np.ndarray) -> tuple[tuple[float, ...], np.ndarray]:
    """The different decays in order, 0 always among them, and which of them each neuron has."""
    distinct: list[float] = [0.0]
    for value in np.sort(decay):
        if value - distinct[-1] > EQUAL:
            distinct.append(float(value))
    places = np.abs(decay[:, None] - np.array(distinct)).argmin(axis=1)
    return tuple(distinct), places


@singledispatch
def moment_form(layer: Any) -> MomentForm:
    """The exact function of a gated or side-gated RNN."""
    kind = type(layer).__name__
    raise BadInput(f"Only a GatedRNN or a SideGatedRNN is a polynomial of moments, not a {kind}.")


@moment_form.register
def _(layer: GatedRNN) -> MomentForm:
    W_in_m, W_in_x, W_out_m, W_out_x, D = (
        np.asarray(W, float)
        for W in (layer.W_in_m, layer.W_in_x, layer.W_out_m, layer.W_out_x, layer.D)
    )
    decays, place = equal_decays(np.asarray(layer.decay, float))
    reads = symmetric_products(W_in_m, W_in_x)
    # W_out on the moments themselves: [decays, gated, entries].
    members = [place == a for a in range(len(decays))]
    m, x = (np.stack([W[:, one] @ reads[one] for one in members]) for W in (W_out_m, W_out_x))
    terms = {}
    for a in range(len(decays)):
        table = np.einsum("og,gi,gj->oij", D, m[a], x[a])
        terms[a, a] = (table + table.swapaxes(1, 2)) / 2
        for b in range(a + 1, len(decays)):
            terms[a, b] = np.einsum("og,gi,gj->oij", D, m[a], x[b]) + np.einsum(
                "og,gi,gj->oij", D, x[a], m[b]
            )
    return MomentForm(layer.d_in, layer.d_out, decays, terms)


@moment_form.register
def _(layer: SideGatedRNN) -> MomentForm:
    W_in_m, W_in_x, W_side, D = (
        np.asarray(W, float) for W in (layer.W_in_m, layer.W_in_x, layer.W_side, layer.D)
    )
    decays, place = equal_decays(np.asarray(layer.decay, float))
    no_constant = np.zeros((len(W_in_m), 1))
    reads = symmetric_products(np.hstack([W_in_m, no_constant]), np.hstack([W_in_x, no_constant]))
    size = layer.d_in + 1
    # x_c is the entry (c, constant) of S_0.
    rows, columns = upper(size)
    current = np.zeros((len(W_side), entries(size)))
    current[:, (columns == size - 1) & (rows < size - 1)] = W_side
    terms = {}
    for a in range(len(decays)):
        one = place == a
        terms[0, a] = np.einsum("oh,hi,hj->oij", D[:, one], current[one], reads[one])
    terms[0, 0] = (terms[0, 0] + terms[0, 0].swapaxes(1, 2)) / 2
    return MomentForm(layer.d_in, layer.d_out, decays, terms)
