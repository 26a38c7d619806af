"""Loss against the size of the student (Figure 3): where it falls, and where theory says it must.

A student has `hidden` neurons and `gated` gate outputs. Along the first axis both grow together, as
in the paper; along the second the neurons are plenty and only the gate outputs grow. A loss is
the excess over the best attention's, divided by the task's scale. Three sizes of each axis must lie
between the predicted size, below which theory allows none, and twice that (docs/reproduction.md).
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import PRNGKeyArray

from underhood.common.files import Json
from underhood.experiments.protocols.students import decay_words
from underhood.experiments.running import Outcome, Setting
from underhood.experiments.running.rules import ENOUGH, judged, ours
from underhood.layers import GatedRNN
from underhood.results.files import Cell, Number
from underhood.sweeps.study import Study
from underhood.tasks import Task
from underhood.training import Recipe, Run

# A student computes the function if its loss is within a factor CLOSE of the median of the largest
# students, and at most HIGHEST. Networks that are too small approximate it, to a share of 1e-3 and
# less, but stay orders of magnitude above.
CLOSE, HIGHEST = 100, 1e-2
# Excess losses below this are sampling noise or rounding.
FLOOR = 1e-12


@dataclass(frozen=True)
class SizePlan:
    """Sizes of students and how they are trained, at one scale.

    predicted  the fewest neurons and the fewest gate outputs that theory allows
    neurons    sizes of the first axis, with as many gate outputs
    gates      gate outputs of the second axis, over twice the predicted neurons
    key        of the students' weights and data
    paper      which number of the first axis the paper's text gives, and what it says
    in_runs    how many sizes each run holds; () for one run. On a GPU the students of a run are
               padded to the widest, so sizes that lie far apart have runs of their own
    decayed    sizes of the first axis that are also trained with weight decay, for comparison
    """

    task: Task
    predicted: tuple[int, int]
    neurons: tuple[int, ...]
    gates: tuple[int, ...]
    seeds: int
    recipe: Recipe
    key: int
    paper: tuple[str, Cell]
    in_runs: tuple[int, ...] = ()
    decayed: tuple[int, ...] = ()

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """(hidden, gated) of every student: the first axis, then the second."""
        together = tuple((count, count) for count in self.neurons)
        return together + tuple((2 * self.predicted[0], count) for count in self.gates)

    @property
    def widths(self) -> range:
        """An ensemble's width is one number: here the place of a size, counted from 1."""
        return range(1, len(self.sizes) + 1)

    def studies(self, name: str, seeds: int) -> dict[str, Study]:
        """Return what to train, by the names of the runs."""
        student = {"student": sized_student(self.task, self.sizes)}
        ends = list(itertools.accumulate(self.in_runs or (len(self.sizes),)))
        parts = {
            name if len(ends) == 1 else f"{name}_{number}": tuple(self.widths[start:end])
            for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False), start=1)
        }
        return {
            run: Study(self.task, student, self.recipe, widths, seeds, key=self.key)
            for run, widths in parts.items()
        }

    def every_study(self, name: str, seeds: int) -> dict[str, Study]:
        """Return the same, and last the students with weight decay, if there are any."""
        studies = self.studies(name, seeds)
        return studies | {f"{name}_decayed": self.decayed_study()} if self.decayed else studies

    def decayed_study(self) -> Study:
        """Return the students with weight decay as in Section 4.1 of the paper, ENOUGH seeds."""
        student = {"student": sized_student(self.task, self.sizes)}
        recipe = Recipe.paper(steps=self.recipe.steps)
        widths = tuple(self.neurons.index(count) + 1 for count in self.decayed)
        return Study(self.task, student, recipe, widths, ENOUGH, key=self.key)


def sized_student(task: Task, sizes: tuple[tuple[int, int], ...]) -> Callable[..., GatedRNN]:
    """Return make_student, whose width is the place of a size, counted from 1."""

    def student(width: int, *, key: PRNGKeyArray) -> GatedRNN:
        hidden, gated = sizes[width - 1]
        return GatedRNN.init(d_in=task.d_in, hidden=hidden, gated=gated, d_out=task.d_out, key=key)

    return student


def reproduce_sizes(name: str, plan: SizePlan, setting: Setting) -> Outcome:
    seeds = setting.count(plan.seeds)
    studies = plan.every_study(name, seeds)
    parts = [
        (len(study.widths), partial(Setting.train, name=run, study=study))
        for run, study in studies.items()
    ]
    runs = setting.each(parts)
    decayed = runs.pop() if plan.decayed else None
    return judge_sizes(runs, plan, seeds, decayed)


