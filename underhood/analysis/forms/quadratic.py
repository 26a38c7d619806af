"""Gated RNNs and attention in one form: quadratic forms of decayed sums (Eq. 1, Eq. 2, A.2).

    z = [x; 1]    v(z) = the products z_k z_l, k ≤ l    h_i(t) = Σ_{s≤t} λ_i^{t−s} q_i·v(z_s)
    y_o(t) = h(t)ᵀ K_o h(t)

q_i     `reads`    [neurons, entries]         what neuron i adds up; (w_m·z)(w_x·z) for a gate
λ_i     `decay`    [neurons]
K_o     `kernels`  [d_out, neurons, neurons]  symmetric; sym(Σ_j D_oj W_out_m[j] W_out_x[j]ᵀ)

The side gate reads the current token, and so does the query of attention. Both are neurons with
λ = 0 that read z_c·1. The difference of two networks is such a form too: the neurons stand side by
side, and one of the kernels has a minus sign. Unrolled over the lags k = t − s,

    y_o(t) = Σ_{k,k'<t} v(z_{t−k})ᵀ G_o(k,k') v(z_{t−k'}),    G_o(k,k') = Qᵀ Λ^k K_o Λ^{k'} Q.
"""

from dataclasses import dataclass, replace
from functools import singledispatch

import numpy as np

from underhood.analysis.forms.diagonal import diagonalise
from underhood.common.errors import BadInput, with_article
from underhood.common.linear_algebra import (
    decayed_sums,
    symmetric_part,
    symmetric_products,
    upper,
)
from underhood.layers import DenseGatedRNN, GatedRNN, LinearAttention, MultiHead, SideGatedRNN

# Layers whose function is known exactly.
ExactLayer = GatedRNN | SideGatedRNN | DenseGatedRNN | LinearAttention | MultiHead
# Decays closer than this count as equal. λ is stored through ν, which is exact to about 1e-15.
EQUAL_DECAYS = 1e-12


