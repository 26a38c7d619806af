"""Bring a trained student to machine precision, on samples of its task alone.

    1. neurons without influence go                              (`influence.py`)
    2. decays within 0.02 of 0 or 1 are set to 0 or 1
    3. Levenberg–Marquardt in float64 on fresh sequences          (`variable_projection.py`)
    4. decays that came within 0.02 of 0 or 1 only now are set there too, if the rest can follow
    5. gate outputs are the eigenvectors of the kernels found     (`gates.py`)

Where too many neurons went, the loss stalls; then fewer go, and the result says so. Neither the
form of attention nor the teacher's weights enter: the student sees inputs and targets.

Polishing is training of another kind, and a strong one: it may bring an untrained network to the
task's solution. What training had found is what `decompile` says of the network before polishing.
"""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from underhood.analysis.arguments import check_gated, check_share
from underhood.analysis.forms.quadratic import quadratic_form
from underhood.analysis.reading.influences import influence
from underhood.analysis.shrinking.pruning import select
from underhood.analysis.shrinking.variable_projection import Data, Student, minimise
from underhood.common.errors import BadInput, refuse
from underhood.common.float64 import in_float64
from underhood.common.keys import key_problems
from underhood.common.numbers import whole_problems
from underhood.common.threads import one_thread
from underhood.layers import GatedRNN
from underhood.tasks import Task

# Neurons of less influence go; the next threshold is tried where one was too hard.
THRESHOLDS = (2e-3, 5e-4, 1e-4, 0.0)
STEPS = 100
MOST_SEQUENCES = 20_000
# A loss of this share of the outputs' variance is zero but for rounding.
ZERO = 1e-18


@dataclass(frozen=True)
class Attempt:
    """One try: how many neurons it kept, the loss it reached on its data, and its steps."""

    threshold: float
    neurons: int
    loss: float
    steps: int


@dataclass(frozen=True)
class Polished:
    """`loss` and `loss_before` are the task's, on fresh sequences that no step has seen."""

    model: Any
    loss: float
    loss_before: float
    attempts: tuple[Attempt, ...]
    rounded: int
    kept_as_trained: bool
    seconds: float

    @property
    def message(self) -> str:
        """What happened, and whether pruning had been too hard at first."""
        said = [
            f"pruning to {one.neurons} neurons was too hard (loss stays at {one.loss:.2g})"
            for one in self.attempts[:-1]
        ]
        last = self.attempts[-1]
        if self.kept_as_trained:
            return (
                f"kept the model as it was: fitting {last.neurons} neurons to samples did not "
                f"lower the loss of {self.loss_before:.6g} on fresh ones"
            )
        said.append(
            f"kept {last.neurons} neurons, rounded {self.rounded} decays; loss "
            f"{self.loss_before:.2g} → {self.loss:.2g} in {last.steps} steps, "
            f"{self.seconds:.1f} s; {self.model.gate_width} gate outputs now give the kernels"
        )
        return "; ".join(said)

    def __str__(self) -> str:
        return self.message


