"""The linear attention nearest to what the past decides: W_V, M and λ by least squares.

In the letters of `problem.py`, W_V given M is a linear problem with matrix K = ⟨M⊗M, G⟩, and M
given W_V is one with matrix N = ⟨W_VᵀW_V, G⟩. Turns between the two never touch the rows again.
They start from the attention nearest to the regression on all features.

Turns are slow at the end, and a Gram matrix holds half the digits. So the fit is finished by damped
Newton steps in W_V, M and λ, whose gradients come from the residuals of the rows themselves. The
Hessian is block-diagonal in the rows of W_V, so these are eliminated first.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from underhood.analysis.forms.attention_fit import fit_attention
from underhood.analysis.scoring.jackknife import jackknife_error
from underhood.analysis.scoring.problem import AttentionPoint, Problem, apply, ridged
from underhood.common.least_squares import damped_steps

# λ = 1 and horizons 1/(1 − λ) from a hundred tokens to about one.
GRID = (1.0, 0.99, 0.97, 0.93, 0.85, 0.7, 0.5, 0.25)
GOLDEN = (np.sqrt(5) - 1) / 2
ROW_TURNS, GOLDEN_STEPS, NEWTON_STEPS, GUESSES = 30, 8, 40, 3
# Newton steps end with a fit that is exact up to rounding, or a cost that hardly moves.
EXACT_COST, CONVERGED = 1e-28, 1e-7
# Fits that differ by this much of the differences' sum of squares are equally good.
TIE = 1e-14


def fit_memory(problem: Problem) -> AttentionPoint:
    """Return the best W_V, M and λ; λ is 1 unless another one is clearly better."""
    problem = problem.at(1.0)
    lasting = newton_fit(problem, alternate_on_rows(problem, guesses=GUESSES), free_decay=False)
    if lasting.cost < TIE * problem.total:
        return lasting
    starts = [lasting, *(alternate_on_rows(problem.at(decay)) for decay in GRID[1:])]
    fading = newton_fit(problem, golden_section(problem, starts), free_decay=True)
    # A λ off the mark can lead into another minimum, where W_V and M have changed places.
    again = alternate_on_rows(problem.at(fading.decay), guesses=GUESSES)
    fading = min(fading, newton_fit(problem, again, free_decay=True), key=lambda fit: fit.cost)
    # One more number to fit takes away about 1/rows of the cost by chance alone.
    chance = 10 * fading.cost / len(problem.zs) + TIE * problem.total
    return lasting if lasting.cost <= fading.cost + chance else fading


def golden_section(problem: Problem, starts: list[AttentionPoint]) -> AttentionPoint:
    """Return the best fit for λ between the neighbours of the best λ on the grid."""
    place = int(np.argmin([fit.cost for fit in starts]))
    best = starts[place]
    high, low = GRID[max(place - 1, 0)], (*GRID, 0.0)[place + 1]
    inner = (high - GOLDEN * (high - low), low + GOLDEN * (high - low))
    left, right = (alternate_on_rows(problem.at(decay), best.M) for decay in inner)
    for _ in range(GOLDEN_STEPS):
        if left.cost < right.cost:
            high, right = right.decay, left
            left = alternate_on_rows(problem.at(high - GOLDEN * (high - low)), right.M)
        else:
            low, left = left.decay, right
            right = alternate_on_rows(problem.at(low + GOLDEN * (high - low)), left.M)
    return min(best, left, right, key=lambda fit: fit.cost)


def alternate_on_rows(
    problem: Problem, M: np.ndarray | None = None, guesses: int = 1
) -> AttentionPoint:
    """Fit W_V to M and M to W_V by turns, starting from the regression unless M is given."""
    G, correlations = problem.G, problem.onto_features(problem.ys)
    M = fit_attention(problem.regression(), guesses=guesses).M if M is None else M
    before = -np.inf
    for _ in range(ROW_TURNS):
        m = M.ravel() / max(float(np.linalg.norm(M)), 1e-300)
        K = (G @ np.outer(m, m).ravel()).reshape(problem.p, problem.p)
        W_V = np.linalg.solve(ridged(K), (correlations @ m).T).T
        N = ((W_V.T @ W_V).ravel() @ G).reshape(m.size, m.size)
        right = np.tensordot(W_V, correlations)
        M = np.linalg.solve(ridged(N), right).reshape(M.shape)
        # Σ|ŷ|² at the best M; Newton steps do better once it hardly grows.
        explained = float(right @ M.ravel())
        if explained - before < 1e-4 * max(problem.total - explained, 1e-6 * problem.total):
            break
        before = explained
    return problem.fit(W_V, M)


def newton_fit(problem: Problem, fit: AttentionPoint, *, free_decay: bool) -> AttentionPoint:
    """Improve a fit by damped Newton steps until they no longer help."""

    def linearise(fit: AttentionPoint) -> Callable[[float], AttentionPoint | None]:
        model = quadratic_model(problem.at(fit.decay), fit, free_decay)

        def step(damping: float) -> AttentionPoint | None:
            try:
                change_V, change = model.lowest(damping)
            except np.linalg.LinAlgError:
                # The cost curves downwards somewhere, so there is no minimum to step to.
                return None
            change_M, change_decay = np.split(change, [fit.M.size])
            decay = float(np.clip(fit.decay + np.sum(change_decay), 0.0, 1.0))
            W_V, M = fit.W_V + change_V, fit.M + change_M.reshape(fit.M.shape)
            return problem.at(decay).fit(W_V, M)

        return step

    steps = damped_steps(fit, linearise, damping=1e-6, factor=100, most=1e6, tries=NEWTON_STEPS)
    for after in steps:
        gain, fit = fit.cost - after.cost, after
        if gain < CONVERGED * fit.cost or fit.cost < EXACT_COST * problem.total:
            break
    return fit


def decay_error(problem: Problem, fit: AttentionPoint) -> float:
    """Return the standard error of λ: jackknife over groups, one Newton step without each group.

    A group's gradient is its own. The curvature is that of all rows.
    """
    if fit.cost <= EXACT_COST * problem.total:
        return 0.0
    problem = problem.at(fit.decay)
    model = quadratic_model(problem, fit, free_decay=True)
    residuals = problem.residuals(fit.W_V, fit.M)
    slope = apply(problem.S_slope, problem.zs @ fit.M.T) @ fit.W_V.T
    # Every pair has a row of differences and a row of outputs.
    group_of_row = np.tile(problem.pairs.group_of_row, 2)
    values = []
    for group in range(problem.pairs.groups):
        rows = group_of_row == group
        R = problem.onto_features(residuals, rows)
        by_group = np.append(np.tensordot(fit.W_V, R), np.sum(slope[rows] * residuals[rows]))
        rest = replace(
            model,
            gradient_V=model.gradient_V - R @ fit.M.ravel(),
            gradient=model.gradient - by_group,
        )
        try:
            _, change = rest.lowest(1e-6)
        except np.linalg.LinAlgError:
            # The cost curves downwards, so λ is not determined at all.
            return 1.0
        values.append(np.clip(fit.decay + change[-1], 0.0, 1.0))
    return float(jackknife_error(np.array(values)))


@dataclass(frozen=True)
class Quadratic:
    """Half the cost near a fit: in the rows of W_V (K), in M and perhaps λ (N), and between."""

    K: np.ndarray
    N: np.ndarray
    cross: np.ndarray
    gradient_V: np.ndarray
    gradient: np.ndarray

    def lowest(self, damping: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the changes of W_V and of the other unknowns that lead to the minimum."""
        outputs, p, unknowns = self.cross.shape
        K = ridged(self.K)
        rows = np.linalg.solve(K, self.cross.transpose(1, 0, 2).reshape(p, -1))
        rows = rows.reshape(p, outputs, unknowns).transpose(1, 0, 2)
        schur = self.N - np.tensordot(self.cross, rows, axes=((0, 1), (0, 1)))
        L = np.linalg.cholesky(ridged(schur + damping * np.diag(np.diag(self.N))))
        free = self.gradient - np.tensordot(self.gradient_V, rows)
        change = np.linalg.solve(L.T, np.linalg.solve(L, free))
        return np.linalg.solve(K, self.gradient_V.T).T - rows @ change, change


