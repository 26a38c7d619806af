"""Several heads in one table: T = Σ_h sym(V_h ⊗ M_h), with as few heads as possible.

V_h = W_O W_V of one head [rows, p] and M_h = W_KᵀW_Q [p, p]. They are searched from several random
starts (`heads_problem.py`).

Σ_h V_h ⊗ M_h is a product of two matrices, so heads of full rank can be mixed: Σ_g P_hg V_g with
Σ_g P⁻ᵀ_hg M_g is the same function for every invertible P. Heads of low rank are unique in general.
So ranks are tried from below (V_h = O U, M_h = KᵀQ), and the first that fits exactly is kept. Where
all heads have full rank, the mixture is chosen whose V_h are orthogonal, and whose M_h are too.
Symmetrisation in S hides more than P, so even then other heads can give the same function.
"""

from dataclasses import dataclass, replace

import numpy as np

from underhood.analysis.decompilation.heads_problem import (
    HeadsPoint,
    HeadsProblem,
    unknown_count,
)

# A fit that leaves this share of the table is exact up to rounding.
EXACT_HEADS = 1e-11
STARTS = 12


@dataclass(frozen=True)
class HeadFit:
    """V [heads, rows, p], M [heads, p, p], and the share of the table they miss.

    unique  whether the heads have a low rank, which leaves no mixture free in general
    """

    V: np.ndarray
    M: np.ndarray
    residual: float
    unique: bool = False


def fit_heads(problem: HeadsProblem, *, starts: int = STARTS, seed: int = 0) -> HeadFit:
    """Return the best heads of several starts; the first exact one ends the search."""
    nothing = problem.at(np.zeros(unknown_count(problem)))
    norm = float(np.sqrt(nothing.cost))
    if norm == 0:
        return HeadFit(*problem.weights(nothing), 0.0)
    scaled = replace(problem, tables=problem.tables / norm)
    rng = np.random.default_rng(seed)
    best: HeadsPoint | None = None
    for _ in range(starts):
        parts = [
            rng.normal(size=shape) / np.sqrt(np.prod(shape))
            for _ in range(scaled.heads)
            for shape in scaled.shapes
        ]
        point = scaled.fit(np.concatenate([part.ravel() for part in parts]))
        if best is None or point.cost < best.cost:
            best = point
        if best.cost < EXACT_HEADS**2:
            break
    assert best is not None
    V, M = scaled.weights(best)
    return HeadFit(norm * V, M, float(np.sqrt(best.cost)))


def rank_trials(problem: HeadsProblem) -> list[tuple[int | None, int | None]]:
    """Return ranks of V_h and of M_h below full rank that the tables allow, lowest first."""
    rows, p, heads = len(problem.tables), problem.p, problem.heads
    # Σ_h rank(M_h) is at least the rank of T over the current token, and so for V_h and outputs.
    over_now, over_rows = (
        int(np.linalg.matrix_rank(np.moveaxis(problem.tables, axis, 0).reshape(size, -1)))
        for axis, size in ((2, problem.tables.shape[2]), (0, rows))
    )
    trials: list[tuple[int | None, int | None]] = []
    trials += [(None, rank) for rank in range(max(1, -(-over_now // heads)), p)]
    trials += [(rank, None) for rank in range(max(1, -(-over_rows // heads)), min(rows, p))]
    return trials


def fit_any_ranks(problem: HeadsProblem, enough: float) -> HeadFit:
    """Return heads that leave at most the share `enough`, of full or of lower rank; or the best."""
    best = fit_heads(problem)
    # A low rank leaves fewer unknowns, so that heads are found that were missed among all.
    for ranks in rank_trials(problem) if best.residual > enough else ():
        lower = fit_heads(replace(problem, ranks=ranks), starts=STARTS)
        best = min(best, lower, key=lambda fit: fit.residual)
        if best.residual <= enough:
            break
    return best


def with_low_ranks(problem: HeadsProblem, fit: HeadFit) -> HeadFit:
    """Return the same heads with the lowest rank of M_h, or of V_h, that fits as well.

    Such heads are unique in general. If only full ranks fit, the heads are mixed until the V_h are
    orthogonal to each other and the M_h are too, the largest product first.
    """
    rows, p, heads = len(problem.tables), problem.p, problem.heads
    for rank_V, rank_M in rank_trials(problem):
        # Matrices of rank r have codimension (p − r)², or (p − r)(rows − r). If that is below the
        # number of heads, mixing alone makes heads of this rank, and low rank says nothing.
        if rank_M is None:
            codimension = (p - (rank_V or 0)) * (rows - (rank_V or 0))
        else:
            codimension = (p - rank_M) ** 2
        if codimension < heads:
            continue
        lower = fit_heads(replace(problem, ranks=(rank_V, rank_M)), starts=STARTS // 2)
        if lower.residual <= max(EXACT_HEADS, 10 * fit.residual):
            return replace(lower, unique=heads > 1)
    flat_V, flat_M = fit.V.reshape(heads, -1), fit.M.reshape(heads, -1)
    left, values, right = np.linalg.svd(flat_V.T @ flat_M, full_matrices=False)
    scale = np.sqrt(values[:heads, None])
    V, M = scale * left.T[:heads], scale * right[:heads]
    return replace(fit, V=V.reshape(fit.V.shape), M=M.reshape(fit.M.shape))
