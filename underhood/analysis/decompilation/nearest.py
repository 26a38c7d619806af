"""The attention nearest to a network on tokens x ~ N(0, I).

The network is projected onto all features A_e z_c that attention could use (`projection.py`), which
leaves a table T and a metric Φ. Among the tables of attentions, T(V, M) over the entries of
V S M z, the nearest one in that metric is found from the nearest one in coefficients (by turns,
`attention_fit.py`) with a few damped Gauss–Newton steps.
"""

from dataclasses import dataclass

import numpy as np

from underhood.analysis.forms.attention_fit import fit_attention
from underhood.analysis.decompilation.projection import own_table, project, without_biases
from underhood.analysis.forms.norms import TIME, second_moments
from underhood.analysis.forms.quadratic import (
    QuadraticForm,
    attention_table,
    entries,
    equal_decays,
    from_table,
    upper,
)

# Up to this many inputs the metric of functions is used; it has (d³/2)² entries. Beyond it, the
# nearest attention is the nearest in coefficients.
METRIC_INPUTS = 12
STEPS = 50
# A neuron with less decay than this holds the current token and no memory.
FORGETS = 1e-3


@dataclass(frozen=True)
class Nearest:
    """V [d_out, p] and M [p, p] over z = [x; 1] (p = d + 1), and the decay of each output."""

    V: np.ndarray
    M: np.ndarray
    decay: np.ndarray


def nearest_attention(form: QuadraticForm, *, biases: bool, time: int = TIME) -> Nearest:
    """The nearest attention with one decay per output."""
    d_in = form.d_in
    features = np.ones((entries(d_in + 1), d_in + 1), bool) if biases else without_biases(d_in)
    decay = choose_decays(form, features, time)
    tables = np.zeros((form.d_out, *features.shape))
    factors: list[np.ndarray] = [np.zeros((0, features.size))] * form.d_out
    for value in np.unique(decay):
        outputs = np.flatnonzero(decay == value)
        some = QuadraticForm(d_in, form.reads, form.decay, form.kernels[outputs])
        if d_in <= METRIC_INPUTS:
            found = project(some, float(value), features, time)
            tables[outputs] = found.table
            factor = square_root(found.metric, features)
            for o in outputs:
                factors[o] = factor
        else:
            tables[outputs] = own_table(some.gathered(), float(value), nearby=1e-3) * features
    V, M = fit_table(tables, d_in if not biases else d_in + 1)
    if d_in <= METRIC_INPUTS:
        V, M = refine(V, M, tables, factors, d_in + biases)
    return Nearest(V, M, decay)


