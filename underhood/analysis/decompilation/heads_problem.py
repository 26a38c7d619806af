"""Tables that are to be split into a given number of heads, as a least-squares problem.

The unknowns are V_h = O_h U_h [rows, p] and M_h = W_KᵀW_Q [p, p] of every head (`heads.py`). Steps
are damped Gauss–Newton steps in the metric of functions (`nearest.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from underhood.analysis.decompilation.nearest import Projected
from underhood.common.least_squares import damped_steps
from underhood.common.linear_algebra import upper

# A smaller cost is rounding; the tables have size one.
ROUNDING_COST = 1e-30
STEPS = 200
# Smaller singular values than this, against the largest, are rounding.
INDEPENDENT = 1e-13
# A start ends when this many steps together lower its cost by less than this share.
WAITED, LEAST_PROGRESS = 8, 0.1
# The cost on large weights, in rounds.
RIDGES = (1e-3, 1e-6, 1e-9, 0.0)


def tables_of(V: np.ndarray, M: np.ndarray) -> np.ndarray:
    """Return the tables [heads, rows, entries, p] of V [heads, rows, p] and M [heads, p, p]."""
    rows, columns = upper(M.shape[1])
    V, M = V[..., None], M[:, None]
    both = V[:, :, rows] * M[:, :, columns] + V[:, :, columns] * M[:, :, rows]
    both[:, :, rows == columns] /= 2
    return both


class HeadsPoint(NamedTuple):
    """The unknowns of all heads as one vector, the best O_h for them, and what is left.

    outs     O_h [heads, rows, rank]
    left     of the table and of the costs on large weights, for each group of rows
    shadows  orthonormal bases of what the O_h can reach, for each group of rows
    """

    unknowns: np.ndarray
    outs: np.ndarray
    left: list[np.ndarray]
    shadows: list[np.ndarray]
    ridge: float

    @property
    def cost(self) -> float:
        return float(
            sum(np.vdot(rest, rest) for rest in self.left)
            + self.ridge * np.vdot(self.unknowns, self.unknowns)
        )


@dataclass(frozen=True)
class HeadsProblem:
    """Tables [rows, entries, p] over the entries of z that heads read, to be split into heads.

    factors  for each row, R [numbers, entries · p] with |R t| the size of a difference t
    heads    how many
    ranks    of V and of M; None: full

    V_h = O_h U_h, where U_h is the identity at full rank. The tables are linear in the O_h, so the
    best O_h are solved for at every step, and only U_h and M_h are searched (variable projection,
    with the derivative of Kaufman).
    """

    tables: np.ndarray
    factors: list[np.ndarray]
    heads: int
    ranks: tuple[int | None, int | None] = (None, None)

    @classmethod
    def of(cls, projected: Projected, heads: int) -> "HeadsProblem":
        """Return the problem over the entries of z that attention reads."""
        _, columns = upper(projected.tables.shape[2])
        read = columns < projected.size
        tables = projected.tables[:, read, : projected.size]
        shape = projected.tables.shape[1:]
        # Rows of one decay share their factor, here as there.
        shared = {
            id(R): R.reshape(len(R), *shape)[:, read, : projected.size].reshape(len(R), -1)
            for R in projected.factors
        }
        return cls(tables, [shared[id(R)] for R in projected.factors], heads)

    @property
    def p(self) -> int:
        return self.tables.shape[2]

    @cached_property
    def shapes(self) -> list[tuple[int, int]]:
        """Shapes of the unknowns of one head: U if V has low rank, then M or K and Q."""
        p, (rank_V, rank_M) = self.p, self.ranks
        U = [] if rank_V is None else [(rank_V, p)]
        return U + ([(p, p)] if rank_M is None else [(rank_M, p), (rank_M, p)])

    @cached_property
    def groups(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Rows that share a factor: the rows, R, and the R t that they want, one per column."""
        shared = {id(R): R for R in self.factors}
        flat = self.tables.reshape(len(self.tables), -1)
        places = {key: [id(R) == key for R in self.factors] for key in shared}
        return [
            (np.flatnonzero(places[key]), R, R @ flat[places[key]].T) for key, R in shared.items()
        ]

    def factored(self, unknowns: np.ndarray) -> list[np.ndarray]:
        """Return the unknowns of all heads, each [heads, ...]."""
        parts, each, start = [], unknowns.reshape(self.heads, -1), 0
        for rows, columns in self.shapes:
            end = start + rows * columns
            parts.append(each[:, start:end].reshape(-1, rows, columns))
            start = end
        return parts

    def inner(self, unknowns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return U [heads, rank, p] and M [heads, p, p]."""
        factors, (rank_V, rank_M) = self.factored(unknowns), self.ranks
        identity = np.broadcast_to(np.eye(self.p), (self.heads, self.p, self.p))
        U = identity if rank_V is None else factors[0]
        return U, factors[-1] if rank_M is None else factors[-2].swapaxes(1, 2) @ factors[-1]

    def weights(self, point: HeadsPoint) -> tuple[np.ndarray, np.ndarray]:
        """Return V [heads, rows, p] and M [heads, p, p]."""
        U, M = self.inner(point.unknowns)
        return point.outs @ U, M

    def at(self, unknowns: np.ndarray, ridge: float = 0.0) -> HeadsPoint:
        """Solve for the O_h that leave least of the tables, and of ridge·|O|²."""
        U, M = self.inner(unknowns)
        inside = tables_of(U, M).reshape(self.heads * U.shape[1], -1)
        solved = np.zeros((len(inside), len(self.tables)))
        left, shadows = [], []
        for rows, R, wanted in self.groups:
            basis = R @ inside.T
            if ridge:
                basis = np.vstack([basis, np.sqrt(ridge) * np.eye(len(inside))])
                wanted = np.vstack([wanted, np.zeros((len(inside), len(rows)))])
            shadow, values, right = np.linalg.svd(basis, full_matrices=False)
            kept = values > INDEPENDENT * np.max(values, initial=0.0)
            shadow = shadow[:, kept]
            reached = shadow.T @ wanted
            solved[:, rows] = right[kept].T @ (reached / values[kept, None])
            left.append(wanted - shadow @ reached)
            shadows.append(shadow)
        outs = solved.reshape(self.heads, -1, len(self.tables)).swapaxes(1, 2)
        return HeadsPoint(unknowns, outs, left, shadows, ridge)

    def jacobian(self, point: HeadsPoint) -> np.ndarray:
        """Return the derivative of −left by the unknowns, without the change of the O_h."""
        factors, (rank_V, rank_M) = self.factored(point.unknowns), self.ranks
        V, M = self.weights(point)
        identity = np.broadcast_to(np.eye(self.p), (self.heads, self.p, self.p))
        # M_h moves column c by the entries of T(V_h, I); U_h moves a row by tables over M_h.
        over_M = tables_of(V, identity)
        over_U = None if rank_V is None else tables_of(identity, M).reshape(self.heads, self.p, -1)
        blocks = []
        for (rows, R, _), shadow in zip(self.groups, point.shadows, strict=True):
            columns = R.reshape(len(R), -1, self.p)
            by_M = np.einsum("hreb,fec->frhbc", over_M[:, rows], columns, optimize=True)
            parts = []
            if over_U is not None:
                parts += [np.einsum("hrk,hif->frhki", point.outs[:, rows], over_U @ R.T)]
            parts += (
                [by_M]
                if rank_M is None
                else [factors[-1] @ by_M.swapaxes(-1, -2), factors[-2] @ by_M]
            )
            flat = [part.reshape(len(R), len(rows), self.heads, -1) for part in parts]
            moved = np.concatenate(flat, axis=3).reshape(len(R), -1)
            # Only what the O_h cannot follow.
            kept = -shadow @ (shadow[: len(R)].T @ moved)
            kept[: len(R)] += moved
            blocks.append(kept.reshape(len(kept) * len(rows), -1))
        return np.concatenate(blocks)

    def linearise(self, point: HeadsPoint) -> Callable[[float], HeadsPoint]:
        """Return damped Gauss–Newton steps from a point."""
        J = self.jacobian(point)
        left = np.concatenate([rest.ravel() for rest in point.left])
        gradient = point.ridge * point.unknowns - J.T @ left
        hessian = J.T @ J + point.ridge * np.eye(J.shape[1])
        return partial(self.step, point, gradient, hessian)

    def step(
        self, point: HeadsPoint, gradient: np.ndarray, hessian: np.ndarray, damping: float
    ) -> HeadsPoint:
        """Return the point one damped step further."""
        scale = max(float(np.trace(hessian)) / len(hessian), 1e-300)
        damped = hessian + damping * scale * np.eye(len(hessian))
        return self.at(point.unknowns - np.linalg.solve(damped, gradient), point.ridge)

    def fit(self, start: np.ndarray) -> HeadsPoint:
        """Improve a start by damped Gauss–Newton steps until they hardly help.

        Heads that grow against each other make slow progress. A cost on large weights, smaller in
        every round and absent in the last, keeps them from it.
        """
        for ridge in RIDGES:
            start = self.descend(start, ridge).unknowns
        return self.at(start)

    def descend(self, start: np.ndarray, ridge: float) -> HeadsPoint:
        """Lower |left|² + ridge·|unknowns|² until a few steps together hardly help."""
        point = self.at(start, ridge)
        costs = [point.cost]
        steps = damped_steps(
            point, self.linearise, damping=1e-2, factor=5, least=1e-13, most=1e4, tries=STEPS
        )
        for point in steps:
            costs.append(point.cost)
            stalled = len(costs) > WAITED and costs[-1] > (1 - LEAST_PROGRESS) * costs[-1 - WAITED]
            if point.cost < ROUNDING_COST or stalled:
                break
        return point


def unknown_count(problem: HeadsProblem) -> int:
    return problem.heads * sum(int(np.prod(shape)) for shape in problem.shapes)
