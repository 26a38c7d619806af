"""Bring a trained student to machine precision, from samples of its task alone.

    1. neurons without influence are removed                     (`influences.py`)
    2. decays within 0.02 of 0 or 1 are set to 0 or 1
    3. Levenberg–Marquardt in float64 on fresh sequences         (`variable_projection.py`)
    4. decays that came within 0.02 of 0 or 1 only now are set there too, if the loss allows it
    5. gate outputs are the eigenvectors of the fitted kernels   (`gates.py`)

If too many neurons were removed, the loss stalls. Then fewer are removed, and the result says so.
Neither the form of attention nor the teacher's weights are used: the student sees inputs and
targets.

Polishing is training of another kind, and a strong one: it may bring an untrained network to the
task's solution. To learn what training had found, decompile the network before polishing.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from underhood.analysis.arguments import GatedNetwork, Network, check_gated
from underhood.analysis.forms.quadratic import quadratic_form
from underhood.analysis.reading.influences import influence
from underhood.analysis.shrinking.pruning import select
from underhood.analysis.shrinking.variable_projection import (
    Data,
    SeparableNetwork,
    half_mean_square,
    minimise,
)
from underhood.common.errors import BadInput, refuse
from underhood.common.float64 import in_float64
from underhood.common.keys import key_problems
from underhood.common.numbers import share_problems, whole_problems
from underhood.common.threads import one_thread
from underhood.tasks import Task

# Neurons of less influence are removed; the next threshold is tried where that was too many.
THRESHOLDS = (2e-3, 5e-4, 1e-4, 0.0)
MOST_SEQUENCES = 20_000
# A loss of this share of the outputs' variance is zero up to rounding.
ZERO_LOSS = 1e-18


@dataclass(frozen=True)
class Attempt:
    """One try: how many neurons it kept, the loss it reached on its data, and its steps."""

    threshold: float
    neurons: int
    loss: float
    steps: int


@dataclass(frozen=True)
class Polished(Generic[Network]):
    """Losses are the task's, on fresh sequences that no step has seen."""

    model: Network
    loss: float
    loss_before: float
    attempts: tuple[Attempt, ...]
    rounded: int
    kept_as_trained: bool
    seconds: float

    @property
    def message(self) -> str:
        """Say what happened, and whether too many neurons were removed at first."""
        last = self.attempts[-1]
        if self.kept_as_trained:
            return (
                f"kept the model as it was: fitting {last.neurons} neurons to samples did not "
                f"lower the loss of {self.loss_before:.6g} on fresh ones"
            )
        stalled = (
            f"pruning to {attempt.neurons} neurons was too much (loss stays at {attempt.loss:.2g})"
            for attempt in self.attempts[:-1]
        )
        result = (
            f"kept {last.neurons} neurons, rounded {self.rounded} decays; loss "
            f"{self.loss_before:.2g} → {self.loss:.2g} in {last.steps} steps, "
            f"{self.seconds:.1f} s; {self.model.gate_width} gate outputs now give the kernels"
        )
        return "; ".join([*stalled, result])

    def __str__(self) -> str:
        return self.message


