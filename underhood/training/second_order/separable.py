"""Least squares for gated RNNs whose linear part is solved for at every step.

An output is linear in the kernels of a gated RNN, y_o = hᵀK_o h, and in the readout of a side-gated
one, y_o = Σ_i D_oi (W_side x)_i h_i. So only `parameters` move: W_in_m, W_in_x, the free decays,
then W_side. A step is Levenberg–Marquardt, in float64, on the residual of the best linear part,
with Kaufman's Jacobian: the derivative of the outputs, minus its part in the range of the features.
The linear part moves by the least that fits, so directions that the data do not determine stay as
they were.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from underhood.analysis.arguments import GatedNetwork
from underhood.analysis.forms.quadratic import quadratic_form
from underhood.common.decay import kinds
from underhood.common.least_squares import damped_steps
from underhood.common.linear_algebra import (
    decay_slopes,
    decayed_sums,
    symmetric_reads,
    upper,
)
from underhood.layers import GatedRNN, SideGatedRNN
from underhood.training.second_order.gates import eigen_gates

# Steps are tried while their damping is below this.
MOST_DAMPING = 1e8
# A fit ends when this many steps together lower its cost by less than this share.
WINDOW, LEAST_GAIN = 8, 0.1


@dataclass(frozen=True)
class Data:
    """Tokens [sequences, time, d_in] and targets [rows, d_out]; last: only last outputs count."""

    tokens: np.ndarray
    targets: np.ndarray
    last: bool

    def rows(self, array: np.ndarray) -> np.ndarray:
        """Return the tokens that count of an array [sequences, time, ...], flattened."""
        if self.last:
            return array[:, -1]
        return array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])


@dataclass(frozen=True)
class SeparableNetwork:
    """A gated RNN (no W_side) or a side-gated one; `linear` is the upper half of K_o, or D."""

    W_m: np.ndarray
    W_x: np.ndarray
    decay: np.ndarray
    free: np.ndarray
    linear: np.ndarray
    W_side: np.ndarray | None = None

    @classmethod
    def of(cls, model: GatedNetwork) -> "SeparableNetwork":
        """Return the parts of a model in float64; decays other than 0 and 1 may move."""
        decay = np.asarray(model.decay)
        inner = (np.asarray(model.W_in_m), np.asarray(model.W_in_x), decay)
        free = (decay > 0) & (decay < 1)
        if isinstance(model, SideGatedRNN):
            return cls(*inner, free, np.asarray(model.D), np.asarray(model.W_side))
        rows, columns = upper(model.neurons)
        return cls(*inner, free, quadratic_form(model).kernels[:, rows, columns])

    def rounded(self) -> "SeparableNetwork":
        """Set decays that are nearly 0 or 1 to 0 or 1, and fix them there."""
        kind = kinds(self.decay)
        decay = np.where(kind == "memory", 1.0, np.where(kind == "query", 0.0, self.decay))
        return replace(self, decay=decay, free=(decay > 0) & (decay < 1))

    @property
    def kernels(self) -> np.ndarray:
        rows, columns = upper(len(self.decay))
        twice = np.where(rows == columns, self.linear, 2 * self.linear)
        return symmetric_reads(twice, len(self.decay))

    def inputs(self, tokens: np.ndarray) -> np.ndarray:
        """Return what the input gates read: with the constant 1 unless there is a side gate."""
        if self.W_side is not None:
            return tokens
        return np.concatenate([tokens, np.ones((*tokens.shape[:-1], 1))], axis=-1)

    def states(self, tokens: np.ndarray) -> np.ndarray:
        z = self.inputs(tokens)
        return decayed_sums(self.decay, (z @ self.W_m.T) * (z @ self.W_x.T))

    def features(self, data: Data, states: np.ndarray) -> np.ndarray:
        """Return [rows, features], so that the outputs are features @ linearᵀ."""
        h = data.rows(states)
        if self.W_side is not None:
            return h * data.rows(data.tokens @ self.W_side.T)
        rows, columns = upper(h.shape[1])
        return h[:, rows] * h[:, columns] * np.where(rows == columns, 1.0, 2.0)

    def outputs(self, data: Data) -> np.ndarray:
        return self.features(data, self.states(data.tokens)) @ self.linear.T

    def derivatives(self, data: Data, states: np.ndarray) -> list[np.ndarray]:
        """Return the derivative [rows, parameters] of each output."""
        z, h = self.inputs(data.tokens), data.rows(states)
        by_m, by_x = (
            data.rows(decayed_sums(self.decay[:, None], (z @ W.T)[..., None] * z[:, :, None]))
            for W in (self.W_x, self.W_m)
        )
        by_decay = data.rows(decay_slopes(self.decay, states))[:, self.free]
        moves = [by_m.reshape(len(h), -1), by_x.reshape(len(h), -1), by_decay]
        by_input = np.concatenate(moves, axis=1)
        neurons, p = np.arange(len(self.decay)), self.W_m.shape[1]
        owner = np.concatenate([np.repeat(neurons, p), np.repeat(neurons, p), neurons[self.free]])
        if self.W_side is None:
            return [(2 * (h @ kernel))[:, owner] * by_input for kernel in self.kernels]
        side = data.rows(data.tokens @ self.W_side.T)
        by_side = h[:, :, None] * data.rows(data.tokens)[:, None]
        return [
            np.hstack([(side * D)[:, owner] * by_input, (D[:, None] * by_side).reshape(len(h), -1)])
            for D in self.linear
        ]

    def moved(self, by: np.ndarray) -> "SeparableNetwork":
        """Return the network with its parameters changed; decays stay in [0, 1]."""
        size, free = self.W_m.size, int(self.free.sum())
        by_m, by_x, by_decay, by_side = np.split(by, np.cumsum([size, size, free]))
        decay, side = self.decay.copy(), self.W_side
        decay[self.free] = np.clip(decay[self.free] + by_decay, 0.0, 1.0)
        return replace(
            self,
            W_m=self.W_m + by_m.reshape(self.W_m.shape),
            W_x=self.W_x + by_x.reshape(self.W_x.shape),
            decay=decay,
            W_side=None if side is None else side + by_side.reshape(side.shape),
        )

    def model(self) -> GatedNetwork:
        """Return the network; gate outputs of a gated RNN are the eigenvectors of its kernels."""
        inner = {"W_in_m": self.W_m, "W_in_x": self.W_x, "decay": self.decay}
        if self.W_side is not None:
            return SideGatedRNN(**inner, W_side=self.W_side, D=self.linear)
        D, W_m, W_x = eigen_gates(self.kernels)
        return GatedRNN(**inner, W_out_m=W_m, W_out_x=W_x, D=D)


# Called with the number of a step, the cost before it, and the network; returns a reason to stop.
StepWatcher = Callable[[int, float, SeparableNetwork], str | None]


@dataclass(frozen=True)
class Fitted:
    """A network with its best linear part, its states, residuals, and a basis of its features."""

    network: SeparableNetwork
    states: np.ndarray
    residual: np.ndarray
    basis: np.ndarray

    @property
    def cost(self) -> float:
        return half_mean_square(self.residual)


def half_mean_square(error: np.ndarray) -> float:
    return 0.5 * float(np.mean(error**2)) if error.size else 0.0


def fit_linear(network: SeparableNetwork, data: Data) -> Fitted:
    states = network.states(data.tokens)
    F = network.features(data, states)
    scale = np.linalg.norm(F, axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    left, values, right = np.linalg.svd(F / scale, full_matrices=False)
    kept = values > 1e-12 * np.max(values, initial=0.0)
    basis, solve = left[:, kept], right[kept].T / values[kept]
    linear = network.linear
    residual = data.targets - F @ linear.T
    # The second pass takes out what rounding left of the first.
    for _ in range(2):
        linear = linear + (solve @ (basis.T @ residual) / scale[:, None]).T
        residual = data.targets - F @ linear.T
    return Fitted(replace(network, linear=linear), states, residual, basis)


class Minimised(NamedTuple):
    """A network after its last step, the cost before and after each step, and why it ended."""

    network: SeparableNetwork
    costs: list[float]
    reason: str


def minimise(
    network: SeparableNetwork, data: Data, *, steps: int, target: float = 0.0, watch: StepWatcher
) -> Minimised:
    """Return the network after at most `steps` steps.

    target  a cost that is small enough
    watch   called before each step; if it returns a reason, no step follows
    """

    def linearise(now: Fitted) -> Callable[[float], Fitted]:
        blocks = now.network.derivatives(data, now.states)
        J = np.concatenate([block - now.basis @ (now.basis.T @ block) for block in blocks], axis=0)
        normal, downhill = J.T @ J, J.T @ now.residual.T.ravel()
        # Neurons differ in size, so every parameter is damped by its own curvature.
        level = np.diag(normal) + 1e-9 * np.trace(normal) / len(normal) + 1e-300

        def step(damping: float) -> Fitted:
            by = np.linalg.solve(normal + damping * np.diag(level), downhill)
            return fit_linear(now.network.moved(by), data)

        return step

    now = fit_linear(network, data)
    most = float(np.nextafter(MOST_DAMPING, 0.0))
    fits = damped_steps(now, linearise, damping=1e-3, factor=10, least=1e-12, most=most)
    costs = [now.cost]
    reason = f"the fit has taken all {steps} steps"
    for number in range(steps):
        stopped = watch(number, costs[-1], now.network)
        settled = len(costs) > WINDOW and costs[-1] > (1 - LEAST_GAIN) * costs[-1 - WINDOW]
        if stopped is not None:
            reason = stopped
        elif costs[-1] <= target:
            reason = "the loss is zero up to rounding"
        elif settled:
            reason = f"{WINDOW} steps together lowered the loss by less than {LEAST_GAIN:.0%}"
        elif network.W_m.size == 0:
            reason = "no neuron is left to fit"
        else:
            after = next(fits, None)
            if after is not None:
                now = after
                costs.append(now.cost)
                continue
            reason = "no step lowers the loss any more"
        break
    return Minimised(now.network, costs, reason)