def quadratic_model(problem: Problem, fit: AttentionPoint, free_decay: bool) -> Quadratic:
    """Return all second derivatives at a fit, except that of ŷ by λ."""
    W_V, m, p = fit.W_V, fit.M.ravel(), problem.p
    residuals = problem.residuals(W_V, fit.M)
    R = problem.onto_features(residuals)
    G_m = np.tensordot(problem.G.reshape(p * p, m.size, m.size), m, axes=(1, 0))
    N = ((W_V.T @ W_V).ravel() @ problem.G).reshape(m.size, m.size)
    # W_V and M share a scale that nothing determines: M keeps its scale.
    N = N + np.trace(N) / m.size * np.outer(m, m) / max(float(m @ m), 1e-300)
    cross = np.tensordot(W_V, G_m.reshape(p, p, m.size), axes=(1, 1)) - R
    gradient = np.tensordot(W_V, R)
    if free_decay:
        # λ is one more unknown behind M.
        read_slope = apply(problem.S_slope, problem.zs @ fit.M.T)
        slope = read_slope @ W_V.T
        by_V = slope.T @ problem.read(fit.M) - residuals.T @ read_slope
        by_M = apply(problem.S, slope @ W_V) - apply(problem.S_slope, residuals @ W_V)
        column = (by_M.T @ problem.zs).reshape(-1, 1)
        N = np.block([[N, column], [column.T, np.sum(slope**2)]])
        cross = np.concatenate([cross, by_V[:, :, None]], axis=2)
        gradient = np.append(gradient, np.sum(slope * residuals))
    return Quadratic((G_m @ m).reshape(p, p), N, cross, R @ m, gradient)