def judge_sizes(
    runs: Sequence[Run], plan: SizePlan, seeds: int, decayed: Run | None = None
) -> Outcome:
    """Judge the students without weight decay; show those with it, if the plan has any.

    runs     of all sizes, in order
    decayed  of the sizes that are also trained with weight decay; None if there are none
    """
    sizes, together = plan.sizes, len(plan.neurons)
    excess = excess_losses(runs, plan, seeds)
    losses = known_losses(excess, plan.task)
    limits = [limit_of(losses[:together])] * together + [limit_of(losses)] * len(plan.gates)
    neurons, gates = plan.predicted
    numbers = numbers_of("neurons", plan.neurons, losses[:together], neurons, plan.paper)
    if plan.gates:
        numbers += numbers_of("gate outputs", plan.gates, losses[together:], gates)
    rows = [size_row(*every) for every in zip(sizes, losses, limits, strict=True)]
    arrays = {
        "sizes": np.array(sizes),
        "excess": excess,
        "predicted": np.array(plan.predicted),
        "steps": runs[0].steps,
        "losses": np.concatenate([run.losses for run in runs]),
    }
    notes = [
        f"Theory needs {neurons} neurons and {gates} gate outputs. A loss is given as the "
        "excess over the loss of the best attention, divided by the task's scale."
    ]
    if decayed is not None:
        places = [plan.neurons.index(count) for count in plan.decayed]
        arrays["excess_decayed"] = excess_losses([decayed], plan, ENOUGH)[places]
        arrays["sizes_decayed"] = np.array(sizes)[places]
        beside = known_losses(arrays["excess_decayed"], plan.task)
        rows = [{"weight decay": decay_words(plan.recipe), **row} for row in rows]
        words = decay_words(plan.decayed_study().recipe)
        rows += [
            {"weight decay": words, **size_row(sizes[place], values, limits[place])}
            for place, values in zip(places, beside, strict=True)
        ]
        notes.append(
            "Judged are students without weight decay: the paper decays weights in the experiment "
            "of Section 4.1, which this is not. Rows show some sizes with it too."
        )
        runs = [*runs, decayed]
    return Outcome(
        numbers=numbers,
        rows=rows,
        notes=notes,
        seeds=range(seeds),
        steps=plan.recipe.steps,
        arrays=arrays,
        runs=runs,
    )


def excess_losses(runs: Sequence[Run], plan: SizePlan, seeds: int) -> np.ndarray:
    """Return losses above the best attention's over the scale [sizes, seeds]; NaN: diverged."""
    excess = np.full((len(plan.sizes), seeds), np.nan)
    for row in itertools.chain.from_iterable(run.rows for run in runs):
        if row["loss"] is not None:
            above = (row["loss"] - plan.task.best_loss) / plan.task.scale
            excess[row["width"] - 1, row["seed"]] = max(above, FLOOR)
    return excess


def known_losses(excess: np.ndarray, task: Task) -> np.ndarray:
    """Return the same; a student that diverged counts as one that answers zero."""
    return np.where(np.isfinite(excess), excess, (task.zero_loss - task.best_loss) / task.scale)


def size_row(size: tuple[int, int], values: np.ndarray, limit: float) -> Json:
    hidden, gated = size
    return {
        "neurons": hidden,
        "gate outputs": gated,
        "lowest": float(np.min(values)),
        "median": float(np.median(values)),
        "highest": float(np.max(values)),
        "compute it": f"{int(np.sum(values <= limit))} of {len(values)}",
        "below 1e-3": f"{int(np.sum(values <= 1e-3))} of {len(values)}",
    }


def numbers_of(
    what: str,
    counts: tuple[int, ...],
    losses: np.ndarray,
    predicted: int,
    paper: tuple[str, Cell] | None = None,
) -> list[Number]:
    """Return the three numbers of an axis; `losses` has a row per size and a column per seed.

    paper  the number that the paper's text gives, and what it says; None: all are ours
    """
    medians, lowest = np.median(losses, axis=1), np.min(losses, axis=1)
    limit, seeds = limit_of(losses), losses.shape[1]
    values = {
        "fall": steepest_fall(counts, medians),
        "smallest": next(itertools.compress(counts, lowest <= limit), None),
        "median": from_here_on(counts, medians <= limit),
    }
    rule = f"{predicted} ≤ {what} ≤ {2 * predicted}"
    allowed = range(predicted, 2 * predicted + 1)
    numbers = []
    for name, value in values.items():
        title, holds = f"{name}, {what}", value in allowed
        if paper is not None and name == paper[0]:
            numbers.append(judged(title, value, rule, holds, paper=paper[1], seeds=seeds))
        else:
            numbers.append(ours(judged(title, value, rule, holds, paper=None, seeds=seeds)))
    return numbers


def limit_of(losses: np.ndarray) -> float:
    """Return the loss below which a student counts; the last row has the largest students."""
    return min(CLOSE * float(np.median(losses[-1])), HIGHEST)


def steepest_fall(counts: tuple[int, ...], medians: np.ndarray) -> int | None:
    """Return the size at the end of the largest fall of log median between neighbours."""
    falls = [np.log(before / after) for before, after in itertools.pairwise(medians)]
    return counts[int(np.argmax(falls)) + 1] if falls and max(falls) > 0 else None


def from_here_on(counts: tuple[int, ...], holds: Sequence[bool] | np.ndarray) -> int | None:
    return next((count for place, count in enumerate(counts) if all(holds[place:])), None)
