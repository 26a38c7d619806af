"""Students that several experiments look at: trained once, kept in the folder of the results."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from underhood.common.decay import kinds
from underhood.common.files import Json
from underhood.experiments.protocols.architectures import gated_student
from underhood.experiments.running import Outcome, Setting
from underhood.layers import GatedRNN, SideGatedRNN
from underhood.sweeps.engines import MissingRun
from underhood.sweeps.study import Study
from underhood.tasks import AssociativeRecall, InContextRegression, Task, TeacherStudent
from underhood.training import Recipe, Run
from underhood.training.ensemble import StudentMaker

SomeTask = TypeVar("SomeTask", bound=Task)


@dataclass(frozen=True)
class Students(Generic[SomeTask]):
    """A task, the run of its students, how many steps they took, and how they were made."""

    task: SomeTask
    run: Run
    steps: int
    student: StudentMaker
    key: int
    decay: str = "no"

    def untrained(self, place: int) -> Any:  # Any: the layer
        """Return a student as it was before training."""
        row = self.run.rows[place]
        key = jax.random.fold_in(jax.random.key(self.key), row["seed"])
        return self.student(row["width"], key=jax.random.split(key)[0])

    def visit(self, setting: Setting) -> Iterator[tuple[int, Any, Json]]:  # Any: the layer
        """Yield seed, trained network and row of every student; report the progress."""
        for seed in setting.over(range(len(self.run.models))):
            yield seed, self.run.models[seed], self.run.rows[seed]

    def complete(self, outcome: Outcome) -> Outcome:
        """Return the outcome with the seeds, steps, losses and run of these students."""
        arrays = outcome.arrays | {"steps": self.run.steps, "losses": self.run.losses}
        seeds, runs = range(len(self.run.models)), (self.run, *outcome.runs)
        return replace(outcome, seeds=seeds, steps=self.steps, arrays=arrays, runs=runs)


# Runs by name, and what they train.
Studies = dict[str, Study]
# Students by the format of their sequence.
RecallFormats = dict[str, Students[AssociativeRecall]]


def column(rows: Iterable[Json], name: str) -> list[float]:
    """Return the numbers of this name; infinity for None, nothing for a row without it."""
    return [np.inf if row[name] is None else row[name] for row in rows if name in row]


def neuron_counts(model: GatedRNN) -> Json:
    kind = kinds(np.asarray(model.decay))
    counts = {name: int(np.sum(kind == name)) for name in ("memory", "query", "other")}
    return {"neurons": model.neurons, **counts, "gate outputs": model.gate_width}


def arrays_of(holders: Mapping[str, object]) -> dict[str, np.ndarray]:
    """Return all fields of networks and other objects, named NAME/FIELD."""
    return {
        f"{name}/{field}": np.asarray(array)
        for name, holder in holders.items()
        for field, array in vars(holder).items()
    }


@dataclass(frozen=True)
class Protocol:
    """Sizes and recipe of a group of students at one scale; every width has all seeds."""

    widths: tuple[int, ...]
    seeds: int
    recipe: Recipe
    d: int = 4


# The paper's student at quick scale too, on sequences half as long.
TEACHER_STUDENT = {
    "smoke": Protocol((8,), 2, Recipe.fast(steps=50), d=2),
    "quick": Protocol((100,), 4, Recipe.fast(length=16)),
    "paper": Protocol((100,), 16, Recipe.paper()),
}
FINE_TUNING = {
    "smoke": Recipe.paper(steps=20),
    "quick": Recipe.paper(steps=5_000),
    "paper": Recipe.paper(steps=10_000),
}
# A weight below this share of the largest of its matrix is zero, where the paper prunes zeros.
ZERO = 1e-3
# At quick scale the students see a fortieth of the paper's updates, and sequences half as long. The
# limits of Table 1 are this much larger there.
QUICK_FACTOR = 100.0

# At quick scale a sixth of the paper's sequences, each with its mirror image. What the students
# learn beside the task is noise, and falls with the root of the number of sequences.
REGRESSION = {
    "smoke": Protocol((8,), 2, Recipe.noisy(steps=50)),
    "quick": Protocol((80,), 4, Recipe.noisy()),
    "paper": Protocol((80,), 8, Recipe.paper(steps=300_000)),
}

# The paper gives neither the updates nor the size. At quick scale decoupled decay leaves few
# neurons and every answer right; 10,000 updates are too few for coupled decay.
RECALL = {
    "smoke": Protocol((8,), 2, Recipe(steps=50, learning_rate=1e-2)),
    "quick": Protocol((32,), 8, Recipe(steps=10_000, learning_rate=1e-2, weight_decay=5e-3)),
    "paper": Protocol((16, 24, 32, 64), 16, Recipe.paper(steps=200_000)),
}

# Keys of the teacher, the same for all seeds, and of the students' weights and data.
TEACHER_KEYS = (500, 501)
REGRESSION_KEY, RECALL_GATED_KEY, RECALL_SIDE_KEY = 21, 503, 504


@dataclass(frozen=True)
class StudentPlan(Generic[SomeTask]):
    """Students that are to be trained, as a run of this name."""

    name: str
    task: SomeTask
    student: StudentMaker
    protocol: Protocol
    key: int

    def studies(self, setting: Setting) -> Studies:
        protocol, student = self.protocol, {"student": self.student}
        seeds = setting.count(protocol.seeds)
        study = Study(self.task, student, protocol.recipe, protocol.widths, seeds, key=self.key)
        return {self.name: study}

    def train(self, setting: Setting) -> Students[SomeTask]:
        run = setting.train(self.name, self.studies(setting)[self.name])
        recipe = self.protocol.recipe
        return Students(self.task, run, recipe.steps, self.student, self.key, decay_words(recipe))


def plan_teacher_students(scale: str) -> StudentPlan[TeacherStudent]:
    """Plan the students of table1 and figure2."""
    protocol = TEACHER_STUDENT[scale]
    task = TeacherStudent.random(protocol.d, key=jax.random.key(TEACHER_KEYS[0]))
    return StudentPlan("teacher_student", task, gated_student(task), protocol, TEACHER_KEYS[1])


def teacher_studies(setting: Setting) -> Studies:
    return plan_teacher_students(setting.scale).studies(setting)


def teacher_students(setting: Setting) -> Students[TeacherStudent]:
    return plan_teacher_students(setting.scale).train(setting)


def fine_tuned(name: str, network: GatedRNN, task: TeacherStudent, setting: Setting) -> GatedRNN:
    """Return a network after more training by the optimiser that trained it."""
    single = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), network)

    def same(width: int, *, key: PRNGKeyArray) -> GatedRNN:
        return single

    recipe = FINE_TUNING[setting.scale]
    study = Study(task, {"student": same}, recipe, (network.neurons + 1,), 1, key=TEACHER_KEYS[1])
    tuned: GatedRNN = setting.train(name, study).models[0]
    return tuned


def plan_regression(scale: str) -> StudentPlan[InContextRegression]:
    task = InContextRegression(mirrored=scale != "paper")
    return StudentPlan("regression", task, gated_student(task), REGRESSION[scale], REGRESSION_KEY)


def regression_studies(setting: Setting) -> Studies:
    return plan_regression(setting.scale).studies(setting)


def regression_students(setting: Setting) -> Students[InContextRegression]:
    return plan_regression(setting.scale).train(setting)


def plan_recall(scale: str, *, side: bool, between: bool = False) -> StudentPlan[AssociativeRecall]:
    """Plan the students of a recall experiment.

    between  with tokens [y, x] between the pairs, the other reading of the paper's sequence
    """
    task = AssociativeRecall(between_tokens=between)

    def side_gated(width: int, *, key: PRNGKeyArray) -> SideGatedRNN:
        return SideGatedRNN.init(d_in=task.d_in, hidden=width, d_out=task.d_out, key=key)

    student = side_gated if side else gated_student(task)
    name, key = ("recall_side", RECALL_SIDE_KEY) if side else ("recall_gated", RECALL_GATED_KEY)
    name += "_between" if between else ""
    return StudentPlan(name, task, student, RECALL[scale], key)


def plan_recall_formats(scale: str, *, side: bool) -> dict[str, StudentPlan[AssociativeRecall]]:
    """Plan the students of a recall experiment by the format of their sequence.

    Pairs come first. The other reading of the paper's sequence is trained at paper scale only.
    """
    names = ("pairs", "in-between tokens") if scale == "paper" else ("pairs",)
    return {
        name: plan_recall(scale, side=side, between=place > 0) for place, name in enumerate(names)
    }


def recall_studies(setting: Setting, *, side: bool) -> Studies:
    plans = plan_recall_formats(setting.scale, side=side).values()
    return {name: study for plan in plans for name, study in plan.studies(setting).items()}


def recall_formats(setting: Setting, *, side: bool) -> RecallFormats:
    """Return the students of a recall experiment by the format of their sequence.

    Pairs decide. Where stored students are judged and those of the other format are missing, it is
    left out; `left_out` says so.
    """
    plans = plan_recall_formats(setting.scale, side=side)

    def students_of(name: str, part: Setting) -> Students[AssociativeRecall] | None:
        try:
            return plans[name].train(part)
        except MissingRun:
            if name == next(iter(plans)):
                raise
            return None

    trained = setting.each([(1.0, partial(students_of, name)) for name in plans])
    return {name: students for name, students in zip(plans, trained, strict=True) if students}


def left_out(groups: RecallFormats, setting: Setting, *, side: bool) -> list[str]:
    """Return a note for every format of the plan that has no students."""
    missing = plan_recall_formats(setting.scale, side=side).keys() - groups.keys()
    return [f"There are no students of the format {name} yet." for name in sorted(missing)]


def decay_words(recipe: Recipe) -> str:
    """Return how weights decay, as in: coupled 0.0001."""
    return f"{recipe.decay} {recipe.weight_decay:g}" if recipe.weight_decay else "no"