@one_thread
def polish(
    model: Any,
    task: Task,
    *,
    key: PRNGKeyArray,
    thresholds: tuple[float, ...] = THRESHOLDS,
    steps: int = STEPS,
    sequences: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> Polished:
    """Minimise a squared loss over a gated RNN's weights, in float64, from where training ended.

    sequences: how many to fit; three times as many targets as unknowns unless given. Where the
    task's loss cannot reach zero the fit follows the noise of its samples too: then 400 times as
    many are drawn, at most 20,000 sequences, and the better of the model and the fit is returned,
    by its loss on the same fresh sequences. progress: called with one line per step.
    """
    check_gated(model, "polish")
    refuse(key_problems(key), about="polish")
    check_settings(thresholds, steps, sequences)
    began = time.monotonic()
    check_task(model, task)
    model = in_float64(model)
    quadratic_form(model)
    fit_key, judge_key = jax.random.split(key)
    judge = sample(task, judge_key, 65536 if task.reads_last else 256)
    noisy = task.best_loss > 0
    before = half_mean_square(outputs(model, judge) - judge.targets)
    found = influence(model).neurons

    def loss_of(student: Student) -> float:
        return half_mean_square(student.outputs(judge) - judge.targets)

    attempts: list[Attempt] = []
    best: tuple[float, Student] | None = None
    for threshold in thresholds:
        kept = found > threshold
        if attempts and kept.sum() == attempts[-1].neurons:
            continue
        smaller = select(model, kept, np.ones(model.gate_width, bool))
        student = Student.of(smaller, kernels_of(smaller)).rounded()
        many = sequences or sequences_needed(student, task, noisy)
        data = sample(task, fit_key, many)

        def watch(step: int, cost: float, count: int = smaller.neurons) -> None:
            if progress is not None:
                progress(f"polish: {count} neurons, step {step}, loss {cost:.3g}")

        fit = functools.partial(
            minimise, data=data, steps=steps, target=1e-13 * ZERO * task.scale, watch=watch
        )
        student, costs = fit(student)
        loss, taken = loss_of(student), len(costs) - 1
        if np.any(student.rounded().free != student.free):
            nearer, more = fit(student.rounded())
            taken += len(more) - 1
            if loss_of(nearer) <= max(loss, ZERO * task.scale):
                student, costs, loss = nearer, more, loss_of(nearer)
        attempts.append(Attempt(threshold, int(kept.sum()), costs[-1], taken))
        if best is None or loss < best[0]:
            best = (loss, student)
        if noisy or loss <= ZERO * task.scale:
            break
    assert best is not None
    student = best[1]
    finished = student.model()
    after = half_mean_square(outputs(finished, judge) - judge.targets)
    # A student at its best on a task that cannot reach zero has only noise to follow.
    kept_as_trained = noisy and after >= before
    if kept_as_trained:
        finished, after = model, before
    return Polished(
        finished,
        after,
        before,
        tuple(attempts),
        int(np.sum((student.decay == 0) | (student.decay == 1))),
        kept_as_trained,
        time.monotonic() - began,
    )


def check_settings(thresholds: Any, steps: Any, sequences: Any) -> None:
    if not isinstance(thresholds, tuple | list) or not thresholds:
        raise BadInput(f"polish: thresholds is {thresholds!r}; give one share or more, as a tuple.")
    for one in thresholds:
        check_share(one, "polish", "a threshold")
    least = {} if sequences is None else {"sequences": sequences}
    refuse(whole_problems(steps=steps, **least), about="polish")


def check_task(model: Any, task: Task) -> None:
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
            tried = np.zeros_like(targets)
            loss = float(task.loss(jax.numpy.asarray(tried), batch.targets))
            squared = bool(np.isclose(loss, half_mean_square(targets)))
    if not squared:
        kind = type(task).__name__
        raise BadInput(f"polish minimises squared errors, and the loss of {kind} is another one.")


def sample(task: Task, key: PRNGKeyArray, sequences: int) -> Data:
    """Fresh sequences in float64."""
    with jax.enable_x64(True):
        batch = task.sample(key, sequences)
        inputs, targets = np.asarray(batch.inputs, float), np.asarray(batch.targets, float)
    return Data(inputs, targets.reshape(-1, task.d_out), task.reads_last)


def outputs(model: Any, data: Data) -> np.ndarray:
    return data.rows(quadratic_form(model)(data.tokens))


def half_mean_square(error: np.ndarray) -> float:
    return 0.5 * float(np.mean(error**2))


def kernels_of(model: Any) -> np.ndarray | None:
    return quadratic_form(model).kernels if isinstance(model, GatedRNN) else None


def sequences_needed(student: Student, task: Task, noisy: bool) -> int:
    unknowns = student.linear.shape[1] + (2 * student.W_m.size) // max(task.d_out, 1) + 1
    rows = (400 if noisy else 3) * unknowns
    return min(max(16, -(-rows // (1 if task.reads_last else task.time))), MOST_SEQUENCES)
