"""One start of a fit: from the weights it is given to where second-order steps lead.

    1. one output            a gated RNN learns one combination of the outputs first (`stages.py`);
                             the start has ended if that leads to all outputs
    2. far from a solution   fast steps on sampled sequences; decays are free and move in [0, 1]
    3. condensing            near a solution the neurons that are needed show, and the others are
                             left out (`condensing.py`); exact steps go on to rounding
    4. settling              if nothing can be left out: decays near 0 and 1 are set there
    5. all sequences         where samples leave noise: exact steps on the population loss, with
                             every decay at 0 or 1 (`tasks/population.py`)

A start that stalls ends by itself. Its loss is measured on thousands of sequences that no step has
seen (`judging.py`), or over all sequences.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from underhood.layers import GatedRNN, SideGatedRNN
from underhood.tasks import Task
from underhood.tasks.population import Population
from underhood.training.second_order.examples import (
    AllSequences,
    Data,
    Examples,
    sample,
    seed_of,
)
from underhood.training.second_order.judging import judged_loss
from underhood.training.second_order.minimising import Minimised, descend, fit_linear, minimise
from underhood.training.second_order.separable import SeparableNetwork
from underhood.training.second_order.stages import (
    TOKENS,
    Stage,
    Steps,
    fit_by_stages,
    fit_condensed,
    sequences_wanted,
)

# A cost of this share of the task's scale ends a fit: rounding.
ZERO_COST = 1e-27
# A loss of this share of the scale is worth settling the decays.
WORTH_SETTLING = 1e-9

GatedStudent = GatedRNN | SideGatedRNN
# Called after each step with the number of the start, the step and the loss; a sentence stops it.
StartWatcher = Callable[[int, int, float], str | None]


@dataclass(frozen=True)
class Start:
    """How one start ended.

    number   0, 1, …
    neurons  that were fitted
    loss     on at least 4,096 fresh sequences, or over all of them; on fewer after Ctrl-C
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
    halted      tells why a start has to end, between two steps too
    judge_key   draws the sequences on which a success has to be one too
    """

    task: Task
    limit: float
    enough: float
    neurons: int
    steps: int
    population: Population | None
    watch: StartWatcher
    halted: Callable[[int], str | None]
    judge_key: PRNGKeyArray


def run_start(
    number: int,
    network: SeparableNetwork,
    assignment: Assignment,
    key: PRNGKeyArray,
    *,
    staged: bool = False,
    most_at_once: int | None = None,
) -> tuple[SeparableNetwork, Start]:
    """Return the network where a start ended, and how it ended.

    staged        learn one output first
    most_at_once  then take steps on all outputs at once if that has not led to all outputs, and
                  there are no more neurons than this; None: any number
    """
    task, population = assignment.task, assignment.population
    fit_key, fresh_key = jax.random.split(key)
    losses: list[float] = []
    stopped = False

    def halted() -> str | None:
        return assignment.halted(number)

    def fit(
        student: SeparableNetwork,
        examples: Examples,
        floor: float,
        far: bool,
        down_to: float | None = None,
        most: int | None = None,
    ) -> Minimised:
        before = len(losses)

        def watch(step: int, cost: float, now: SeparableNetwork) -> str | None:
            nonlocal stopped
            reason = assignment.watch(number, before + step, cost + floor)
            stopped = stopped or reason is not None
            return reason

        target, left = ZERO_COST * task.scale, max(assignment.steps - before, 1)
        left = left if most is None else min(left, most)
        if down_to is not None:
            goals = (down_to, 0.0)
            result = descend(
                student, examples, left, goals, watch, [], exact=False, curved=False, halted=halted
            )
        else:
            enough = assignment.enough if floor == 0 else 0.0
            result = minimise(
                student,
                examples,
                steps=left,
                target=target,
                watch=watch,
                far=far,
                enough=enough,
                halted=halted,
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
    stage = Stage(task, fit, assignment.enough, lambda: stopped or halted() is not None)
    rng = np.random.default_rng(seed_of(fit_key))
    by_stages = fit_by_stages(start, data, stage, rng) if staged else None
    if by_stages is not None:
        result = by_stages
    elif most_at_once is not None and len(start.decay) > most_at_once:
        # Of so few that the kernels of all would not fill the memory.
        smaller = start.keep(np.arange(len(start.decay)) < most_at_once)
        wanted = sequences_wanted(smaller, task, noisy=False)
        fitted = fit_linear(smaller, data.first(wanted))
        losses.append(fitted.cost)
        result = Minimised(fitted.network, [fitted.cost], "its stages did not lead to all outputs")
    else:
        result, success = fit_condensed(start, data, stage)
        if not success and len(result.network.decay) <= assignment.neurons:
            result = settle(fit(result.network, data, 0.0, True), fit, data, assignment)
    # The first few say whether this may be a success. Others decide, and they are the same for all.
    few = sample(task, fresh_key, count)
    loss = few.cost(few.outputs(result.network) - few.targets)
    hopeful = loss <= assignment.limit
    judge_key = assignment.judge_key if hopeful else fresh_key
    # A start that was stopped has to end soon.
    if hopeful or halted() is None:
        loss = judged_loss(result.network, task, judge_key, count)
    return result.network, ended(result, loss)


def settle(
    result: Minimised,
    fit: Steps,
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
