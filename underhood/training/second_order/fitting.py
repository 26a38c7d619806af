"""Second-order training: `fit` finds what gradient descent takes a million updates for.

Starts from random weights run side by side, one per core, until one of them has found the function.
A start sees inputs and targets, never the teacher's weights. Which start wins does not depend on
the number of cores: it is the first in order that succeeds. docs/discovery.md says how the method
was chosen and what it can do.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from underhood.common.arrays import in_float64, key_problems, typed_key
from underhood.common.errors import BadInput, refuse
from underhood.common.live import LineProgress, Speaker, progress_problems
from underhood.common.numbers import number_problems, whole_problems
from underhood.common.threads import one_thread
from underhood.layers import GatedRNN, SideGatedRNN
from underhood.tasks import Task
from underhood.tasks.population import population
from underhood.training.ensemble import StudentMaker
from underhood.training.second_order.examples import check_sizes, seed_of
from underhood.training.second_order.races import EndedStart, Race
from underhood.training.second_order.separable import SeparableNetwork
from underhood.training.second_order.starts import (
    Assignment,
    GatedStudent,
    Start,
    placed,
    run_start,
)

MOST_STARTS = 64
# A loss of this share of the task's scale above the best one is a success.
FIT_TOLERANCE = 1e-16
MOST_STEPS = 400
# A start has so many times the neurons that one head of attention with d inputs can need,
# d(d+1)/2 + d. Fewer end in wrong places more often, and more take longer.
STARTING_SHARE = 1.4
# A wider start ends after its stages: the steps on all outputs at once would take too long.
MOST_AT_ONCE = 40

# Called after each step with the number of the start, the step, and the loss.
FitWatcher = Callable[[int, int, float], None]


@dataclass(frozen=True)
class Fit:
    """The best network of all starts.

    loss         on fresh sequences, or over all of them if the exact loss was minimised
    best_loss    the lowest loss that the task allows
    tolerance    largest excess of a success over best_loss, as a share of the task's scale
    starts       how each start ended, in order; those that another's success stopped are missing
    too_small    how many starts found the function with more neurons than the student has
    interrupted  whether Ctrl-C ended the fit
    """

    model: GatedStudent
    loss: float
    best_loss: float
    tolerance: float
    starts: tuple[Start, ...]
    seconds: float
    too_small: int = 0
    interrupted: bool = False

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
        return min(self.starts, key=lambda start: (not start.success, start.loss))

    @property
    def message(self) -> str:
        """Say what came out of how many starts, and why they ended."""
        count, best = len(self.starts), self.best_start
        tried = f"{count} start{'s' if count > 1 else ''}, {self.seconds:.1f} s"
        end = "; interrupted" if self.interrupted else ""
        if self.success:
            return f"found after {tried}: loss {self.loss:.3g} with {best.neurons} neurons{end}"
        if self.too_small:
            end = f"; {self.too_small} found the function with more neurons than it has{end}"
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
    width: int | None = None,
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
    restarts   how many starts at most, 64 unless given; the first success ends the fit
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
    check_arguments(key, width, restarts, tolerance, steps, exact, workers, progress)
    make = students_of(student, width)
    count = restarts or MOST_STARTS
    student_keys, data_keys = np.split(jax.random.split(typed_key(key), 2 * count), 2)
    first = make(student_keys[0], 0)
    check_sizes(task, first.d_in, first.d_out, about="fit")
    noisy = task.best_loss > 0
    known = population(task) if (noisy if exact is None else exact) else None
    limit = task.best_loss + tolerance * task.scale
    race, speaker = Race(), Speaker(progress)

    def watched(number: int, step: int, loss: float) -> str | None:
        speaker.say(f"fit: start {number}, step {step}, loss {loss:.3g}")
        if watch is not None:
            watch(number, step, loss)
        return race.reason_to_stop(number)

    enough = 0.01 * tolerance * task.scale
    assignment = Assignment(task, limit, enough, first.neurons, steps, known, watched)

    def run(number: int) -> EndedStart:
        began = time.monotonic()
        model = in_float64(first if number == 0 else make(student_keys[number], number))
        rng = np.random.default_rng(seed_of(data_keys[number]))
        fitted, ended = SeparableNetwork.of(model), None
        # A start with more neurons may need more than the student has.
        by_stages = wider and known is None and isinstance(model, GatedRNN)
        for more in (True, False) if wider and known is None else (False,):
            network = starting_network(model, rng, number, wider=more)
            fitted, ended = run_start(
                number,
                network,
                assignment,
                data_keys[number],
                staged=more and by_stages,
                at_once=not by_stages or len(network.decay) <= MOST_AT_ONCE,
            )
            if len(fitted.decay) <= model.neurons:
                break
            if ended.loss <= limit:
                race.too_small(number)
        assert ended is not None
        start = replace(ended, seconds=time.monotonic() - began)
        return start, placed(fitted, model)

    began = time.monotonic()
    ended = race.run(run, count, workers or os.cpu_count() or 1)
    if not ended:
        raise KeyboardInterrupt
    starts = tuple(start for start, _ in ended)
    best = min(ended, key=lambda pair: (not pair[0].success, pair[0].loss))
    seconds = time.monotonic() - began
    ending = seconds, len(race.needed_more), race.interrupted
    return Fit(best[1], best[0].loss, task.best_loss, tolerance, starts, *ending)


def students_of(
    student: GatedStudent | StudentMaker, width: int | None
) -> Callable[[PRNGKeyArray, int], GatedStudent]:
    """Return a function from a key and the number of a start to the student it begins with."""
    if isinstance(student, GatedRNN | SideGatedRNN):
        if width is not None:
            raise BadInput("fit: width is for make_student; a network has its own.")
        sizes = {"d_in": student.d_in, "hidden": student.neurons, "d_out": student.d_out}
        if isinstance(student, GatedRNN):
            sizes["gated"] = student.gate_width
        kind = type(student)
        return lambda key, number: student if number == 0 else kind.init(**sizes, key=key)
    if not callable(student):
        kind_name = type(student).__name__
        raise BadInput(
            f"fit: the student is a {kind_name}; give a GatedRNN, a SideGatedRNN, or "
            "make_student(width, *, key)."
        )
    if width is None:
        raise BadInput("fit: give the width of the students that make_student draws.")

    def make(key: PRNGKeyArray, number: int) -> GatedStudent:
        try:
            drawn = drawn_at_once(student, width, key)
        except (jax.errors.JAXTypeError, BadInput):
            drawn = student(width, key=key)
        except TypeError as error:
            raise BadInput(f"fit: make_student(width, *, key) failed: {error}.") from error
        if not isinstance(drawn, GatedRNN | SideGatedRNN):
            raise BadInput(
                f"fit: make_student returns a {type(drawn).__name__}; second-order training knows "
                "GatedRNN and SideGatedRNN. Use uh.train for other layers."
            )
        return drawn

    return make


@eqx.filter_jit
def drawn_at_once(student: StudentMaker, width: int, key: PRNGKeyArray) -> object:
    """Draw a student by one program, in place of many small ones that take long to compile."""
    return student(width, key=key)


def starting_network(
    model: GatedStudent, rng: np.random.Generator, number: int, *, wider: bool
) -> SeparableNetwork:
    """Return the neurons of a student that are fitted, with more random ones if it has few.

    Solving for the kernels of n neurons costs n⁶, and no attention with one head needs many. So of
    a wide network a random choice is fitted. It grows every fourth start.
    """
    enough = model.d_in * (model.d_in + 3) / 2
    wanted = int(np.ceil(STARTING_SHARE * enough * 1.25 ** (number // 4)))
    network = SeparableNetwork.of(model)
    if model.neurons > wanted:
        chosen = rng.choice(model.neurons, wanted, replace=False)
        return network.keep(np.isin(np.arange(model.neurons), chosen))
    if not wider or isinstance(model, SideGatedRNN) or model.neurons == wanted:
        return network
    # As `GatedRNN.init` draws them.
    more, inputs = wanted - model.neurons, model.d_in + 1
    gates = rng.normal(size=(2, more, inputs)) / np.sqrt(inputs)
    return SeparableNetwork(
        W_m=np.concatenate([network.W_m, gates[0]]),
        W_x=np.concatenate([network.W_x, gates[1]]),
        decay=np.append(network.decay, rng.uniform(size=more)),
        free=np.ones(wanted, bool),
        linear=np.zeros((model.d_out, wanted * (wanted + 1) // 2)),
    )


def check_arguments(
    key: object,
    width: int | None,
    restarts: int | None,
    tolerance: float,
    steps: int,
    exact: bool | None,
    workers: int | None,
    progress: object,
) -> None:
    """Refuse arguments that make no sense, all in one line."""
    counts = {"width": width, "restarts": restarts, "workers": workers}
    whole = {name: value for name, value in counts.items() if value is not None}
    problems = key_problems(key) + whole_problems(steps=steps, **whole)
    problems += number_problems(above=True, tolerance=tolerance) + progress_problems(progress)
    if exact not in (None, True, False):
        problems.append(f"exact is {exact!r}; give None, True or False")
    refuse(problems, about="fit")
