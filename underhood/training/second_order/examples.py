"""What a fit is measured on: sampled sequences, or all sequences of a task at once.

A network enters through its features and derivatives (`separable.py`): its outputs are
features @ linearᵀ, and the derivative of output o by the parameters is a matrix [rows, parameters].
A row is a token of a sampled sequence, or a coordinate of the exact population loss
(`tasks/population.py`), which knows decays of 0 and 1 only.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from underhood.common.arrays import typed_key
from underhood.common.errors import BadInput
from underhood.common.linear_algebra import decay_slopes, decayed_sums, upper
from underhood.tasks import Task
from underhood.tasks.population import Population

if TYPE_CHECKING:
    from underhood.training.second_order.separable import SeparableNetwork


@runtime_checkable
class Examples(Protocol):
    """Rows to fit; `targets` is [rows, d_out]."""

    @property
    def targets(self) -> np.ndarray: ...

    def cost(self, residual: np.ndarray) -> float:
        """Return the loss of outputs that miss the targets by a residual [rows, d_out]."""

    def features(self, network: "SeparableNetwork") -> np.ndarray:
        """Return [rows, features]."""

    def derivatives(self, network: "SeparableNetwork") -> list[np.ndarray]:
        """Return the derivative [rows, parameters] of each output."""


@dataclass(frozen=True)
class Data:
    """Sampled sequences.

    tokens   [sequences, time, d_in]
    targets  [rows, d_out]
    last     only the last output of a sequence counts
    picked   which of all sequences × time tokens count; None: all of them
    """

    tokens: np.ndarray
    targets: np.ndarray
    last: bool
    picked: np.ndarray | None = None

    @cached_property
    def in_time(self) -> np.ndarray:
        """The tokens [time, sequences, d_in]: sums over time are fast along the first axis."""
        return np.ascontiguousarray(self.tokens.swapaxes(0, 1))

    @cached_property
    def places(self) -> np.ndarray:
        """Where the tokens that count are in a flat array of [time, sequences]."""
        sequences, time = self.tokens.shape[:2]
        if self.last:
            return np.arange(sequences) + (time - 1) * sequences
        picked = np.arange(sequences * time) if self.picked is None else self.picked
        return picked % time * sequences + picked // time

    def counting(self, array: np.ndarray) -> np.ndarray:
        """Return the tokens that count of an array [time, sequences, ...], flattened."""
        return array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])[self.places]

    def rows(self, array: np.ndarray) -> np.ndarray:
        """Return the tokens that count of an array [sequences, time, ...], flattened."""
        return self.counting(array.swapaxes(0, 1))

    def first(self, sequences: int) -> "Data":
        """Return the first sequences; all of them if there are no more."""
        count = len(self.tokens)
        if sequences >= count:
            return self
        rows = sequences * (len(self.targets) // count)
        picked = None if self.picked is None else self.picked[:rows]
        return Data(self.tokens[:sequences], self.targets[:rows], self.last, picked)

    def cost(self, residual: np.ndarray) -> float:
        """Return the mean over the tokens that count, and over the outputs."""
        return half_mean_square(residual)

    def features(self, network: "SeparableNetwork") -> np.ndarray:
        h = self.counting(network.states(self.in_time))
        if network.W_side is not None:
            return h * (self.counting(self.in_time) @ network.W_side.T)
        rows, columns = network.pairs
        return h[:, rows] * h[:, columns] * np.where(rows == columns, 1.0, 2.0)

    def outputs(self, network: "SeparableNetwork") -> np.ndarray:
        """Return the outputs [rows, d_out], without all features at once."""
        if network.W_side is not None:
            return self.features(network) @ network.linear.T
        h = self.counting(network.states(self.in_time))
        return np.stack([np.sum((h @ kernel) * h, axis=1) for kernel in network.kernels], axis=1)

    def derivatives(self, network: "SeparableNetwork") -> list[np.ndarray]:
        states = network.states(self.in_time)
        z, h, decay = network.inputs(self.in_time), self.counting(states), network.decay
        by_m, by_x = (
            self.counting(
                decayed_sums(decay[:, None], (z @ W.T)[..., None] * z[:, :, None], axis=0)
            )
            for W in (network.W_x, network.W_m)
        )
        by_decay = self.counting(decay_slopes(decay, states, axis=0))[:, network.free]
        by_input = np.hstack([by_m.reshape(len(h), -1), by_x.reshape(len(h), -1), by_decay])
        owner = network.owners
        if network.W_side is None:
            return [(2 * (h @ kernel))[:, owner] * by_input for kernel in network.kernels]
        now = self.counting(self.in_time)
        side = now @ network.W_side.T
        by_side = h[:, :, None] * now[:, None]
        return [
            np.hstack([(side * D)[:, owner] * by_input, (D[:, None] * by_side).reshape(len(h), -1)])
            for D in network.linear
        ]


@dataclass(frozen=True)
class AllSequences:
    """Every sequence of a task at once; decays are 0 or 1, and none of them may move."""

    population: Population

    @property
    def targets(self) -> np.ndarray:
        return self.population.targets

    def cost(self, residual: np.ndarray) -> float:
        """Return what the loss is above its floor: a sum over the rows, a mean over the outputs."""
        return 0.5 * float(np.sum(residual**2)) / residual.shape[1]

    def features(self, network: "SeparableNetwork") -> np.ndarray:
        if network.W_side is None:
            rows, columns = upper(len(network.decay))
            doubled = np.where(rows == columns, 1.0, 2.0)
            return self.population.features(network.reads, network.decay) * doubled
        state = self.population.state_reads(network.reads, network.decay)
        return self.population.products(state, self.current(network.W_side))

    def derivatives(self, network: "SeparableNetwork") -> list[np.ndarray]:
        owner, moved = network.owners, network.moved_reads()
        state = self.population.state_reads(network.reads, network.decay)
        changes = self.population.state_reads(moved, network.decay[owner])
        if network.W_side is None:
            return [
                self.population.products((2 * kernel @ state)[owner], changes)
                for kernel in network.kernels
            ]
        n, d = network.W_side.shape
        side = self.current(network.W_side)
        by_input = self.population.products(side[owner], changes)
        directions = np.tile(self.current(np.eye(d)), (n, 1))
        by_side = self.population.products(np.repeat(state, d, axis=0), directions)
        return [np.hstack([D[owner] * by_input, np.repeat(D, d) * by_side]) for D in network.linear]

    def current(self, W: np.ndarray) -> np.ndarray:
        """Return what W x reads of the current token: its products with the constant."""
        reads = np.zeros((len(W), self.population.entries))
        _, columns = upper(self.population.d_in + 1)
        reads[:, np.flatnonzero(columns == self.population.d_in)[:-1]] = W
        return self.population.state_reads(reads, np.zeros(len(W)))


def half_mean_square(error: np.ndarray) -> float:
    return 0.5 * float(np.mean(error**2)) if error.size else 0.0


@eqx.filter_jit
def drawn(task: Task, key: PRNGKeyArray, sequences: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Draw inputs and targets; also the loss of answering zero, NaN if targets are no outputs.

    One program: the many small ones of a plain call take seconds to compile.
    """
    inputs, targets = task.sample(key, sequences)
    outputs = jnp.issubdtype(targets.dtype, jnp.floating) and targets.shape[-1] == task.d_out
    zero = task.loss(jnp.zeros_like(targets), targets) if outputs else jnp.array(jnp.nan)
    return inputs, targets, zero


