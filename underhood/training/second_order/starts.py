"""One start of a fit: from the weights it is given to where second-order steps lead.

    1. far from a solution   fast steps on sampled sequences; decays are free and move in [0, 1]
    2. condensing            near a solution the neurons that are needed show, and the others are
                             left out (`condensing.py`); exact steps go on to rounding
    3. settling              if nothing can be left out: decays near 0 and 1 are set there
    4. all sequences         where samples leave noise: exact steps on the population loss, with
                             every decay at 0 or 1 (`tasks/population.py`)

A start that stalls ends by itself. Its loss is measured on sequences that no step has seen, or over
all sequences.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from underhood.layers import GatedRNN, SideGatedRNN
from underhood.tasks import Task
from underhood.tasks.population import Population
from underhood.training.second_order.condensing import condense
from underhood.training.second_order.examples import (
    AllSequences,
    Data,
    Examples,
    half_mean_square,
    sample,
)
from underhood.training.second_order.minimising import Minimised, descend, minimise
from underhood.training.second_order.separable import SeparableNetwork

# Tokens of a sequence that count, and rows per unknown. More tokens of fewer sequences are less
# independent; fewer rows make more starts end in a wrong place (docs/discovery.md).
TOKENS, ROWS_PER_UNKNOWN = 8, 4
# On a task whose loss cannot reach zero, samples are for finding the decays only.
NOISY_ROWS_PER_UNKNOWN = 12
# A cost of this share of the task's scale ends a fit: rounding.
ZERO_COST = 1e-27
# A loss of this share of the scale is worth settling the decays.
WORTH_SETTLING = 1e-9
# At these shares of the scale a wide network shows which neurons it needs.
CONDENSED_AT = (1e-8, 1e-11)

GatedStudent = GatedRNN | SideGatedRNN
# Called after each step with the number of the start, the step and the loss; a sentence stops it.
StartWatcher = Callable[[int, int, float], str | None]


@dataclass(frozen=True)
class Start:
    """How one start ended.

    number   0, 1, …
    neurons  that were fitted
    loss     on fresh sequences, or over all of them
    losses   on the fitted examples, before the first step and after each
    reason   why it ended
    success  whether its loss is as low as was asked for
    """

    number: int
    neurons: int
    loss: float
    losses: np.ndarray
    reason: str
    success: bool
    seconds: float = 0.0

    @property
    def steps(self) -> int:
        return len(self.losses) - 1

    def __str__(self) -> str:
        ended = "success" if self.success else "no success"
        return (
            f"start {self.number}: {ended}, loss {self.loss:.3g} with {self.neurons} neurons after "
            f"{self.steps} steps, {self.seconds:.1f} s: {self.reason}"
        )


@dataclass(frozen=True)
class Assignment:
    """What every start of a fit has in common.

    limit       the loss of a success
    enough      the loss on samples that is surely a success
    neurons     how many the result may have
    steps       how many a start may take
    population  the exact loss, where it is to be minimised; None: samples are enough
    watch       sees every step
    """

    task: Task
    limit: float
    enough: float
    neurons: int
    steps: int
    population: Population | None
    watch: StartWatcher


def run_start(
    number: int, network: SeparableNetwork, assignment: Assignment, key: PRNGKeyArray
) -> tuple[SeparableNetwork, Start]:
    """Return the network where a start ended, and how it ended."""
    task, population = assignment.task, assignment.population
    fit_key, fresh_key = jax.random.split(key)
    losses: list[float] = []

    def fit(
        student: SeparableNetwork,
        examples: Examples,
        floor: float,
        far: bool,
        down_to: float | None = None,
    ) -> Minimised:
        before = len(losses)

        def watch(step: int, cost: float, now: SeparableNetwork) -> str | None:
            return assignment.watch(number, before + step, cost + floor)

        target, left = ZERO_COST * task.scale, max(assignment.steps - before, 1)
        if down_to is not None:
            goals = (down_to, 0.0)
            result = descend(student, examples, left, goals, watch, [], exact=False, curved=False)
        else:
            enough = assignment.enough if floor == 0 else 0.0
            result = minimise(
                student, examples, steps=left, target=target, watch=watch, far=far, enough=enough
            )
        losses.extend(cost + floor for cost in result.costs)
        return result

    def ended(result: Minimised, loss: float) -> Start:
        success = bool(loss <= assignment.limit)
        neurons = len(result.network.decay)
        return Start(number, neurons, loss, np.array(losses), result.reason, success)

    free = np.ones(len(network.decay), bool)
    start = replace(network, linear=np.zeros_like(network.linear), free=free)
    count = sequences_wanted(start, task, noisy=population is not None)
    tokens = None if task.reads_last else TOKENS
    # Of one draw, because each number of sequences is a program of its own.
    data = sample(task, fit_key, count, tokens)
    if population is not None:
        sampled = fit(start, data, 0.0, True)
        result = fit(sampled.network.settled(), AllSequences(population), population.floor, True)
        return result.network, ended(result, losses[-1])
    result = Minimised(start, [np.inf], "")
    for level in CONDENSED_AT:
        result = fit(result.network, data, 0.0, True, down_to=level * task.scale)
        if result.costs[-1] > level * task.scale:
            break
        smaller = condense(result.network, noise=np.sqrt(result.costs[-1] / task.scale))
        if smaller is not None:
            fewer = data.first(sequences_wanted(smaller, task, noisy=False))
            again = fit(smaller, fewer, 0.0, False)
            if again.costs[-1] <= assignment.enough:
                result = again
                break
    if result.costs[-1] > assignment.enough and len(result.network.decay) <= assignment.neurons:
        result = settle(fit(result.network, data, 0.0, True), fit, data, assignment)
    fresh = sample(task, fresh_key, count)
    return result.network, ended(result, loss_of(result.network, fresh))


def settle(
    result: Minimised,
    fit: Callable[[SeparableNetwork, Examples, float, bool], Minimised],
    data: Data,
    assignment: Assignment,
) -> Minimised:
    """Set decays that have come near 0 or 1 to 0 or 1, if the loss allows it."""
    rounded = result.network.rounded()
    worth = result.costs[-1] <= WORTH_SETTLING * assignment.task.scale
    if not worth or np.array_equal(rounded.free, result.network.free):
        return result
    settled = fit(rounded, data, 0.0, False)
    good = settled.costs[-1] <= max(result.costs[-1], assignment.enough)
    return settled if good else result


def loss_of(network: SeparableNetwork, data: Data) -> float:
    return half_mean_square(data.features(network) @ network.linear.T - data.targets)


def sequences_wanted(network: SeparableNetwork, task: Task, *, noisy: bool) -> int:
    """Return how many sequences the unknowns of a network ask for."""
    unknowns = network.linear.shape[1] + (2 * network.W_m.size) // task.d_out + 1
    rows = (NOISY_ROWS_PER_UNKNOWN if noisy else ROWS_PER_UNKNOWN) * unknowns
    return -(-rows // (1 if task.reads_last else min(TOKENS, task.time)))


def placed(fitted: SeparableNetwork, model: GatedStudent) -> GatedStudent:
    """Return the fitted neurons, and after them as many of the model's as it has more.

    Nothing reads the latter.
    """
    more = model.neurons - len(fitted.decay)
    if more <= 0:
        return fitted.model()
    small, unread = fitted.model(), ((0, 0), (0, more))
    inner = {
        name: np.concatenate(
            [np.asarray(getattr(small, name)), np.asarray(getattr(model, name))[-more:]]
        )
        for name in ("W_in_m", "W_in_x", "decay")
    }
    if isinstance(small, SideGatedRNN) and isinstance(model, SideGatedRNN):
        side = np.concatenate([np.asarray(small.W_side), np.asarray(model.W_side)[-more:]])
        return SideGatedRNN(**inner, W_side=side, D=np.pad(np.asarray(small.D), unread))
    assert isinstance(small, GatedRNN)
    outer = {
        name: np.pad(np.asarray(getattr(small, name)), unread) for name in ("W_out_m", "W_out_x")
    }
    return GatedRNN(**inner, **outer, D=np.asarray(small.D))
