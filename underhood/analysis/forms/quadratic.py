"""Gated RNNs and attention as one thing: quadratic forms of decayed sums (Eq. 1, Eq. 2, A.2).

    z = [x; 1]    v(z) = the products z_k z_l, k ≤ l    h_i(t) = Σ_{s≤t} λ_i^{t−s} q_i·v(z_s)
    y_o(t) = h(t)ᵀ K_o h(t)

q_i     `reads`    [neurons, entries]         what neuron i adds up; (w_m·z)(w_x·z) for a gate
λ_i     `decay`    [neurons]
K_o     `kernels`  [d_out, neurons, neurons]  symmetric; sym(Σ_j D_oj W_out_m[j] W_out_x[j]ᵀ)

The current token of a side gate, and the query of attention, are neurons with λ = 0 that read
z_c·1. So the difference of two networks is again such a form: neurons side by side, one of the
kernels with a minus sign. Unrolled over the lags k = t − s,

    y_o(t) = Σ_{k,k'<t} v(z_{t−k})ᵀ G_o(k,k') v(z_{t−k'}),    G_o(k,k') = Qᵀ Λ^k K_o Λ^{k'} Q.
"""

from dataclasses import dataclass
from functools import cache, singledispatch
from typing import Any

import numpy as np

from underhood.common.errors import BadInput
from underhood.layers import GatedRNN, LinearAttention, SideGatedRNN

# Decays closer than this count as equal; λ is stored through ν, which is exact to about 1e-15.
EQUAL = 1e-12


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
        """The outputs on one sequence [time, d_in], or on many [..., time, d_in]."""
        written = products(xs) @ self.reads.T
        states = np.zeros_like(written)
        state = np.zeros((*written.shape[:-2], self.neurons))
        for t in range(written.shape[-2]):
            state = self.decay * state + written[..., t, :]
            states[..., t, :] = state
        outputs = np.zeros((*states.shape[:-1], self.d_out))
        for o, kernel in enumerate(self.kernels):
            outputs[..., o] = np.sum((states @ kernel) * states, axis=-1)
        return outputs

    def __sub__(self, other: "QuadraticForm") -> "QuadraticForm":
        """The difference of the two functions."""
        n = self.neurons
        kernels = np.zeros((self.d_out, n + other.neurons, n + other.neurons))
        kernels[:, :n, :n], kernels[:, n:, n:] = self.kernels, -other.kernels
        return QuadraticForm(
            self.d_in,
            np.vstack([self.reads, other.reads]),
            np.concatenate([self.decay, other.decay]),
            kernels,
        )

    def keep(self, which: np.ndarray) -> "QuadraticForm":
        """The function of some of the neurons."""
        kernels = self.kernels[:, which][:, :, which]
        return QuadraticForm(self.d_in, self.reads[which], self.decay[which], kernels)

    def gathered(self, equal: float = EQUAL) -> "QuadraticForm":
        """The same function with at most one neuron per decay and entry of v.

        Decays that differ by `equal` or less become one; equal = 0 changes nothing.

        Neurons of equal decay hold linear functions of one vector, Σ λ^{t−s} v(z_s). Where they
        are more than its entries, the entries themselves take their place.
        """
        decays, places = equal_decays(self.decay, equal)
        reads, decay, mixing = [], [], np.zeros((0, self.neurons))
        for place, value in enumerate(decays):
            members = np.flatnonzero(places == place)
            own = self.reads[members]
            many = len(members) > own.shape[1]
            mixed = np.zeros((own.shape[1] if many else len(members), self.neurons))
            mixed[:, members] = own.T if many else np.eye(len(members))
            reads.append(np.eye(own.shape[1]) if many else own)
            decay += [value] * len(mixed)
            mixing = np.vstack([mixing, mixed])
        kernels = mixing @ self.kernels @ mixing.T
        return QuadraticForm(self.d_in, np.vstack(reads), np.array(decay), kernels)


