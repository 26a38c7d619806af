"""Loss against the size of the student (Figure 3): where it falls, and where theory says it must.

A student has `hidden` neurons and `gated` gate outputs. Along the first axis both grow together, as
in the paper; along the second the neurons are plenty and only the gate outputs grow. A loss is
the excess over the best attention's, divided by the task's scale. A student counts as computing the
function if its loss is within a factor CLOSE of the median of the largest students, and below MOST:
networks that are too small approximate, to a share of 1e-3 and less, but stay orders of magnitude
above. Judged:

fall       the size at the end of the steepest fall of the median between neighbouring sizes: from
           the predicted size to twice that (the paper's "around twice as many neurons")
smallest   the smallest size at which some student computes the function; never below the
           predicted size, where theory allows none, and at most twice that
median     the smallest size from which on the median student does: the same limits
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import PRNGKeyArray

from underhood.experiments.running.outcomes import Outcome
from underhood.experiments.running.rules import DIFFERS, NOT_JUDGED, REPRODUCED, Number
from underhood.experiments.running.setting import Setting
from underhood.layers import GatedRNN
from underhood.tasks import Task
from underhood.training import Recipe, Run

# How far above the largest students' loss another may lie and count as computing the function.
CLOSE, MOST = 100, 1e-2
# Excess losses below this are sampling noise or rounding.
FLOOR = 1e-12
ALONE = 10_000


@dataclass(frozen=True)
class Sweep:
    """Sizes of students and how they are trained, at one scale."""

    neurons: tuple[int, ...]
    gates: tuple[int, ...]
    seeds: int
    recipe: Recipe

    def sizes(self, predicted: int) -> dict[int, tuple[int, int]]:
        """(hidden, gated) by width: both growing together, then gate outputs alone.

        An ensemble's width is one number and a size is two: ALONE + m stands for m gate outputs
        over twice the neurons predicted.
        """
        together = {n: (n, n) for n in self.neurons}
        return together | {ALONE + m: (2 * predicted, m) for m in self.gates}


def students_of(task: Task, sizes: dict[int, tuple[int, int]]) -> Callable[..., GatedRNN]:
    """make_student by width."""

    def student(width: int, *, key: PRNGKeyArray) -> GatedRNN:
        hidden, gated = sizes[width]
        return GatedRNN.init(d_in=task.d_in, hidden=hidden, gated=gated, d_out=task.d_out, key=key)

    return student


def sweep(
    name: str, task: Task, plan: Sweep, key: int, predicted: int, gates: int, setting: Setting
) -> Outcome:
    """Train all sizes and judge where the loss falls; `gates` is the fewest that theory needs."""
    sizes = plan.sizes(predicted)
    run = setting.train(
        name,
        students_of(task, sizes),
        task,
        plan.recipe,
        widths=tuple(sizes),
        seeds=setting.count(plan.seeds),
        key=key,
    )
    return judge(run, sizes, task, plan, predicted, gates, setting.count(plan.seeds))


def judge(
    run: Run,
    sizes: dict[int, tuple[int, int]],
    task: Task,
    plan: Sweep,
    predicted: int,
    gates: int,
    seeds: int,
) -> Outcome:
    """Numbers and rows of a finished sweep."""
    excess = np.full((len(sizes), seeds), np.nan)
    places = {width: place for place, width in enumerate(sizes)}
    for row in run.rows:
        if row["loss"] is not None:
            above = (row["loss"] - task.best_loss) / task.scale
            excess[places[row["width"]], row["seed"]] = max(above, FLOOR)
    # A lost member found nothing.
    nothing = (task.zero_loss - task.best_loss) / task.scale
    found = np.where(np.isfinite(excess), excess, nothing)
    limits = [limit_of(found[: len(plan.neurons)])] * len(plan.neurons)
    limits += [limit_of(found)] * len(plan.gates)
    numbers = numbers_of("neurons", plan.neurons, found[: len(plan.neurons)], predicted, seeds)
    if plan.gates:
        alone = found[len(plan.neurons) :]
        numbers += numbers_of("gate outputs", plan.gates, alone, gates, seeds)
    rows = [
        {
            "neurons": hidden,
            "gate outputs": gated,
            "lowest": float(np.min(values)),
            "median": float(np.median(values)),
            "highest": float(np.max(values)),
            "compute it": f"{int(np.sum(values <= limit))} of {seeds}",
            "below 1e-3": f"{int(np.sum(values <= 1e-3))} of {seeds}",
        }
        for (hidden, gated), values, limit in zip(sizes.values(), found, limits, strict=True)
    ]
    notes = (
        f"Theory needs {predicted} neurons and {gates} gate outputs. Losses are excesses over the "
        "best attention, divided by the task's scale.",
    )
    arrays = {
        "sizes": np.array(list(sizes.values())),
        "excess": excess,
        "predicted": np.array([predicted, gates]),
        "steps": run.steps,
        "losses": run.losses,
    }
    return Outcome(
        tuple(numbers),
        tuple(rows),
        notes,
        tuple(range(seeds)),
        plan.recipe.steps,
        arrays,
        (run,),
    )


def numbers_of(
    what: str, counts: tuple[int, ...], found: np.ndarray, predicted: int, seeds: int
) -> list[Number]:
    """The three numbers of one axis."""
    medians = np.median(found, axis=1)
    limit = limit_of(found)
    fall = steepest_fall(counts, medians)
    reached = [count for count, values in zip(counts, found, strict=True) if values.min() <= limit]
    smallest = min(reached, default=None)
    settled = from_here_on(counts, medians <= limit)

    def within(name: str, value: int | None) -> Number:
        rule = f"{predicted} ≤ {what} ≤ {2 * predicted}"
        holds = value is not None and predicted <= value <= 2 * predicted
        verdict = REPRODUCED if holds else DIFFERS
        verdict = verdict if seeds >= 4 else NOT_JUDGED
        return Number(f"{name}, {what}", value, predicted, rule, verdict, seeds)

    return [within("fall", fall), within("smallest", smallest), within("median", settled)]


def limit_of(found: np.ndarray) -> float:
    """The loss below which a student counts, given all sizes of an axis, the largest last."""
    return min(CLOSE * float(np.median(found[-1])), MOST)


def steepest_fall(counts: tuple[int, ...], medians: np.ndarray) -> int | None:
    """The size at the end of the largest fall of the median's logarithm between neighbours."""
    falls = [np.log(before / after) for before, after in itertools.pairwise(medians)]
    if not falls or max(falls) <= 0:
        return None
    return counts[int(np.argmax(falls)) + 1]


def from_here_on(counts: tuple[int, ...], holds: Any) -> int | None:
    """The smallest size from which on all sizes hold."""
    for place, count in enumerate(counts):
        if all(holds[place:]):
            return count
    return None