def fit_table(tables: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The nearest V and M in coefficients, padded to all of z."""
    d_out, _, width = tables.shape
    rows, columns = upper(width)
    square = np.zeros((d_out, width, width, width))
    half = np.where((rows == columns)[:, None], tables, tables / 2)
    square[:, rows, columns], square[:, columns, rows] = half, half
    fit = fit_attention(square[:, :size, :size, :size])
    missing = width - size
    return np.pad(fit.W_V, ((0, 0), (0, missing))), np.pad(fit.M, ((0, missing), (0, missing)))


def square_root(metric: np.ndarray, features: np.ndarray) -> np.ndarray:
    """R with |R t|² = tᵀ·metric·t over the features of a table t; nothing else of t counts."""
    values, vectors = np.linalg.eigh(metric)
    R = np.zeros((len(values), features.size))
    R[:, features.ravel()] = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
    return R


def refine(
    V: np.ndarray, M: np.ndarray, tables: np.ndarray, factors: list[np.ndarray], size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Damped Gauss–Newton on Σ_o |R_o (T(V, M)_o − T_o)|², over the first `size` entries of z."""
    free = np.zeros_like(M, bool)
    free[:size, :size] = True
    residual = misfit(V, M, tables, factors)
    damping = 1e-6
    for _ in range(STEPS):
        cost = float(residual @ residual)
        J = derivative(V, M, factors, size)
        gradient = J.T @ residual
        hessian = J.T @ J
        scale = float(np.trace(hessian)) / max(len(hessian), 1)
        if scale == 0 or cost == 0:
            break
        step = -np.linalg.solve(hessian + damping * scale * np.eye(len(hessian)), gradient)
        moved_V, moved_M = V.copy(), M.copy()
        moved_V[:, :size] += step[: len(V) * size].reshape(len(V), size)
        moved_M[free] += step[len(V) * size :]
        trial = misfit(moved_V, moved_M, tables, factors)
        better = float(trial @ trial)
        if better < cost:
            V, M, residual, damping = moved_V, moved_M, trial, max(damping / 10, 1e-12)
            if cost - better < 1e-13 * cost:
                break
        else:
            damping *= 10
            if damping > 1e6:
                break
    return V, M


def misfit(
    V: np.ndarray, M: np.ndarray, tables: np.ndarray, factors: list[np.ndarray]
) -> np.ndarray:
    """R_o (T(V, M)_o − T_o) for all outputs, one after the other."""
    apart = (attention_table(V, M) - tables).reshape(len(V), -1)
    return np.concatenate([R @ row for R, row in zip(factors, apart, strict=True)])


def derivative(V: np.ndarray, M: np.ndarray, factors: list[np.ndarray], size: int) -> np.ndarray:
    """Of `misfit`, by V[:, :size] and then by M[:size, :size], both row by row."""
    width = len(M)
    by_V = attention_table(np.eye(size, width), M).reshape(size, -1)
    # M_bc moves column c of the table, by the entries [:, b] of T(V, I).
    by_M = attention_table(V, np.eye(width))[:, :, :size]
    blocks = []
    for o, R in enumerate(factors):
        block = np.zeros((len(R), len(V) * size + size * size))
        block[:, o * size : (o + 1) * size] = R @ by_V.T
        moved = by_M[o].T @ R.reshape(len(R), -1, width)[:, :, :size]
        block[:, len(V) * size :] = moved.reshape(len(R), -1)
        blocks.append(block)
    return np.vstack(blocks)


def choose_decays(form: QuadraticForm, features: np.ndarray, time: int) -> np.ndarray:
    """The decay of each output's memory: 1 unless another one explains far more.

    Where all neurons that meet the current token have one decay, that is it. Otherwise the decays
    with the most weight are tried, and their mean; one of them wins over 1 if it leaves less than
    a quarter of the variance that 1 leaves.
    """
    decays, by_decay = coupling(form)
    by_decay[:, 0] = 0.0
    values = np.array(decays)
    present = by_decay > 1e-14 * np.maximum(by_decay.max(axis=1, keepdims=True), 1e-300)
    lone = present.sum(axis=1) == 1
    chosen = np.where(lone, values[present.argmax(axis=1)], 1.0)
    open_outputs = np.flatnonzero(present.sum(axis=1) > 1)
    if len(open_outputs) == 0 or form.d_in > METRIC_INPUTS:
        return chosen
    total = by_decay[open_outputs].sum(axis=0)
    # The three strongest of all outputs together, and the strongest of each.
    strongest = np.append(np.argsort(total)[::-1][:3], by_decay[open_outputs].argmax(axis=1))
    strong = values[np.unique(strongest)]
    mean = float(values @ total / max(total.sum(), 1e-300))
    some = QuadraticForm(form.d_in, form.reads, form.decay, form.kernels[open_outputs])
    candidates = sorted({1.0, mean, *strong.tolist()} - {0.0}, reverse=True)
    left = np.array([unexplained(some, one, features, time) for one in candidates])
    best = left.argmin(axis=0)
    at_one, at_best = left[0], left.min(axis=0)
    assert candidates[0] == 1.0
    chosen[open_outputs] = np.where(4 * at_best < at_one, np.array(candidates)[best], 1.0)
    return chosen


def unexplained(form: QuadraticForm, decay: float, features: np.ndarray, time: int) -> np.ndarray:
    """Per output, the mean square that the features with this decay leave."""
    found = project(form, decay, features, time)
    near = from_table(form.d_in, found.table, np.full(form.d_out, decay))
    return np.mean(second_moments(form - near, time), axis=1)


def coupling(form: QuadraticForm) -> tuple[tuple[float, ...], np.ndarray]:
    """The different decays, and how strongly [d_out, decays] their sums meet the current token.

    Neurons of one decay are added up first, so that those which cancel count for nothing.
    """
    decays, places = equal_decays(form.decay)
    query = form.decay < FORGETS
    now = form.kernels[:, :, query] @ form.reads[query]
    strength = np.zeros((form.d_out, len(decays)))
    for place in range(len(decays)):
        members = (places == place) & ~query
        table = form.reads[members].T @ now[:, members]
        strength[:, place] = np.linalg.norm(table, axis=(1, 2))
    return decays, strength