@one_thread
def polish(
    model: Network,
    task: Task,
    *,
    key: PRNGKeyArray,
    thresholds: Sequence[float] = THRESHOLDS,
    steps: int = 100,
    sequences: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> Polished[Network]:
    """Minimise a squared loss over a gated RNN's weights, in float64, from where training ended.

    If the task's loss cannot reach zero, a fit follows the noise of its samples too. Then the
    better of the model and the fit is returned, by the loss on the same fresh sequences.

    thresholds  neurons of less influence are removed; tried in turn until the loss reaches zero
    steps       how many steps a fit may take
    sequences   how many to fit; unless given, as many as give three targets per unknown, or 400 if
                the task's loss cannot reach zero (at most 20,000 sequences)
    progress    called with one line per step
    """
    check_gated(model, "polish")
    if not isinstance(thresholds, tuple | list) or not thresholds:
        problems = [f"thresholds is {thresholds!r}; give one share or more, as a tuple"]
    else:
        shares = {f"thresholds[{place}]": share for place, share in enumerate(thresholds)}
        sizes = {"steps": steps} | ({} if sequences is None else {"sequences": sequences})
        problems = share_problems(**shares) + whole_problems(**sizes)
    refuse(key_problems(key) + problems, about="polish")
    began = time.monotonic()
    check_task(model, task)
    model = in_float64(model)
    fit_key, judge_key = jax.random.split(key)
    judge = sample(task, judge_key, 65536 if task.reads_last else 256)
    noisy, zero, target = task.best_loss > 0, ZERO_LOSS * task.scale, 1e-13 * ZERO_LOSS * task.scale

    def loss_of(outputs: np.ndarray) -> float:
        return half_mean_square(outputs - judge.targets)

    def fit(student: SeparableNetwork) -> tuple[SeparableNetwork, list[float]]:
        def watch(step: int, cost: float) -> None:
            if progress is not None:
                progress(f"polish: {count} neurons, step {step}, loss {cost:.3g}")

        return minimise(student, data, steps=steps, target=target, watch=watch)

    before = loss_of(judge.rows(quadratic_form(model)(judge.tokens)))
    influences, _ = influence(model)
    attempts: list[Attempt] = []
    best_loss, best = np.inf, SeparableNetwork.of(model)
    for threshold in thresholds:
        kept = influences > threshold
        count = int(kept.sum())
        if attempts and count == attempts[-1].neurons:
            continue
        smaller = select(model, kept, np.ones(model.gate_width, bool))
        start = SeparableNetwork.of(smaller).rounded()
        data = sample(task, fit_key, sequences or sequences_needed(start, task, noisy))
        student, costs = fit(start)
        loss, taken = loss_of(student.outputs(judge)), len(costs) - 1
        if np.any(student.rounded().free != student.free):
            nearer, more = fit(student.rounded())
            nearer_loss = loss_of(nearer.outputs(judge))
            taken += len(more) - 1
            if nearer_loss <= max(loss, zero):
                student, costs, loss = nearer, more, nearer_loss
        attempts.append(Attempt(threshold, count, costs[-1], taken))
        if len(attempts) == 1 or loss < best_loss:
            best_loss, best = loss, student
        if noisy or loss <= zero:
            break
    polished: Any = best.model()
    after = loss_of(judge.rows(quadratic_form(polished)(judge.tokens)))
    # A student at its best on a task that cannot reach zero has only noise to follow.
    kept_as_trained = noisy and after >= before
    if kept_as_trained:
        polished, after = model, before
    rounded = int(np.sum((best.decay == 0) | (best.decay == 1)))
    seconds = time.monotonic() - began
    return Polished(polished, after, before, tuple(attempts), rounded, kept_as_trained, seconds)


def check_task(model: GatedNetwork, task: Task) -> None:
    """Refuse a task of other sizes than the model's, or without squared errors."""
    if not isinstance(task, Task):
        raise BadInput(f"polish: the task is a {type(task).__name__}; give one of uh.tasks.")
    if (model.d_in, model.d_out) != (task.d_in, task.d_out):
        raise BadInput(
            f"polish: the model maps {model.d_in} numbers to {model.d_out}, the task "
            f"{task.d_in} to {task.d_out}."
        )
    with jax.enable_x64(True):
        batch = task.sample(jax.random.key(0), 4)
        targets = np.asarray(batch.targets)
        squared = np.issubdtype(targets.dtype, np.floating) and targets.shape[-1] == task.d_out
        if squared:
            loss = float(task.loss(jax.numpy.zeros_like(targets), batch.targets))
            squared = bool(np.isclose(loss, half_mean_square(targets)))
    if not squared:
        kind = type(task).__name__
        raise BadInput(f"polish minimises squared errors, but {kind} has a different loss.")


def sample(task: Task, key: PRNGKeyArray, sequences: int) -> Data:
    """Draw fresh sequences in float64."""
    with jax.enable_x64(True):
        batch = task.sample(key, sequences)
        inputs, targets = np.asarray(batch.inputs, float), np.asarray(batch.targets, float)
    return Data(inputs, targets.reshape(-1, task.d_out), task.reads_last)


def sequences_needed(student: SeparableNetwork, task: Task, noisy: bool) -> int:
    """Return how many sequences give three targets per unknown, or 400 on a noisy task."""
    unknowns = student.linear.shape[1] + (2 * student.W_m.size) // max(task.d_out, 1) + 1
    rows = (400 if noisy else 3) * unknowns
    return min(max(16, -(-rows // (1 if task.reads_last else task.time))), MOST_SEQUENCES)
