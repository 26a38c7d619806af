"""Functions of `time` tokens as tables over pairs of lags, kept as their factors.

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

# Products of factors are made in parts of about this many numbers.
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


@dataclass(frozen=True)
class LagTables:
    """G(k, k') = Σ_i left_i(k) right_i(k')ᵀ of one output.

    left, right  [parts, time, entries]
    """

    left: np.ndarray
    right: np.ndarray

    def of_one_token(self) -> np.ndarray:
        """Return G(k, k) [time, entries, entries]."""
        left, right = (held.swapaxes(0, 1) for held in (self.left, self.right))
        return left.swapaxes(1, 2) @ right

    def of_degree(self, total: int, degrees: np.ndarray) -> "LagTables":
        """Return the tables of the pairs of entries whose degrees have this sum."""
        pairs = [(degrees == low, degrees == total - low) for low in range(3)]
        left = np.concatenate([self.left * first for first, _ in pairs])
        return LagTables(left, np.concatenate([self.right * second for _, second in pairs]))

    def reads_of(self, v: np.ndarray) -> np.ndarray:
        """Return vᵀG(k', k) for k' and k [time, time, entries]; it is G(k, k') v."""
        return np.tensordot((self.right @ v).T, self.left, axes=1)

    def squares_of_pairs(self, spread: np.ndarray) -> np.ndarray:
        """Return Σ_{k<k'} |σG(k, k')σ|² for every k' [time]; `spread` is σ."""
        total = np.zeros(self.left.shape[1])
        # k' is at least 1. A side gate reads the current token alone, so half of its parts go.
        first, second = self.left[:, :-1], self.right[:, 1:]
        used = np.any(first != 0, axis=(1, 2)) & np.any(second != 0, axis=(1, 2))
        left, right = (triangles(spread * held[used]) for held in (first, second))
        lags, rows, parts = left.shape
        step = max(PART_NUMBERS // max(rows * rows * lags, 1), 1)
        for start in range(0, lags, step):
            some, later = left[start : start + step], right[start:]
            columns = later.transpose(2, 0, 1).reshape(parts, len(later) * rows)
            table = some.reshape(len(some) * rows, parts) @ columns
            table = table.reshape(len(some), rows, len(later), rows)
            squares = np.einsum("kepf,kepf->kp", table, table)
            total[start + 1 :] += np.sum(np.triu(squares), axis=0)
        return total


def triangles(held: np.ndarray) -> np.ndarray:
    """Return for every lag a matrix R(k) with the norms of held(k)ᵀ: [time, rows, parts].

    |L(k)ᵀ R(k')| is the same for the triangular factors of both, which have no more rows than there
    are parts. A token of 32 inputs has 561 entries.
    """
    columns = held.transpose(1, 2, 0)
    if not 0 < len(held) < held.shape[2]:
        return columns
    return np.asarray(np.linalg.qr(columns, mode="r"))


def lag_tables(form: QuadraticForm | ResponseForm, time: int) -> Iterator[LagTables]:
    """Yield the tables of each output."""
    if isinstance(form, ResponseForm):
        m, x = form.m[:, :time], form.x[:, :time]
        for row in form.D:
            used = row != 0
            read = row[used, None, None]
            # ½(Σ_j D_j m_j x_jᵀ + Σ_j D_j x_j m_jᵀ) in one product.
            left = np.concatenate([read * m[used], read * x[used]])
            yield LagTables(left, np.concatenate([x[used], m[used]]) / 2)
        return
    held = responses(form.reads, form.decay, time)
    for kernel in form.kernels:
        yield LagTables(held, np.tensordot(kernel, held, axes=1))