@cache
def upper(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the entries on and above the diagonal."""
    rows, columns = np.triu_indices(size)
    # All callers get the same arrays.
    rows.flags.writeable = columns.flags.writeable = False
    return rows, columns


def entries(size: int) -> int:
    """How many entries lie on and above the diagonal."""
    return size * (size + 1) // 2


def products(xs: np.ndarray) -> np.ndarray:
    """v(z) for tokens [..., d]."""
    xs = np.asarray(xs, float)
    rows, columns = upper(xs.shape[-1] + 1)
    z = np.concatenate([xs, np.ones((*xs.shape[:-1], 1))], axis=-1)
    return z[..., rows] * z[..., columns]


def entry_degrees(d_in: int) -> np.ndarray:
    """The degree in x of each entry of v: 2, 1, and 0 for the constant."""
    rows, columns = upper(d_in + 1)
    return (rows < d_in).astype(int) + (columns < d_in)


def symmetric_products(W_m: np.ndarray, W_x: np.ndarray) -> np.ndarray:
    """Rows q_i with (w_m·z)(w_x·z) = q_i·v(z)."""
    rows, columns = upper(W_m.shape[1])
    both = W_m[:, rows] * W_x[:, columns] + W_m[:, columns] * W_x[:, rows]
    return np.where(rows == columns, both / 2, both)


def current_token(d_in: int) -> np.ndarray:
    """Reads [d_in + 1, entries] of neurons that pass z on: entry (c, constant) of v."""
    rows, columns = upper(d_in + 1)
    reads = np.zeros((d_in + 1, len(rows)))
    last = columns == d_in
    reads[rows[last], np.flatnonzero(last)] = 1.0
    return reads


def equal_decays(decay: np.ndarray, equal: float = EQUAL) -> tuple[tuple[float, ...], np.ndarray]:
    """The different decays in order, 0 always among them, and which of them each neuron has."""
    distinct: list[float] = [0.0]
    for value in np.sort(decay):
        if value - distinct[-1] > equal:
            distinct.append(float(value))
    places = np.abs(decay[:, None] - np.array(distinct)).argmin(axis=1)
    return tuple(distinct), places


def symmetric(kernels: np.ndarray) -> np.ndarray:
    """The symmetric part of the last two axes."""
    return (kernels + kernels.swapaxes(-1, -2)) / 2


@singledispatch
def quadratic_form(layer: Any) -> QuadraticForm:
    """The exact function of a gated RNN, a side-gated RNN or linear attention."""
    kind = type(layer).__name__
    raise BadInput(
        f"Only a GatedRNN or a SideGatedRNN can be taken apart exactly, not a {kind}; "
        "attention_score judges any layer."
    )


@quadratic_form.register
def _(layer: GatedRNN) -> QuadraticForm:
    W_in_m, W_in_x, W_out_m, W_out_x, D = finite(
        layer, "W_in_m", "W_in_x", "W_out_m", "W_out_x", "D"
    )
    (decay,) = finite(layer, "decay")
    kernels = W_out_m.T @ (D[:, :, None] * W_out_x)
    return QuadraticForm(layer.d_in, symmetric_products(W_in_m, W_in_x), decay, symmetric(kernels))


@quadratic_form.register
def _(layer: SideGatedRNN) -> QuadraticForm:
    W_in_m, W_in_x, W_side, D = finite(layer, "W_in_m", "W_in_x", "W_side", "D")
    (decay,) = finite(layer, "decay")
    no_constant = np.zeros((layer.neurons, 1))
    reads = symmetric_products(np.hstack([W_in_m, no_constant]), np.hstack([W_in_x, no_constant]))
    couplings = np.einsum("oh,hc->ohc", D, W_side)
    return coupled(layer.d_in, reads, decay, np.pad(couplings, ((0, 0), (0, 0), (0, 1))))


@quadratic_form.register
def _(layer: LinearAttention) -> QuadraticForm:
    W_V, W_K, W_Q = finite(layer, "W_V", "W_K", "W_Q")
    biases = [
        np.zeros((len(W), 1)) if b is None else np.asarray(b, float)[:, None]
        for W, b in ((W_V, layer.b_V), (W_K, layer.b_K), (W_Q, layer.b_Q))
    ]
    V, K, Q = (np.hstack(pair) for pair in zip((W_V, W_K, W_Q), biases, strict=True))
    decay = np.ones(len(V)) if layer.decay is None else np.asarray(layer.decay, float)
    return from_table(layer.d_in, attention_table(V, K.T @ Q), decay)


def attention_table(V: np.ndarray, M: np.ndarray) -> np.ndarray:
    """Coefficients [d_out, entries, d_in + 1] of V S M z over the entries of S and of z."""
    rows, columns = upper(V.shape[1])
    both = V[:, rows, None] * M[columns] + V[:, columns, None] * M[rows]
    return np.where((rows == columns)[:, None], both / 2, both)


def from_table(d_in: int, table: np.ndarray, decay: np.ndarray) -> QuadraticForm:
    """The form Σ table[o, e, c] (Σ_s λ_o^{t−s} v_e(z_s)) z_c; decay [d_out] is λ of each output."""
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
    """y_o = Σ couplings[o, i, c] h_i z_c: neurons that meet the current token alone."""
    n = len(decay)
    kernels = np.zeros((len(couplings), n + d_in + 1, n + d_in + 1))
    kernels[:, :n, n:] = couplings
    return QuadraticForm(
        d_in,
        np.vstack([reads, current_token(d_in)]),
        np.concatenate([decay, np.zeros(d_in + 1)]),
        symmetric(kernels),
    )


def finite(layer: Any, *names: str) -> list[np.ndarray]:
    """The named weights in float64; refuses what is not finite."""
    arrays = [np.asarray(getattr(layer, name), float) for name in names]
    for name, array in zip(names, arrays, strict=True):
        if not np.all(np.isfinite(array)):
            kind = type(layer).__name__
            raise BadInput(f"{kind}: {name} has entries that are not finite; mend the weights.")
    return arrays
