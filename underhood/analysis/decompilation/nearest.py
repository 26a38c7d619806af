"""The attention nearest to a network on tokens x ~ N(0, I).

The network is projected onto all features A_e z_c that attention could use (`projection.py`), which
gives a table T and a metric Φ. Tables of attentions are T(V, M), the coefficients of V S M z. The
nearest of them in coefficients is fitted by turns (`attention_fit.py`). A few damped Gauss–Newton
steps lead from there to the nearest in the metric.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from underhood.analysis.decompilation.projection import attention_features, exact_table, project
from underhood.analysis.forms.attention_fit import fit_attention
from underhood.analysis.forms.linear_algebra import upper
from underhood.analysis.forms.norms import TIME, second_moments
from underhood.analysis.forms.quadratic import (
    QuadraticForm,
    attention_table,
    decay_groups,
    from_table,
)
from underhood.common.least_squares import ResidualPoint, damped_steps

# Up to this many inputs the metric of functions is used; it has (d³/2)² entries. Beyond it, the
# nearest attention is the nearest in coefficients.
METRIC_INPUTS = 12
# A neuron with less decay than this holds the current token and no memory.
FORGETS = 1e-3
# Gauss–Newton steps end when one lowers the cost by less than this share.
CONVERGED_METRIC = 1e-13


@dataclass(frozen=True)
class Nearest:
    """V [d_out, p] and M [p, p] over z = [x; 1] (p = d + 1), and the decay of each output."""

    V: np.ndarray
    M: np.ndarray
    decay: np.ndarray


def nearest_attention(form: QuadraticForm, *, biases: bool, time: int = TIME) -> Nearest:
    """Return the nearest attention with one decay per output."""
    d_in = form.d_in
    features = attention_features(d_in, biases=biases)
    decay = choose_decays(form, features, time)
    tables = np.zeros((form.d_out, *features.shape))
    factors: list[np.ndarray] = [np.zeros((0, features.size))] * form.d_out
    for value in np.unique(decay):
        outputs = np.flatnonzero(decay == value)
        some = replace(form, kernels=form.kernels[outputs])
        if d_in <= METRIC_INPUTS:
            projection = project(some, float(value), features, time)
            tables[outputs] = projection.table
            factor = square_root(projection.metric, features)
            for o in outputs:
                factors[o] = factor
        else:
            tables[outputs] = exact_table(some.gathered(), float(value), nearby=1e-3) * features
    V, M = fit_table(tables, d_in + biases)
    if d_in <= METRIC_INPUTS:
        V, M = refine_fit(V, M, tables, factors, d_in + biases)
    return Nearest(V, M, decay)


def fit_table(tables: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the nearest V and M in coefficients, over the first `size` entries of z."""
    d_out, _, width = tables.shape
    rows, columns = upper(width)
    square = np.zeros((d_out, width, width, width))
    half = np.where((rows == columns)[:, None], tables, tables / 2)
    square[:, rows, columns], square[:, columns, rows] = half, half
    fit = fit_attention(square[:, :size, :size, :size])
    missing = width - size
    return np.pad(fit.W_V, ((0, 0), (0, missing))), np.pad(fit.M, ((0, missing), (0, missing)))


