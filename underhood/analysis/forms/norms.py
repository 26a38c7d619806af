"""The size of a function: √E[y²] on tokens x ~ N(0, I), exactly.

v(z) = μ + w, where w has mean zero and w_e = σ_e·(an orthonormal Hermite polynomial): x_a x_b,
√2·(x_a² − 1)/√2, x_a. Let a(t) be the mean of h(t). Then the form (`quadratic.py`) is a sum of
functions of no, one and two different tokens,

    y(t) = aᵀKa + Σ_k (2 aᵀKΛ^kQ w_k + w_kᵀG(k,k)w_k) + 2 Σ_{k<k'} w_kᵀG(k,k')w_k',

and functions of different tokens are orthogonal once their means are taken out. So E[y²] is the
square of the mean, plus the variance of a quartic polynomial for every lag, plus
4 Σ_{k<k'} |σG(k,k')σ|². The variance of a polynomial is the sum of its squared Hermite
coefficients without the constant.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np

from underhood.analysis.forms.lag_tables import LagTables, ResponseForm, lag_tables
from underhood.analysis.forms.monomials import monomials
from underhood.analysis.forms.quadratic import QuadraticForm, entry_degrees
from underhood.analysis.forms.tables import TableForm
from underhood.common.linear_algebra import symmetric_reads, upper

# The length at which sizes of functions are stated.
TIME = 32

MeasuredForm = QuadraticForm | TableForm | ResponseForm
# Two functions in the same form.
SameForm = TypeVar("SameForm", QuadraticForm, TableForm, ResponseForm)


def size(form: MeasuredForm, time: int = TIME) -> float:
    """Return √E[y²], the mean taken over outputs and over the tokens 1 … `time`."""
    return float(np.sqrt(np.mean(second_moments(form, time)))) if form.d_out else 0.0


def relative_change(
    form: SameForm, changed: SameForm, time: int = TIME, whole: float | None = None
) -> float:
    """Return the size of form − changed over the size of form (`whole`); 0 if that is 0."""
    whole = size(form, time) if whole is None else whole
    return 0.0 if whole == 0 else size(form - changed, time) / whole


def second_moments(form: MeasuredForm, time: int = TIME) -> np.ndarray:
    """Return E[y_o(t)²] [d_out, time] on normal tokens."""
    if isinstance(form, TableForm):
        outputs = (table_moments(*form.of_output(o), time) for o in range(form.d_out))
        return np.reshape(list(outputs), (form.d_out, time))
    moments = np.zeros((form.d_out, time))
    for row, tables in zip(moments, lag_tables(used_neurons(form), time), strict=True):
        row[:] = lag_moments(tables, form.d_in)
    return moments


def used_neurons(form: QuadraticForm | ResponseForm) -> QuadraticForm | ResponseForm:
    """Leave out neurons that read nothing or that nothing reads; gather the others."""
    if isinstance(form, ResponseForm):
        return form
    read = np.any(form.kernels != 0, axis=(0, 1))
    return form.keep(read & np.any(form.reads != 0, axis=1)).gathered(equal=0.0)


def lag_moments(tables: LagTables, d_in: int) -> np.ndarray:
    """Return the sum in the head of this file for the tokens 1 … time of one output."""
    mean, spread = entry_moments(d_in)
    known, varying = monomials(d_in), entry_degrees(d_in) > 0
    low, high = known.quadratic[varying], np.ones(len(known.powers), bool)
    high[low] = high[0] = False
    # w = v − μ: what is read of the constant changes by μ.
    centred = tables.of_one_token()
    time = len(centred)
    centred[:, -1] -= mean @ centred
    centred[:, :, -1] -= centred @ mean
    quartic = known.to_hermite(known.collect(centred))
    # aᵀKΛ^kQ [t, k, entries]: the mean of the state meets the token k steps ago.
    met = np.cumsum(tables.reads_of(mean), axis=0)
    linear = 2 * met[:, :, varying] * spread[varying]
    happened = np.tril(np.ones((time, time)))
    means = np.sum(happened * (met @ mean), axis=1) + happened @ quartic[:, 0]
    # Sums of squares throughout, so that no rounding makes a variance negative.
    variances = np.sum(quartic[:, high] ** 2, axis=1)
    variances = variances + np.sum((linear + quartic[:, low]) ** 2, axis=2)
    one_token = np.sum(variances * happened, axis=1)
    pairs = tables.squares_of_pairs(spread)
    return np.asarray(means**2 + one_token + 4 * np.cumsum(pairs))


def table_moments(decays: np.ndarray, tables: np.ndarray, time: int) -> np.ndarray:
    """Return E[y(t)²] of Σ_λ Σ_ec T_λ[e, c] A_e z_c, for decays and tables [parts, entries, d + 1].

    Token t − k meets the current one through C_k = Σ λ^k T_λ. Their product w_kᵀC_k z adds |σC_k|².
    With the means of the past, the current token is in a cubic polynomial P₃ + P₂ + P₁ + P₀, whose
    Hermite coefficients of degree 1 and 0 are P₁ + 3 tr P₃ and P₀ + tr P₂.
    """
    if len(tables) == 0:
        return np.zeros(time)
    d = tables.shape[2] - 1
    mean, spread = entry_moments(d)
    fading = decays ** np.arange(time)[:, None]
    fading[0] = 0.0
    # The state's mean meets the current token: [time, d + 1].
    past = np.cumsum(fading, axis=0) @ (mean @ tables)
    spreads = (spread[:, None] * tables).reshape(len(tables), tables[0].size)
    # |Σ λ^k σT_λ| from the triangular factor, so that parts that cancel keep their digits.
    sizes = np.linalg.qr(spreads.T, mode="r") @ fading.T
    pairs = np.cumsum(np.sum(sizes**2, axis=0))
    cubic = symmetric_reads(np.sum(tables, axis=0).T, d + 1)
    P3 = cubic[:d, :d, :d]
    P3 = (P3 + P3.transpose(1, 2, 0) + P3.transpose(2, 0, 1)) / 3
    P2 = cubic[d, :d, :d] + cubic[:d, :d, d] + cubic[:d, :d, d].T
    first = 2 * cubic[d, :d, d] + cubic[:d, d, d] + 3 * np.einsum("aac->c", P3) + past[:, :d]
    constant = cubic[d, d, d] + np.trace(P2) + past[:, d]
    here = 6 * np.sum(P3**2) + 2 * np.sum(P2**2) + np.sum(first**2, axis=1) + constant**2
    return np.asarray(here + pairs)


def entry_moments(d_in: int) -> tuple[np.ndarray, np.ndarray]:
    """Return μ and σ of the entries of v(z)."""
    rows, columns = upper(d_in + 1)
    square = (rows == columns).astype(float)
    spread = np.where(rows == columns, np.sqrt(2.0), 1.0)
    return square, np.where(rows == d_in, 0.0, spread)


def by_degree(form: QuadraticForm | TableForm) -> Mapping[int, QuadraticForm | TableForm]:
    """Return the parts of degree 0, 1, 2, 3 and 4 in all tokens together."""
    if isinstance(form, TableForm):
        return form.by_degree()
    degrees = entry_degrees(form.d_in)
    # Every neuron three times: it reads its constant, its linear and its quadratic part.
    reads = np.vstack([form.reads * (degrees == degree) for degree in range(3)])
    decay, degree = np.tile(form.decay, 3), np.repeat(np.arange(3), form.neurons)
    kernels = np.tile(form.kernels, (1, 3, 3))
    return {
        total: QuadraticForm(form.d_in, reads, decay, kernels * (degree[:, None] + degree == total))
        for total in range(5)
    }


def degree_sizes(form: QuadraticForm | TableForm, time: int = TIME) -> dict[int, float]:
    """Return the sizes of the parts of degree 0, 1, 2, 3 and 4 in all tokens together."""
    if isinstance(form, TableForm):
        return {degree: size(part, time) for degree, part in form.by_degree().items()}
    degrees, squares = entry_degrees(form.d_in), np.zeros(5)
    for tables in lag_tables(used_neurons(form), time):
        for degree in range(5):
            part = tables.of_degree(degree, degrees)
            squares[degree] += np.sum(lag_moments(part, form.d_in))
    sizes = np.sqrt(squares / max(form.d_out * time, 1))
    return dict(enumerate(sizes.tolist()))


def between(form: QuadraticForm, first: np.ndarray, second: np.ndarray) -> QuadraticForm:
    """Return the products of a neuron of the first set with a neuron of the second."""
    chosen = first[:, None] & second
    return replace(form, kernels=form.kernels * (chosen | chosen.T))
