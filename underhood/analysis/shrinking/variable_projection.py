"""Least squares for gated RNNs whose linear part is solved for at every step.

An output is linear in the kernels of a gated RNN, y_o = hᵀK_o h, and in the readout of a side-gated
one, y_o = Σ_i D_oi (W_side x)_i h_i. So only the other weights move: input gates, side gates, and
the decays that are not fixed. A step is Levenberg–Marquardt on what the best linear part leaves,
with Kaufman's Jacobian: the derivative of the outputs with its part in the range of the features
taken out. The linear part moves from where it was by the least that fits, so directions that no
data can see stay as the student left them.

Everything in float64 NumPy. `parameters` are W_in_m, W_in_x, the free decays, then W_side.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from underhood.analysis.shrinking.gates import eigen_gates
from underhood.common.decay import kinds
from underhood.layers import GatedRNN, SideGatedRNN


@dataclass(frozen=True)
class Data:
    """Tokens [sequences, time, d_in] and targets [rows, d_out]; last: only last outputs count."""

    tokens: np.ndarray
    targets: np.ndarray
    last: bool

    def rows(self, array: np.ndarray) -> np.ndarray:
        """Of an array [sequences, time, ...] the tokens that count, flattened."""
        return (
            array[:, -1]
            if self.last
            else array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])
        )


@dataclass(frozen=True)
class Student:
    """A gated RNN (W_side is None) or a side-gated one, as its moving and its linear part.

    `linear` [d_out, features]: entries of K_o on and above the diagonal, or D.
    """

    W_m: np.ndarray
    W_x: np.ndarray
    decay: np.ndarray
    free: np.ndarray
    linear: np.ndarray
    W_side: np.ndarray | None = None

    @classmethod
    def of(cls, model: Any, kernels: np.ndarray | None = None) -> "Student":
        """The parts of a model in float64; decays may move where they are neither 0 nor 1."""
        inner = (model.W_in_m, model.W_in_x, model.decay, (model.decay > 0) & (model.decay < 1))
        if kernels is None:
            return cls(*inner, model.D, model.W_side)
        rows, columns = np.triu_indices(model.neurons)
        return cls(*inner, kernels[:, rows, columns])

    def rounded(self) -> "Student":
        """Decays that are nearly 0 or 1 set to 0 or 1, to stay there."""
        kind = kinds(self.decay)
        decay = np.where(kind == "memory", 1.0, np.where(kind == "query", 0.0, self.decay))
        return replace(self, decay=decay, free=(decay > 0) & (decay < 1))

    @property
    def kernels(self) -> np.ndarray:
        n = len(self.decay)
        rows, columns = np.triu_indices(n)
        kernels = np.zeros((len(self.linear), n, n))
        kernels[:, rows, columns], kernels[:, columns, rows] = self.linear, self.linear
        return kernels

    def inputs(self, tokens: np.ndarray) -> np.ndarray:
        """What the input gates read: with the constant 1 unless there is a side gate."""
        if self.W_side is not None:
            return tokens
        return np.concatenate([tokens, np.ones((*tokens.shape[:-1], 1))], axis=-1)

    def states(self, tokens: np.ndarray) -> np.ndarray:
        z = self.inputs(tokens)
        return accumulate(self.decay, (z @ self.W_m.T) * (z @ self.W_x.T))

    def features(self, data: Data, states: np.ndarray) -> np.ndarray:
        """[rows, features], so that the outputs are features @ linearᵀ."""
        h = data.rows(states)
        if self.W_side is not None:
            return h * data.rows(data.tokens @ self.W_side.T)
        rows, columns = np.triu_indices(h.shape[1])
        return h[:, rows] * h[:, columns] * np.where(rows == columns, 1.0, 2.0)

    def outputs(self, data: Data) -> np.ndarray:
        return self.features(data, self.states(data.tokens)) @ self.linear.T

    def derivatives(self, data: Data, states: np.ndarray) -> list[np.ndarray]:
        """For every output its derivative [rows, parameters]."""
        z = self.inputs(data.tokens)
        m, x = z @ self.W_m.T, z @ self.W_x.T
        by_m, by_x = (
            data.rows(accumulate(self.decay[:, None], one[..., None] * z[:, :, None]))
            for one in (x, m)
        )
        earlier = np.concatenate([np.zeros_like(states[:, :1]), states[:, :-1]], axis=1)
        by_decay = data.rows(accumulate(self.decay, earlier))[:, self.free]
        h = data.rows(states)
        moves = [by_m.reshape(len(h), -1), by_x.reshape(len(h), -1), by_decay]
        neurons, p = np.arange(len(self.decay)), self.W_m.shape[1]
        owner = np.concatenate([np.repeat(neurons, p), np.repeat(neurons, p), neurons[self.free]])
        if self.W_side is None:
            into = [2 * (h @ kernel) for kernel in self.kernels]
            return [to_h[:, owner] * np.concatenate(moves, axis=1) for to_h in into]
        side = data.rows(data.tokens @ self.W_side.T)
        by_side = h[:, :, None] * data.rows(data.tokens)[:, None]
        return [
            np.concatenate(
                [
                    (side * row)[:, owner] * np.concatenate(moves, axis=1),
                    (row[:, None] * by_side).reshape(len(h), -1),
                ],
                axis=1,
            )
            for row in self.linear
        ]

    def moved(self, by: np.ndarray) -> "Student":
        size, free = self.W_m.size, int(self.free.sum())
        decay = self.decay.copy()
        decay[self.free] = np.clip(decay[self.free] + by[2 * size : 2 * size + free], 0.0, 1.0)
        side = self.W_side
        if side is not None:
            side = side + by[2 * size + free :].reshape(side.shape)
        return replace(
            self,
            W_m=self.W_m + by[:size].reshape(self.W_m.shape),
            W_x=self.W_x + by[size : 2 * size].reshape(self.W_x.shape),
            decay=decay,
            W_side=side,
        )

    def model(self) -> GatedRNN | SideGatedRNN:
        """The network; the gate outputs of a gated RNN are the eigenvectors of its kernels."""
        inner = {"W_in_m": self.W_m, "W_in_x": self.W_x, "decay": self.decay}
        if self.W_side is not None:
            return SideGatedRNN(**inner, W_side=self.W_side, D=self.linear)
        D, W_m, W_x = eigen_gates(self.kernels)
        return GatedRNN(**inner, W_out_m=W_m, W_out_x=W_x, D=D)


def accumulate(decay: np.ndarray, written: np.ndarray) -> np.ndarray:
    """Decayed sums over the second axis; decay broadcasts over what follows it."""
    states = written.copy()
    for t in range(1, written.shape[1]):
        states[:, t] += decay * states[:, t - 1]
    return states


@dataclass(frozen=True)
class Fitted:
    """A student with its best linear part, its states, residuals, and a basis of its features."""

    student: Student
    states: np.ndarray
    residual: np.ndarray
    basis: np.ndarray

    @property
    def cost(self) -> float:
        """½·mean of the squared residuals."""
        return 0.5 * float(np.mean(self.residual**2)) if self.residual.size else 0.0


def fit_linear(student: Student, data: Data) -> Fitted:
    """Solve for the linear part."""
    states = student.states(data.tokens)
    F = student.features(data, states)
    scale = np.linalg.norm(F, axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    left, values, right = np.linalg.svd(F / scale, full_matrices=False)
    kept = values > 1e-12 * np.max(values, initial=0.0)
    basis, solve = left[:, kept], right[kept].T / values[kept]
    linear = student.linear
    residual = data.targets - F @ linear.T
    # Twice: the second pass takes out what rounding left of the first.
    for _ in range(2):
        linear = linear + (solve @ (basis.T @ residual) / scale[:, None]).T
        residual = data.targets - F @ linear.T
    return Fitted(replace(student, linear=linear), states, residual, basis)


def minimise(
    student: Student,
    data: Data,
    *,
    steps: int,
    target: float = 0.0,
    watch: Callable[[int, float], None] | None = None,
) -> tuple[Student, list[float]]:
    """The student after at most `steps` steps, and its cost after each."""
    now = fit_linear(student, data)
    damping, costs = 1e-3, [now.cost]
    for step in range(steps):
        if watch is not None:
            watch(step, costs[-1])
        if costs[-1] <= target or settled(costs) or now.student.W_m.size == 0:
            break
        blocks = now.student.derivatives(data, now.states)
        J = np.concatenate([one - now.basis @ (now.basis.T @ one) for one in blocks], axis=0)
        normal, downhill = J.T @ J, J.T @ now.residual.T.ravel()
        # Neurons have sizes of their own; every parameter is damped by its own curvature.
        level = np.diag(normal) + 1e-9 * np.trace(normal) / len(normal) + 1e-300
        while damping < 1e8:
            by = np.linalg.solve(normal + damping * np.diag(level), downhill)
            trial = fit_linear(now.student.moved(by), data)
            if trial.cost < costs[-1]:
                now, damping = trial, max(damping / 10, 1e-12)
                costs.append(now.cost)
                break
            damping *= 10
        else:
            break
    return now.student, costs


def settled(costs: list[float], *, window: int = 8, gain: float = 0.1) -> bool:
    """Whether the last steps together won less than a tenth."""
    return len(costs) > window and costs[-1] > (1 - gain) * costs[-1 - window]