def sample(
    task: Task, key: PRNGKeyArray, sequences: int, tokens: int | None = None, *, about: str = "fit"
) -> Data:
    """Draw fresh sequences in float64; refuse a task whose loss is not a squared error.

    tokens  how many tokens of a sequence count, chosen at random; None: all that the task reads
    """
    with jax.enable_x64(True):
        inputs, targets, zero = (np.asarray(array, float) for array in drawn(task, key, sequences))
    if not np.isclose(zero, half_mean_square(targets)):
        kind = type(task).__name__
        raise BadInput(f"{about} minimises squared errors, but {kind} has a different loss.")
    flat = targets.reshape(-1, task.d_out)
    if tokens is None or task.reads_last or tokens >= task.time:
        return Data(inputs, flat, task.reads_last)
    rng = np.random.default_rng(seed_of(key))
    order = rng.uniform(size=(sequences, task.time))
    chosen = np.sort(np.argsort(order, axis=1)[:, :tokens], axis=1)
    picked = (chosen + task.time * np.arange(sequences)[:, None]).ravel()
    return Data(inputs, flat[picked], task.reads_last, picked)


def seed_of(key: PRNGKeyArray) -> list[int]:
    """Return a seed for NumPy's generator."""
    return np.asarray(jax.random.key_data(typed_key(key))).ravel().tolist()


def check_sizes(task: Task, d_in: int, d_out: int, *, about: str) -> None:
    """Refuse a task of other sizes than a network's."""
    if not isinstance(task, Task):
        raise BadInput(f"{about}: the task is a {type(task).__name__}; give one of uh.tasks.")
    if (d_in, d_out) != (task.d_in, task.d_out):
        raise BadInput(
            f"{about}: the model maps {d_in} numbers to {d_out}, the task {task.d_in} to "
            f"{task.d_out}."
        )
