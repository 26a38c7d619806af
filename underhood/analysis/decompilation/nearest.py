"""The attention nearest to a network on tokens x ~ N(0, I).

The network is projected onto all features A_e z_c that attention could use (`projection.py`), which
gives a table T and a metric Φ. Tables of attentions are T(V, M), the coefficients of V S M z. The
nearest of them in coefficients is fitted by turns (`attention_fit.py`). A few damped Gauss–Newton
steps lead from there to the nearest in the metric.

W_V and M = W_KᵀW_Q are determined up to one scale: |W_V| = |M| (Frobenius), and the largest entry
of W_V is positive. M is split by its singular values, W_K = √Σ Uᵀ and W_Q = √Σ Vᵀ. If both have
rank 1, W_V = u vᵀ and M = k qᵀ, then v and k may change places; v is the one whose largest entry
comes first.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import block_diag

from underhood.analysis.decompilation.projection import attention_features, exact_table, project
from underhood.analysis.forms import quadratic
from underhood.analysis.forms.attention_fit import EXACT_TABLE, attention_with, fit_attention
from underhood.analysis.forms.norms import TIME, second_moments
from underhood.analysis.forms.quadratic import QuadraticForm, attention_table
from underhood.analysis.forms.tables import TableForm
from underhood.common.least_squares import ResidualPoint, damped_steps
from underhood.common.linear_algebra import symmetric_reads
from underhood.layers import LinearAttention

# Up to this many inputs the metric of functions is used; it has (d³/2)² entries. Beyond it, the
# nearest attention is the nearest in coefficients.
METRIC_INPUTS = 12
# A neuron with less decay than this holds the current token and no memory.
FORGETS = 1e-3
# Gauss–Newton steps end when one lowers the cost by less than this share.
CONVERGED_METRIC = 1e-13


@dataclass(frozen=True)
class Projected:
    """The network over the features of attention: tables [rows, entries, width] and their metric.

    decay    of each row; a row is an output
    factors  R with |R t| the size of a difference t, for each row; none for many inputs
    size     attention reads the first `size` entries of z = [x; 1]
    """

    tables: np.ndarray
    factors: list[np.ndarray]
    decay: np.ndarray
    size: int

    def form(self, d_in: int) -> QuadraticForm:
        """Return the function of the tables."""
        return quadratic.from_table(d_in, self.tables, self.decay)


def project_outputs(
    form: QuadraticForm | TableForm, *, biases: bool, time: int = TIME
) -> Projected:
    """Project a network onto the features of attention, with one decay per output.

    form  may be tables only if there are more inputs than METRIC_INPUTS
    """
    d_in = form.d_in
    features = attention_features(d_in, biases=biases)
    decay = choose_decays(form, features, time)
    tables = np.zeros((form.d_out, *features.shape))
    factors: list[np.ndarray] = [np.zeros((0, features.size))] * form.d_out
    for value in np.unique(decay):
        outputs = np.flatnonzero(decay == value)
        if isinstance(form, TableForm):
            tables[outputs] = form.at(float(value), nearby=1e-3)[outputs] * features
            continue
        some = replace(form, kernels=form.kernels[outputs])
        if d_in <= METRIC_INPUTS:
            tables[outputs], metric = project(some, float(value), features, time)
            factor = square_root(metric, features)
            for o in outputs:
                factors[o] = factor
        else:
            tables[outputs] = exact_table(some.gathered(), float(value), nearby=1e-3) * features
    return Projected(tables, factors if d_in <= METRIC_INPUTS else [], decay, d_in + biases)


def nearest_attention(projected: Projected, goal: float = EXACT_TABLE) -> LinearAttention:
    """Return the nearest attention with one head and one decay per output.

    goal  share of the tables below which a fit is exact
    """
    V, M = fit_table(projected.tables, projected.size, goal)
    if projected.factors:
        V, M = refine_fit(V, M, projected.tables, projected.factors, projected.size)
    d_in = projected.tables.shape[-1] - 1
    return canonical(*ordered_rank_one(V, M), projected.decay, projected.size > d_in)


def fit_table(tables: np.ndarray, size: int, goal: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the nearest V and M in coefficients, over the first `size` entries of z."""
    width = tables.shape[-1]
    square = np.zeros((len(tables), size, size, size))
    for place, table in enumerate(tables):
        symmetric = symmetric_reads(table[:, :size].T, width)
        square[place] = np.moveaxis(symmetric[:, :size, :size], 0, 2)
    fit = fit_attention(square, goal=goal)
    missing = (0, width - size)
    return np.pad(fit.W_V, ((0, 0), missing)), np.pad(fit.M, (missing, missing))


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
    steps = damped_steps(point, linearise, damping=1e-6, factor=10, least=1e-12, most=1e6, tries=50)
    for after in steps:
        before, point = point.cost, after
        if before - point.cost < CONVERGED_METRIC * before or point.cost == 0:
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
    # An output depends on its own row of V alone.
    rows_V = [R @ by_V.T for R in factors]
    moved = (by_M[o].T @ R.reshape(len(R), -1, width)[:, :, :size] for o, R in enumerate(factors))
    rows_M = [rows.reshape(len(rows), size * size) for rows in moved]
    return np.hstack([block_diag(*rows_V), np.vstack(rows_M)])


