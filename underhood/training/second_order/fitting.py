"""Second-order training: `fit` finds what gradient descent takes a million updates for.

Starts from random weights run side by side, one per core, until one of them has found the function.
A start sees inputs and targets, never the teacher's weights. Which start wins does not depend on
the number of cores: it is the first in order that succeeds. docs/discovery.md says how the method
was chosen and what it can do.

A task whose targets are zero needs no start: a network of zeros computes it.
"""

import operator
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import SupportsIndex

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from underhood.common.arrays import in_float64, typed_key
from underhood.common.live import LineProgress, Speaker
from underhood.common.threads import one_thread
from underhood.layers import GatedRNN
from underhood.tasks import Task
from underhood.training.ensemble import StudentMaker
from underhood.training.second_order.arguments import check_arguments, exact_loss, students_of
from underhood.training.second_order.examples import check_sizes, seed_of
from underhood.training.second_order.judging import judged_loss
from underhood.training.second_order.races import EndedStart, Race
from underhood.training.second_order.separable import SeparableNetwork
from underhood.training.second_order.sizes import (
    MOST_AT_ONCE,
    MOST_STARTS,
    check_memory,
    starting_network,
    starts_in_memory,
    starts_worth_trying,
    wanted_neurons,
)
from underhood.training.second_order.starts import (
    ZERO_COST,
    Assignment,
    GatedStudent,
    Start,
    placed,
    run_start,
)

# A loss of this share of the task's scale above the best one is a success.
FIT_TOLERANCE = 1e-16
MOST_STEPS = 400
ALL_TRIED = "starts of every size have failed, and more would repeat them"

# Called after each step with the number of the start, the step, and the loss.
FitWatcher = Callable[[int, int, float], None]


@dataclass(frozen=True)
class Fit:
    """The best network of all starts.

    loss         on 4,096 sequences, or a few more, that no start was fitted to or chosen by; over
                 all sequences if the exact loss was minimised
    best_loss    the lowest loss that the task allows
    tolerance    largest excess of a success over best_loss, as a share of the task's scale
    starts       how each start ended, in order; those that another's success stopped are missing
    too_small    how many starts found the function with more neurons than the student has
    interrupted  whether Ctrl-C ended the fit
    chosen       the number of the start that the model comes from
    ended        why no further start was made; empty after a success
    """

    model: GatedStudent
    loss: float
    best_loss: float
    tolerance: float
    starts: tuple[Start, ...]
    seconds: float
    too_small: int = 0
    interrupted: bool = False
    chosen: int = 0
    ended: str = ""

    @property
    def success(self) -> bool:
        """Whether a start has found a network with the lowest loss that the task allows."""
        return any(start.success for start in self.starts)

    @property
    def losses(self) -> np.ndarray:
        """The losses of the best start, before its first step and after each."""
        return self.best_start.losses

    @property
    def best_start(self) -> Start:
        return next(start for start in self.starts if start.number == self.chosen)

    @property
    def message(self) -> str:
        """Say what came out of how many starts, and why they ended."""
        count, best = len(self.starts), self.best_start
        tried = f"{count} start{'s' if count > 1 else ''}, {self.seconds:.1f} s"
        end = "; interrupted" if self.interrupted else ""
        if self.success:
            said = f"found after {tried}: loss {self.loss:.3g} with {best.neurons} neurons"
            if best.steps == 0:
                said += f"; {best.reason}"
            elif self.model.neurons > best.neurons:
                said += f"; nothing reads the other {self.model.neurons - best.neurons}"
            return said + end
        if self.ended and not self.interrupted:
            end = f"; {self.ended}"
        return (
            f"not found after {tried}: the best loss is {self.loss:.3g}, and "
            f"{self.best_loss:.3g} is possible; start {best.number} ended: {best.reason}{end}"
        )

    def __str__(self) -> str:
        return self.message


