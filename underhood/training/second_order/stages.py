"""A start in stages: one output first, then the memory of all outputs by linear least squares.

One combination of the outputs of attention, c·y = (W_Vᵀc)ᵀ S M x, needs 2d neurons in place of
d(d+1)/2 + d, and has one residual per token in place of d. So second-order steps on it cost a small
share (a step costs about n⁶ for n neurons):

    1. one output    the first neurons of a start learn c·y from random weights. If they stall, more
                     neurons join them. Near a solution they are condensed (`condensing.py`). If
                     a weak direction was left out, random neurons join and find it.
    2. all outputs   they share the neurons of the current token. With these known, the outputs are
                     linear in what memory holds, and random memory neurons (λ = 1) span it: one
                     least-squares problem. The memory that is read is condensed too, and exact
                     steps go on to rounding.

Nothing here knows the weights of the teacher. A function without this structure does not get
through stage 2.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np

from underhood.tasks import Task
from underhood.training.second_order.condensing import condense, crossed_network
from underhood.training.second_order.examples import Data, Examples
from underhood.training.second_order.minimising import Minimised, fit_linear
from underhood.training.second_order.separable import SeparableNetwork

# Tokens of a sequence that count, and rows per unknown. More tokens of fewer sequences are less
# independent; fewer rows make more starts end in a wrong place (docs/discovery.md).
TOKENS, ROWS_PER_UNKNOWN = 8, 4
# On a task whose loss cannot reach zero, samples are for finding the decays only.
NOISY_ROWS_PER_UNKNOWN = 12
# At these shares of the scale a wide network shows which neurons it needs.
CONDENSED_AT = (1e-8, 1e-11, 3e-13)
# A condensed network is near a solution, or it is not worth more steps than these.
MOST_CONDENSED_STEPS = 40
# A weak direction of M hides in the noise when a network is condensed. So often a neuron of each
# kind joins a condensed network of one output that does not get to zero.
MOST_JOINED = 2
# One output is learned with so many times 2d neurons, and by so many times more after a stall.
# Steps on one output take too long with more neurons than the last number.
ONE_OUTPUT_SHARE, STALL_GROWTH, MOST_FOR_ONE = 1.4, 1.5, 64
# Relative errors below this are rounding.
ROUNDING_ERROR = 1e-13


@runtime_checkable
class Steps(Protocol):
    """Takes second-order steps from a network on examples (`starts.py`)."""

    def __call__(
        self,
        student: SeparableNetwork,
        examples: Examples,
        floor: float,
        far: bool,
        down_to: float | None = None,
        most: int | None = None,
    ) -> Minimised: ...


@dataclass(frozen=True)
class Stage:
    """What the stages of a start have in common.

    enough   the loss that is surely a success
    stopped  tells whether another start has won, or Ctrl-C was pressed
    """

    task: Task
    fit: Steps
    enough: float
    stopped: Callable[[], bool]

    @property
    def harmless(self) -> float:
        """The relative error of the outputs that is surely a success."""
        return float(np.sqrt(self.enough / self.task.scale))


def fit_condensed(
    network: SeparableNetwork,
    data: Data,
    stage: Stage,
    rng: np.random.Generator | None = None,
) -> tuple[Minimised, bool]:
    """Fit a network and condense it on the way; also tell whether that led to zero loss.

    rng  if given, random neurons may join a condensed network that does not get to zero
    """
    scale, result = stage.task.scale, Minimised(network, [np.inf], "")
    for level in CONDENSED_AT:
        before = result
        result = stage.fit(before.network, data, 0.0, True, down_to=level * scale)
        if result.costs[-1] > level * scale:
            break
        # The network that was condensed at the last level has not moved since.
        if len(result.costs) == 1 and before.reason:
            continue
        noise = np.sqrt(result.costs[-1] / scale)
        smaller = condense(result.network, noise, stage.harmless)
        if smaller is not None:
            again = finish_condensed(smaller, data, stage, rng)
            if again.costs[-1] <= stage.enough:
                return again, True
    return result, False


def finish_condensed(
    network: SeparableNetwork, data: Data, stage: Stage, rng: np.random.Generator | None
) -> Minimised:
    """Take exact steps from a condensed network, to which random neurons may join."""
    for joined in range(MOST_JOINED + 1):
        fewer = data.first(sequences_wanted(network, stage.task, noisy=False))
        result = stage.fit(network, fewer, 0.0, False, most=MOST_CONDENSED_STEPS)
        done = result.costs[-1] <= stage.enough or stage.stopped()
        if done or rng is None or joined == MOST_JOINED:
            break
        network = with_random_pair(result.network, rng)
    return result


def with_random_pair(network: SeparableNetwork, rng: np.random.Generator) -> SeparableNetwork:
    """Return a crossed network with one more random neuron of memory and of the current token."""
    gates = rng.normal(size=(2, 2, network.W_m.shape[1]))
    gates /= np.linalg.norm(gates, axis=2, keepdims=True)
    return crossed_network(
        np.vstack([network.W_m, gates[0]]),
        np.vstack([network.W_x, gates[1]]),
        np.append(network.decay, [1.0, 0.0]),
        len(network.linear),
    )


def fit_by_stages(
    network: SeparableNetwork, data: Data, stage: Stage, rng: np.random.Generator
) -> Minimised | None:
    """Return a network with zero loss that was found by way of one output; None: there is none."""
    current = current_token_neurons(network, data, stage, rng)
    if current is None:
        return None
    n, scale = len(network.decay), stage.task.scale
    wide = crossed_network(
        np.vstack([current.W_m, network.W_m]),
        np.vstack([current.W_x, network.W_x]),
        np.append(np.zeros(len(current.decay)), np.ones(n)),
        data.targets.shape[1],
    )
    fitted = fit_linear(wide, data.first(sequences_wanted(wide, stage.task, noisy=False)))
    for harmless in (stage.harmless, ROUNDING_ERROR):
        smaller = condense(fitted.network, np.sqrt(fitted.cost / scale), harmless)
        if smaller is None or stage.stopped():
            return None
        fewer = data.first(sequences_wanted(smaller, stage.task, noisy=False))
        result = stage.fit(smaller, fewer, 0.0, False)
        if result.costs[-1] <= stage.enough:
            return result
    return None


def current_token_neurons(
    network: SeparableNetwork, data: Data, stage: Stage, rng: np.random.Generator
) -> SeparableNetwork | None:
    """Learn one combination of the outputs; return the neurons that hold the current token."""
    direction = rng.normal(size=(data.targets.shape[1], 1))
    one_output = replace(data, targets=data.targets @ (direction / np.linalg.norm(direction)))
    n, d = min(len(network.decay), MOST_FOR_ONE), data.tokens.shape[2]
    size = min(int(np.ceil(ONE_OUTPUT_SHARE * 2 * d)), n)
    student = with_outputs(network.keep(np.arange(len(network.decay)) < size), 1)
    while True:
        wanted = sequences_wanted(student, stage.task, noisy=False)
        result, success = fit_condensed(student, one_output.first(wanted), stage, rng)
        if success:
            return result.network.keep(result.network.decay == 0).balanced()
        if size == n or stage.stopped():
            return None
        before, size = size, min(int(np.ceil(STALL_GROWTH * size)), n)
        numbers = np.arange(len(network.decay))
        more = network.keep((before <= numbers) & (numbers < size))
        student = with_outputs(merged_neurons(result.network, more), 1)


def merged_neurons(left: SeparableNetwork, right: SeparableNetwork) -> SeparableNetwork:
    """Return the neurons of two networks in one; its kernels are yet to be solved for."""
    return SeparableNetwork(
        np.vstack([left.W_m, right.W_m]),
        np.vstack([left.W_x, right.W_x]),
        np.append(left.decay, right.decay),
        np.append(left.free, right.free),
        left.linear,
    )


def with_outputs(network: SeparableNetwork, d_out: int) -> SeparableNetwork:
    """Return the network with kernels of zeros for so many outputs."""
    return replace(network, linear=np.zeros((d_out, len(network.pairs[0]))))


def sequences_wanted(network: SeparableNetwork, task: Task, *, noisy: bool) -> int:
    """Return how many sequences the unknowns of a network ask for."""
    d_out, features = network.linear.shape
    unknowns = features + (2 * network.W_m.size) // d_out + 1
    rows = (NOISY_ROWS_PER_UNKNOWN if noisy else ROWS_PER_UNKNOWN) * unknowns
    return -(-rows // (1 if task.reads_last else min(TOKENS, task.time)))