def choose_decays(form: QuadraticForm | TableForm, features: np.ndarray, time: int) -> np.ndarray:
    """Return the decay of each output's memory: 1 unless another decay explains far more.

    If all neurons that meet the current token have one decay, that is it. Otherwise the decays with
    the most weight are tried, and their mean. The best of them wins over 1 if it leaves less than a
    quarter of the variance that 1 leaves.
    """
    values, by_decay = decay_strengths(form)
    present = by_decay > 1e-14 * np.maximum(by_decay.max(axis=1, keepdims=True), 1e-300)
    counts = present.sum(axis=1)
    chosen = np.where(counts == 1, values[present.argmax(axis=1)], 1.0)
    undecided = np.flatnonzero(counts > 1)
    if len(undecided) == 0 or form.d_in > METRIC_INPUTS or isinstance(form, TableForm):
        return chosen
    total = by_decay[undecided].sum(axis=0)
    # The three strongest of all outputs together, and the strongest of each.
    strongest = np.append(np.argsort(total)[::-1][:3], by_decay[undecided].argmax(axis=1))
    mean = float(values @ total / max(total.sum(), 1e-300))
    some = replace(form, kernels=form.kernels[undecided])
    tried = np.array(sorted({1.0, mean, *values[strongest].tolist()} - {0.0}, reverse=True))
    assert tried[0] == 1.0
    nearest = (
        quadratic.from_table(form.d_in, project(some, decay, features, time)[0], decay)
        for decay in tried.tolist()
    )
    left = np.array([np.mean(second_moments(some - near, time), axis=1) for near in nearest])
    clearly = 4 * left.min(axis=0) < left[0]
    chosen[undecided] = np.where(clearly, tried[left.argmin(axis=0)], 1.0)
    return chosen


def decay_strengths(form: QuadraticForm | TableForm) -> tuple[np.ndarray, np.ndarray]:
    """Return the decays, and how strongly their sums meet the current token [d_out, decays].

    Neurons of one decay are added up first, so neurons that cancel count for nothing.
    """
    decays, groups = quadratic.decay_groups(form.decay)
    if isinstance(form, TableForm):
        remembers = form.keep(lambda decay: decay >= FORGETS)
        tables = (remembers.at(decay, quadratic.EQUAL_DECAYS) for decay in decays)
    else:
        query = form.decay < FORGETS
        now = form.kernels[:, :, query] @ form.reads[query]
        memories = (group & ~query for group in groups)
        tables = (form.reads[memory].T @ now[:, memory] for memory in memories)
    by_decay = np.array([np.linalg.norm(table, axis=(1, 2)) for table in tables]).T
    by_decay[:, 0] = 0.0
    return np.array(decays), by_decay


def canonical(V: np.ndarray, M: np.ndarray, decay: np.ndarray, biases: bool) -> LinearAttention:
    """Return the attention with V and M scaled as the head of this file says."""
    norms = np.linalg.norm(V), np.linalg.norm(M)
    if 0 in norms:
        V, M = np.zeros_like(V), np.zeros_like(M)
    else:
        scale = np.sqrt(norms[1] / norms[0])
        sign = np.sign(V.ravel()[np.argmax(np.abs(V))])
        V, M = V * scale * sign, M / scale * sign
    return attention_with(V, M, decay, d_in=len(M) - 1, biases=biases)


def ordered_rank_one(V: np.ndarray, M: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return V and M; of a rank-1 pair, the split whose value has its largest entry first."""
    u, s, vt = np.linalg.svd(V, full_matrices=False)
    k, r, qt = np.linalg.svd(M, full_matrices=False)
    if not all(len(sigma) and np.sum(sigma > 1e-9 * sigma[0]) == 1 for sigma in (s, r)):
        return V, M
    value, key = vt[0], k[:, 0]
    if np.argmax(np.abs(value)) <= np.argmax(np.abs(key)):
        return V, M
    return s[0] * np.outer(u[:, 0], key), r[0] * np.outer(value, qt[0])