@one_thread
def fit(
    student: GatedStudent | StudentMaker,
    task: Task,
    *,
    key: PRNGKeyArray,
    width: SupportsIndex | None = None,
    restarts: int | None = None,
    tolerance: float = FIT_TOLERANCE,
    steps: int = MOST_STEPS,
    exact: bool | None = None,
    wider: bool = True,
    workers: int | None = None,
    progress: LineProgress = None,
    watch: FitWatcher | None = None,
) -> Fit:
    """Train a gated or side-gated RNN by second-order steps in float64, from any weights.

    The kernels (or the readout) are solved for at every step, so a gated RNN may come back with
    another number of gate outputs; `uh.reduce` finds the fewest. Of a wide network only some
    neurons are fitted, and nothing reads the others.

    student    a network, whose weights are the first start, or make_student(width, *, key)
    width      of a student that make_student draws
    restarts   how many starts at most; the first success ends the fit. None: until starts as large
               as can help have failed 8 times, at most 64
    tolerance  largest excess over the task's best loss that counts as a success, as a share of the
               task's scale
    steps      how many a start may take
    exact      minimise the loss over all sequences instead of samples; decays end at 0 or 1. None:
               where the task's loss cannot reach zero
    wider      a small gated RNN may start with more random neurons than it has; those that are not
               needed are left out on the way
    workers    starts that run side by side; unless given, one per core
    progress   a function that is called with a line per step; True: lines on stderr; False: no
               lines; None: lines on stderr once the work takes longer than two seconds
    watch      called with start, step and loss after each step
    """
    check_arguments(key, width, restarts, tolerance, steps, exact, wider, workers, progress, watch)
    make = students_of(student, width)
    count = operator.index(restarts or MOST_STARTS)
    student_keys, data_keys = np.split(jax.random.split(typed_key(key), 2 * count), 2)
    first = make(student_keys[0], 0)
    check_sizes(task, first.d_in, first.d_out, about="fit")
    known, limit = exact_loss(task, exact), task.best_loss + tolerance * task.scale
    wider = bool(wider) and known is None
    check_memory(first, wider=wider)
    began = time.monotonic()
    judge_key = jax.random.fold_in(typed_key(key), 2 * count)
    if ZERO_COST * task.scale < np.finfo(float).tiny:
        return zero_fit(in_float64(first), task, tolerance, judge_key)
    grows = wider and isinstance(first, GatedRNN)
    if restarts is None and grows:
        count = starts_worth_trying(first.d_in)
    race, speaker = Race(), Speaker(progress)

    def watched(number: int, step: int, loss: float) -> str | None:
        speaker.say(f"fit: start {number}, step {step}, loss {loss:.3g}")
        if watch is not None:
            watch(number, step, loss)
        return race.reason_to_stop(number)

    enough = 0.01 * tolerance * task.scale
    most_steps = operator.index(steps)
    assignment = Assignment(
        task,
        limit,
        enough,
        first.neurons,
        most_steps,
        known,
        watched,
        race.reason_to_stop,
        judge_key,
    )

    def run(number: int) -> EndedStart:
        began = time.monotonic()
        model = in_float64(first if number == 0 else make(student_keys[number], number))
        rng = np.random.default_rng(seed_of(data_keys[number]))
        fitted, ended = SeparableNetwork.of(model), None
        most_at_once = MOST_AT_ONCE if grows else None
        # A start with more neurons may need more than the student has.
        for more in (True, False) if wider else (False,):
            network = starting_network(model, rng, number, wider=more)
            try:
                fitted, ended = run_start(
                    number,
                    network,
                    assignment,
                    data_keys[number],
                    staged=more and grows,
                    most_at_once=most_at_once,
                )
            # Of one start alone: the others go on.
            except (np.linalg.LinAlgError, ArithmeticError, MemoryError) as error:
                reason = f"an error ended it: {error or type(error).__name__}"
                nothing = np.array([np.inf])
                ended = Start(number, len(network.decay), np.inf, nothing, reason, False)
                fitted = SeparableNetwork.of(model)
                break
            if len(fitted.decay) <= model.neurons:
                break
            if ended.success:
                race.too_small(number)
        assert ended is not None
        start = replace(ended, seconds=time.monotonic() - began)
        return start, placed(fitted, model)

    side_by_side = operator.index(workers or os.cpu_count() or 1)
    if isinstance(first, GatedRNN):
        largest = wanted_neurons(first.d_in, count - 1)
        fitted_at_once = largest if wider else min(largest, first.neurons)
        side_by_side = min(side_by_side, starts_in_memory(fitted_at_once))
    ended = race.run(run, count, side_by_side)
    if not ended:
        raise KeyboardInterrupt
    best, model = min(ended, key=lambda pair: (not pair[0].success, pair[0].loss))
    if known is None and not best.success:
        # The lowest of several measured losses is too low: it is measured anew.
        loss = judged_loss(SeparableNetwork.of(model), task, judge_key)
        best = replace(best, loss=loss, success=bool(loss <= limit))
    starts = tuple(best if start.number == best.number else start for start, _ in ended)
    return Fit(
        model,
        best.loss,
        task.best_loss,
        tolerance,
        starts,
        time.monotonic() - began,
        len(race.needed_more),
        race.interrupted,
        best.number,
        race.ending or ("" if restarts or not grows else ALL_TRIED),
    )


def zero_fit(model: GatedStudent, task: Task, tolerance: float, judge_key: PRNGKeyArray) -> Fit:
    """Return the student with a readout of zeros, for targets that are zero up to rounding."""
    zero = eqx.tree_at(lambda student: student.D, model, np.zeros_like(np.asarray(model.D)))
    loss = judged_loss(SeparableNetwork.of(zero), task, judge_key)
    reason = "the targets are zero up to rounding, and so is this network"
    start = Start(0, model.neurons, loss, np.array([loss]), reason, True)
    return Fit(zero, loss, task.best_loss, tolerance, (start,), 0.0)
