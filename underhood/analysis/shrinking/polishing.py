"""Bring a trained student to machine precision, from samples of its task alone.

    1. neurons without influence are removed                     (`influences.py`)
    2. decays within 0.02 of 0 or 1 are set to 0 or 1
    3. Levenberg–Marquardt in float64 on fresh sequences         (`variable_projection.py`)
    4. decays that came within 0.02 of 0 or 1 only now are set there too, if the loss allows it
    5. gate outputs are the eigenvectors of the fitted kernels   (`gates.py`)

If too many neurons were removed, the loss stalls. Then fewer are removed, and the result says so.
Neither the form of attention nor the teacher's weights are used: the student sees inputs and
targets.

If the task's loss cannot reach zero, a fit also follows the noise of its samples. So the loss on
fresh sequences is watched, and a fit that no longer lowers it ends. Whatever the task, the model
comes back unchanged unless the fit is clearly better on sequences that neither has seen.

Polishing is training of another kind, and a strong one: it may bring an untrained network to the
task's solution. To learn what training had found, decompile the network before polishing.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from underhood.analysis.arguments import Network, check_gated
from underhood.analysis.forms.quadratic import quadratic_form
from underhood.analysis.reading.influences import influence
from underhood.analysis.shrinking.fresh_loss import FreshLoss, clearly_better, loss_on, outputs_on
from underhood.analysis.shrinking.pruning import select
from underhood.common.arrays import in_float64, key_problems
from underhood.common.errors import refuse
from underhood.common.live import LineProgress, Speaker, progress_problems
from underhood.common.numbers import share_problems, whole_problems
from underhood.common.threads import one_thread
from underhood.tasks import Task
from underhood.training.second_order.examples import check_sizes, sample
from underhood.training.second_order.minimising import Minimised, minimise
from underhood.training.second_order.separable import SeparableNetwork

# Neurons of less influence are removed; the next threshold is tried where that was too many.
THRESHOLDS = (2e-3, 5e-4, 1e-4, 0.0)
MOST_SEQUENCES = 20_000
# A loss of this share of the outputs' variance is zero up to rounding.
ZERO_LOSS = 1e-18
# How many sequences are watched for the loss on fresh sequences, if the task is noisy.
WATCHED = 8192
# More multiplications than this in one step take a second or longer.
LONG_STEP = 5e9


@dataclass(frozen=True)
class Attempt:
    """One try: how many neurons it kept, the loss on its data, its steps, and why it ended."""

    threshold: float
    neurons: int
    loss: float
    steps: int
    reason: str


@dataclass(frozen=True)
class Polished(Generic[Network]):
    """A model that is never worse than the one given, and how it was made.

    loss, loss_before  the task's loss, on fresh sequences that no step has seen
    attempts           one per number of neurons that was tried
    rounded            how many decays of the model are exactly 0 or 1
    kept_as_trained    whether the model is the one given, because no fit was clearly better
    """

    model: Network
    loss: float
    loss_before: float
    attempts: tuple[Attempt, ...]
    rounded: int
    kept_as_trained: bool
    seconds: float

    @property
    def reason(self) -> str:
        """Why the last fit ended."""
        return self.attempts[-1].reason

    @property
    def message(self) -> str:
        """Say what happened, why it ended, and whether too many neurons were removed at first."""
        last = self.attempts[-1]
        if self.kept_as_trained:
            return (
                f"kept the model as it was: fitting {last.neurons} neurons to samples did not "
                f"lower the loss of {self.loss_before:.6g} on fresh sequences; the fit ended "
                f"after {last.steps} steps, {self.seconds:.1f} s: {self.reason}"
            )
        stalled = (
            f"pruning to {attempt.neurons} neurons was too much (loss stays at {attempt.loss:.2g})"
            for attempt in self.attempts[:-1]
        )
        result = (
            f"kept {last.neurons} neurons, rounded {self.rounded} decays; loss "
            f"{self.loss_before:.4g} → {self.loss:.4g} in {last.steps} steps, "
            f"{self.seconds:.1f} s; {self.model.gate_width} gate outputs now give the kernels; "
            f"the fit ended: {self.reason}"
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
    progress: LineProgress = None,
) -> Polished[Network]:
    """Minimise a squared loss over a gated RNN's weights, in float64, from where training ended.

    The model comes back as it was unless the fit is clearly better on fresh sequences.

    thresholds  neurons of less influence are removed; tried in turn until the loss reaches zero
    steps       how many steps a fit may take
    sequences   how many to fit; unless given, as many as give three targets per unknown, or 400 if
                the task's loss cannot reach zero (at most 20,000 sequences)
    progress    a function that is called with one line per step; True: lines on stderr; False: no
                lines; None: lines on stderr once the work takes longer than two seconds
    """
    check_gated(model, "polish")
    check_settings(key, thresholds, steps, sequences, progress)
    began, speaker = time.monotonic(), Speaker(progress)
    check_sizes(task, model.d_in, model.d_out, about="polish")
    model = in_float64(model)
    fit_key, judge_key = jax.random.split(key)
    judge = sample(task, judge_key, 65536 if task.reads_last else 256, about="polish")
    noisy, zero, target = task.best_loss > 0, ZERO_LOSS * task.scale, 1e-13 * ZERO_LOSS * task.scale
    fresh: FreshLoss | None = None
    if noisy:
        watched = sample(task, jax.random.fold_in(key, 2), WATCHED)
        outputs = watched.rows(quadratic_form(model)(watched.tokens))
        fresh = FreshLoss(watched, loss_on(watched, outputs))

    def fit(student: SeparableNetwork) -> Minimised:
        def watch(step: int, cost: float, network: SeparableNetwork) -> str | None:
            speaker.say(f"polish: {count} neurons, step {step}, loss {cost:.3g}", long=long)
            return None if fresh is None else fresh.reason_to_stop(network)

        rows, features = len(data.targets), student.linear.shape[1]
        long = rows * (features + student.W_m.size) ** 2 > LONG_STEP
        said = f"polish: fitting {count} neurons to {len(data.tokens)} sequences"
        speaker.say(f"{said}, at most {steps} steps", long=long)
        if fresh is not None:
            fresh.begin()
        fitted = minimise(student, data, steps=steps, target=target, watch=watch)
        if fresh is None:
            return fitted
        return fitted._replace(network=fitted.network if fresh.best is None else fresh.best)

    before = judge.rows(quadratic_form(model)(judge.tokens))
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
        student, costs, reason = fit(start)
        loss, taken = loss_on(judge, outputs_on(judge, student)), len(costs) - 1
        hopeless = fresh is not None and fresh.best is None
        if not hopeless and np.any(student.rounded().free != student.free):
            nearer, more, why = fit(student.rounded())
            nearer_loss = loss_on(judge, outputs_on(judge, nearer))
            taken += len(more) - 1
            if nearer_loss <= max(loss, zero):
                student, costs, loss, reason = nearer, more, nearer_loss, why
        attempts.append(Attempt(threshold, count, costs[-1], taken, reason))
        if len(attempts) == 1 or loss < best_loss:
            best_loss, best = loss, student
        if noisy or loss <= zero:
            break
    polished: Any = best.model()  # Any: a network of the same kind as the model
    after = judge.rows(quadratic_form(polished)(judge.tokens))
    kept_as_trained = not clearly_better(judge, after, before)
    if kept_as_trained:
        polished, after = model, before
    decay = np.asarray(polished.decay)
    return Polished(
        model=polished,
        loss=loss_on(judge, after),
        loss_before=loss_on(judge, before),
        attempts=tuple(attempts),
        rounded=int(np.sum((decay == 0) | (decay == 1))),
        kept_as_trained=kept_as_trained,
        seconds=time.monotonic() - began,
    )


def check_settings(
    key: object, thresholds: object, steps: int, sequences: int | None, progress: object
) -> None:
    """Refuse settings that make no sense, all in one line."""
    if not isinstance(thresholds, tuple | list) or not thresholds:
        problems = [f"thresholds is {thresholds!r}; give one share or more, as a tuple"]
    else:
        shares = {f"thresholds[{place}]": share for place, share in enumerate(thresholds)}
        sizes = {"steps": steps} | ({} if sequences is None else {"sequences": sequences})
        problems = share_problems(**shares) + whole_problems(**sizes)
    refuse(key_problems(key) + problems + progress_problems(progress), about="polish")


def sequences_needed(student: SeparableNetwork, task: Task, noisy: bool) -> int:
    """Return how many sequences give three targets per unknown, or 400 on a noisy task."""
    unknowns = student.linear.shape[1] + (2 * student.W_m.size) // max(task.d_out, 1) + 1
    rows = (400 if noisy else 3) * unknowns
    return min(max(16, -(-rows // (1 if task.reads_last else task.time))), MOST_SEQUENCES)