@dataclass(frozen=True)
class QuadraticForm:
    """y_o = hᵀK_o h, h_i a decayed sum of q_i·v(z)."""

    d_in: int
    reads: np.ndarray
    decay: np.ndarray
    kernels: np.ndarray

    @property
    def d_out(self) -> int:
        return len(self.kernels)

    @property
    def neurons(self) -> int:
        return len(self.decay)

    def __call__(self, xs: np.ndarray) -> np.ndarray:
        """Return the outputs on one sequence [time, d_in], or on many [..., time, d_in]."""
        states = decayed_sums(self.decay, products(xs) @ self.reads.T, axis=-2)
        outputs = np.zeros((*states.shape[:-1], self.d_out))
        for o, kernel in enumerate(self.kernels):
            outputs[..., o] = np.sum((states @ kernel) * states, axis=-1)
        return outputs

    def __sub__(self, second: "QuadraticForm") -> "QuadraticForm":
        """Return the difference of the two functions."""
        n, both = self.neurons, self.neurons + second.neurons
        kernels = np.zeros((self.d_out, both, both))
        kernels[:, :n, :n], kernels[:, n:, n:] = self.kernels, -second.kernels
        reads = np.vstack([self.reads, second.reads])
        return QuadraticForm(self.d_in, reads, np.append(self.decay, second.decay), kernels)

    def keep(self, which: np.ndarray) -> "QuadraticForm":
        """Return the function of some of the neurons."""
        kernels = self.kernels[:, which][:, :, which]
        return QuadraticForm(self.d_in, self.reads[which], self.decay[which], kernels)

    def gathered(self, equal: float = EQUAL_DECAYS) -> "QuadraticForm":
        """Return the same function with at most one neuron per decay and entry of v.

        Neurons of equal decay hold linear functions of one vector, Σ λ^{t−s} v(z_s). Where they
        are more than its entries, the entries themselves take their place.

        equal  decays that differ by this or less become one; with 0 no decay changes
        """
        values, masks = decay_groups(self.decay, equal)
        groups = [np.flatnonzero(mask) for mask in masks]
        entries = self.reads.shape[1]
        parts = [self.reads[group] for group in groups]
        many = [len(part) > entries for part in parts]
        kernels = self.kernels
        # Rows first, then columns; only groups with too many neurons take arithmetic.
        for _ in range(2):
            rows = [
                part.T @ kernels[:, group] if mix else kernels[:, group]
                for group, part, mix in zip(groups, parts, many, strict=True)
            ]
            kernels = np.concatenate(rows, axis=1).swapaxes(1, 2)
        parts = [np.eye(entries) if mix else part for part, mix in zip(parts, many, strict=True)]
        decay = np.repeat(values, [len(part) for part in parts])
        return QuadraticForm(self.d_in, np.vstack(parts), decay, kernels)

    def table(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return Qᵀ K_o Q between two sets of neurons: [d_out, entries, entries]."""
        kernels = self.kernels[:, first][:, :, second]
        return self.reads[first].T @ kernels @ self.reads[second]


def products(xs: np.ndarray) -> np.ndarray:
    """Return v(z) for tokens [..., d]."""
    xs = np.asarray(xs, float)
    rows, columns = upper(xs.shape[-1] + 1)
    z = np.concatenate([xs, np.ones((*xs.shape[:-1], 1))], axis=-1)
    return z[..., rows] * z[..., columns]


def entry_degrees(d_in: int) -> np.ndarray:
    """Return the degree in x of each entry of v: 2, 1, and 0 for the constant."""
    rows, columns = upper(d_in + 1)
    return (rows < d_in).astype(int) + (columns < d_in)


def input_reads(layer: GatedRNN | SideGatedRNN | DenseGatedRNN) -> np.ndarray:
    """Return rows q_i over v(z), what each neuron adds up; a side-gated RNN reads no constant."""
    W_m, W_x = finite_weights(layer, "W_in_m", "W_in_x")
    if isinstance(layer, SideGatedRNN):
        W_m, W_x = (np.pad(W, ((0, 0), (0, 1))) for W in (W_m, W_x))
    return symmetric_products(W_m, W_x)


def decay_groups(
    decay: np.ndarray, equal: float = EQUAL_DECAYS
) -> tuple[tuple[float, ...], list[np.ndarray]]:
    """Return the different decays in order, 0 always among them, and masks of their neurons."""
    distinct: list[float] = [0.0]
    for value in np.sort(decay):
        if value - distinct[-1] > equal:
            distinct.append(float(value))
    places = np.abs(decay[:, None] - np.array(distinct)).argmin(axis=1)
    return tuple(distinct), [places == place for place in range(len(distinct))]


@singledispatch
def quadratic_form(layer: ExactLayer) -> QuadraticForm:
    """Return the exact function of a gated RNN, a side-gated RNN or linear attention."""
    kind = type(layer).__name__
    raise BadInput(
        f"Only a GatedRNN or a SideGatedRNN can be taken apart exactly, not {with_article(kind)}; "
        "attention_score judges any layer."
    )


@quadratic_form.register
def _(layer: GatedRNN) -> QuadraticForm:
    W_out_m, W_out_x, D, decay = finite_weights(layer, "W_out_m", "W_out_x", "D", "decay")
    kernels = W_out_m.T @ (D[:, :, None] * W_out_x)
    return QuadraticForm(layer.d_in, input_reads(layer), decay, symmetric_part(kernels))


@quadratic_form.register
def _(layer: DenseGatedRNN) -> QuadraticForm:
    W_out_m, W_out_x, D, A = finite_weights(layer, "W_out_m", "W_out_x", "D", "A")
    # In the basis P of its eigenvectors the state is a vector of neurons with one decay each.
    basis = diagonalise(A)
    kernels = basis.P.T @ symmetric_part(W_out_m.T @ (D[:, :, None] * W_out_x)) @ basis.P
    return QuadraticForm(layer.d_in, basis.P_inverse @ input_reads(layer), basis.decay, kernels)


@quadratic_form.register
def _(layer: SideGatedRNN) -> QuadraticForm:
    W_side, D, decay = finite_weights(layer, "W_side", "D", "decay")
    couplings = np.pad(np.einsum("oh,hc->ohc", D, W_side), ((0, 0), (0, 0), (0, 1)))
    return coupled(layer.d_in, input_reads(layer), decay, couplings)


@quadratic_form.register
def _(layer: LinearAttention) -> QuadraticForm:
    finite_weights(layer, "W_V", "W_K", "W_Q")
    V, K, Q = layer.augmented()
    return from_table(layer.d_in, attention_table(V, K.T @ Q), layer.decays)


@quadratic_form.register
def _(layer: MultiHead) -> QuadraticForm:
    for head in layer.heads:
        finite_weights(head, "W_V", "W_K", "W_Q")
    weights = [head.augmented() for head in layer.heads]
    tables = np.vstack([attention_table(V, K.T @ Q) for V, K, Q in weights])
    rows = from_table(layer.d_in, tables, np.concatenate([head.decays for head in layer.heads]))
    if layer.W_O is None:
        return rows
    (W_O,) = finite_weights(layer, "W_O")
    return replace(rows, kernels=np.tensordot(W_O, rows.kernels, axes=1))


def attention_table(V: np.ndarray, M: np.ndarray) -> np.ndarray:
    """Return coefficients [d_out, entries, d_in + 1] of V S M z over entries of S and of z."""
    rows, columns = upper(V.shape[1])
    both = V[:, rows, None] * M[columns] + V[:, columns, None] * M[rows]
    return np.where((rows == columns)[:, None], both / 2, both)


def from_table(d_in: int, table: np.ndarray, decay: np.ndarray | float) -> QuadraticForm:
    """Return Σ table[o, e, c] (Σ_s λ_o^{t−s} v_e(z_s)) z_c; λ is one number or one per output."""
    decay = np.broadcast_to(decay, len(table))
    distinct = np.unique(decay)
    size = table.shape[1]
    couplings = np.zeros((len(table), len(distinct) * size, d_in + 1))
    for place, value in enumerate(distinct):
        outputs = np.flatnonzero(decay == value)
        couplings[outputs, place * size : (place + 1) * size] = table[outputs]
    reads = np.tile(np.eye(size), (len(distinct), 1))
    return coupled(d_in, reads, np.repeat(distinct, size), couplings)


def coupled(
    d_in: int, reads: np.ndarray, decay: np.ndarray, couplings: np.ndarray
) -> QuadraticForm:
    """Return y_o = Σ couplings[o, i, c] h_i z_c: every product has the current token as factor."""
    n = len(decay)
    kernels = np.zeros((len(couplings), n + d_in + 1, n + d_in + 1))
    kernels[:, :n, n:] = couplings
    # The current token is read by neurons with λ = 0 and q·v = z_c·1.
    _, columns = upper(d_in + 1)
    reads = np.vstack([reads, np.eye(len(columns))[columns == d_in]])
    return QuadraticForm(d_in, reads, np.append(decay, np.zeros(d_in + 1)), symmetric_part(kernels))


def finite_weights(layer: ExactLayer, *names: str) -> list[np.ndarray]:
    """Return the named weights in float64, or refuse those that are not finite."""
    arrays = [np.asarray(getattr(layer, name), float) for name in names]
    for name, array in zip(names, arrays, strict=True):
        if not np.all(np.isfinite(array)):
            kind = type(layer).__name__
            raise BadInput(f"{kind}: {name} has entries that are not finite; mend the weights.")
    return arrays
