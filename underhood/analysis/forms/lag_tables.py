"""Functions of `time` tokens as tables over pairs of lags, a few lags at a time.

    y_o(t) = Σ_{k,k'<t} v(z_{t−k})ᵀ G_o(k,k') v(z_{t−k'})

with G as in `quadratic.py`. A gated RNN needs no kernels over pairs of neurons for this. What its
gate outputs hold of the token k steps ago is W_out_m Λ^k Q and W_out_x Λ^k Q, so

    G_o(k,k') = sym(Σ_j D_oj m_j(k) x_j(k')ᵀ),

and the difference of two networks is the same sum over the gate outputs of both. Time and memory
grow with neurons × gate outputs. Kernels take neurons² numbers for each output.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import singledispatch

import numpy as np

from underhood.analysis.forms.quadratic import QuadraticForm, finite_weights, input_reads
from underhood.common.linear_algebra import upper
from underhood.layers import GatedRNN, SideGatedRNN

# Tables are made in parts of about this many numbers.
PART_NUMBERS = 4_000_000


@dataclass(frozen=True)
class ResponseForm:
    """y_o = Σ_j D_oj m_j x_j, with what both factors hold of the last `time` tokens.

    m, x  [gates, time, entries]: coefficients of v(z) of the token k steps ago
    D     [d_out, gates]
    """

    d_in: int
    m: np.ndarray
    x: np.ndarray
    D: np.ndarray

    @property
    def d_out(self) -> int:
        return len(self.D)

    def __sub__(self, second: "ResponseForm") -> "ResponseForm":
        """Return the difference of the two functions."""
        m, x = np.concatenate([self.m, second.m]), np.concatenate([self.x, second.x])
        return ResponseForm(self.d_in, m, x, np.hstack([self.D, -second.D]))


@singledispatch
def response_form(layer: GatedRNN | SideGatedRNN, time: int) -> ResponseForm:
    """Return the function of a gated or side-gated RNN on sequences of up to `time` tokens."""
    raise TypeError(f"There are no gate outputs in a {type(layer).__name__}.")


@response_form.register
def _(layer: GatedRNN, time: int) -> ResponseForm:
    W_m, W_x, D, decay = finite_weights(layer, "W_out_m", "W_out_x", "D", "decay")
    held = responses(input_reads(layer), decay, time)
    m, x = (np.tensordot(W, held, axes=1) for W in (W_m, W_x))
    return ResponseForm(layer.d_in, m, x, D)


@response_form.register
def _(layer: SideGatedRNN, time: int) -> ResponseForm:
    W_side, D, decay = finite_weights(layer, "W_side", "D", "decay")
    m = responses(input_reads(layer), decay, time)
    # The side gate reads x·1 of the current token.
    now, linear = np.zeros_like(m), upper(layer.d_in + 1)[1] == layer.d_in
    now[:, 0, linear] = np.pad(W_side, ((0, 0), (0, 1)))
    return ResponseForm(layer.d_in, m, now, D)


def responses(reads: np.ndarray, decay: np.ndarray, time: int) -> np.ndarray:
    """Return Λ^k Q, what neurons hold of the token k steps ago: [neurons, time, entries]."""
    return (decay[:, None] ** np.arange(time))[:, :, None] * reads[:, None]


def lag_tables(
    form: QuadraticForm | ResponseForm, time: int
) -> Iterator[Iterator[tuple[int, np.ndarray]]]:
    """Yield the tables of each output, a few lags k at a time.

    They come as the first of these lags and G(k, k') [lags, entries, time, entries] for all k'.
    """
    if isinstance(form, ResponseForm):
        m, x = form.m[:, :time], form.x[:, :time]
        for row in form.D:
            used = row != 0
            read = row[used, None, None]
            # ½(Σ_j D_j m_j x_jᵀ + Σ_j D_j x_j m_jᵀ) in one product.
            left = np.concatenate([read * m[used], read * x[used]])
            yield products_of_lags(left, np.concatenate([x[used], m[used]]) / 2)
        return
    held = responses(form.reads, form.decay, time)
    for kernel in form.kernels:
        yield products_of_lags(held, np.tensordot(kernel, held, axes=1))


def products_of_lags(left: np.ndarray, right: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield Σ_i left_i(k) right_i(k')ᵀ for some lags k at a time and all k'."""
    many, time, entries = left.shape
    first, second = (held.reshape(many, time * entries) for held in (left, right))
    lags = max(PART_NUMBERS // (entries * entries * time), 1)
    for start in range(0, time, lags):
        some = first[:, start * entries : (start + lags) * entries]
        table = some.T @ second
        yield start, table.reshape(-1, entries, time, entries)