def square_root(metric: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Return R with |R t|² = tᵀ·metric·t over the features of a table t, whatever else t holds."""
    values, vectors = np.linalg.eigh(metric)
    R = np.zeros((len(values), features.size))
    R[:, features.ravel()] = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
    return R


def refine_fit(
    V: np.ndarray, M: np.ndarray, tables: np.ndarray, factors: list[np.ndarray], size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Minimise Σ_o |R_o (T(V, M)_o − T_o)|² over the first `size` entries of z."""

    def point_at(V: np.ndarray, M: np.ndarray) -> ResidualPoint:
        return ResidualPoint((V, M), misfit(V, M, tables, factors))

    def linearise(point: ResidualPoint) -> Callable[[float], ResidualPoint | None]:
        J = derivative(*point.unknowns, factors, size)
        gradient, hessian = J.T @ point.residual, J.T @ J
        scale = float(np.trace(hessian)) / max(len(hessian), 1)

        def step(damping: float) -> ResidualPoint | None:
            if scale == 0:
                return None
            by = -np.linalg.solve(hessian + damping * scale * np.eye(len(hessian)), gradient)
            V, M = (W.copy() for W in point.unknowns)
            V[:, :size] += by[: len(V) * size].reshape(len(V), size)
            M[:size, :size] += by[len(V) * size :].reshape(size, size)
            return point_at(V, M)

        return step

    point = point_at(V, M)
    for after in damped_steps(
        point, linearise, damping=1e-6, factor=10, least=1e-12, most=1e6, tries=50
    ):
        gained, least = point.cost - after.cost, CONVERGED_METRIC * point.cost
        point = after
        if gained < least or point.cost == 0:
            break
    return point.unknowns


def misfit(
    V: np.ndarray, M: np.ndarray, tables: np.ndarray, factors: list[np.ndarray]
) -> np.ndarray:
    """Return R_o (T(V, M)_o − T_o) for all outputs, one after the other."""
    apart = (attention_table(V, M) - tables).reshape(len(V), -1)
    return np.concatenate([R @ row for R, row in zip(factors, apart, strict=True)])


def derivative(V: np.ndarray, M: np.ndarray, factors: list[np.ndarray], size: int) -> np.ndarray:
    """Return the derivative of `misfit` by V[:, :size], then by M[:size, :size], row by row."""
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
    """Return the decay of each output's memory: 1 unless another decay explains far more.

    If all neurons that meet the current token have one decay, that is it. Otherwise the decays with
    the most weight are tried, and their mean. The best of them wins over 1 if it leaves less than a
    quarter of the variance that 1 leaves.
    """
    decays, by_decay = coupling(form)
    by_decay[:, 0] = 0.0
    values = np.array(decays)
    present = by_decay > 1e-14 * np.maximum(by_decay.max(axis=1, keepdims=True), 1e-300)
    counts = present.sum(axis=1)
    chosen = np.where(counts == 1, values[present.argmax(axis=1)], 1.0)
    undecided = np.flatnonzero(counts > 1)
    if len(undecided) == 0 or form.d_in > METRIC_INPUTS:
        return chosen
    total = by_decay[undecided].sum(axis=0)
    # The three strongest of all outputs together, and the strongest of each.
    strongest = np.append(np.argsort(total)[::-1][:3], by_decay[undecided].argmax(axis=1))
    mean = float(values @ total / max(total.sum(), 1e-300))
    some = replace(form, kernels=form.kernels[undecided])
    tried = np.array(sorted({1.0, mean, *values[strongest].tolist()} - {0.0}, reverse=True))
    assert tried[0] == 1.0
    nearest = (
        from_table(form.d_in, project(some, decay, features, time).table, decay)
        for decay in tried.tolist()
    )
    left = np.array([np.mean(second_moments(some - near, time), axis=1) for near in nearest])
    clearly = 4 * left.min(axis=0) < left[0]
    chosen[undecided] = np.where(clearly, tried[left.argmin(axis=0)], 1.0)
    return chosen


def coupling(form: QuadraticForm) -> tuple[tuple[float, ...], np.ndarray]:
    """Return the different decays, and how strongly their sums meet the current token.

    The strengths are [d_out, decays]. Neurons of one decay are added up first, so neurons that
    cancel count for nothing.
    """
    decays, groups = decay_groups(form.decay)
    query = form.decay < FORGETS
    now = form.kernels[:, :, query] @ form.reads[query]
    memories = [group & ~query for group in groups]
    tables = (form.reads[memory].T @ now[:, memory] for memory in memories)
    return decays, np.array([np.linalg.norm(table, axis=(1, 2)) for table in tables]).T
