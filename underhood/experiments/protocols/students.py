"""Students that several experiments look at: trained once, kept in the folder of the results."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from underhood.common.decay import kinds
from underhood.common.files import Json
from underhood.experiments.protocols.architectures import gated_student
from underhood.experiments.running import Outcome, Setting
from underhood.layers import GatedRNN, Layer, SideGatedRNN
from underhood.tasks import AssociativeRecall, InContextRegression, Task, TeacherStudent
from underhood.training import Adam, Recipe, Run

SomeTask = TypeVar("SomeTask", bound=Task)


@dataclass(frozen=True)
class Students(Generic[SomeTask]):
    """A task, the run of its students, and how many steps they took."""

    task: SomeTask
    run: Run
    steps: int

    def visit(self, setting: Setting) -> Iterator[tuple[int, Any, Json]]:  # Any: the layer
        """Yield seed, trained network and row of every student; report the progress."""
        for seed in setting.over(range(len(self.run.models))):
            yield seed, self.run.models[seed], self.run.rows[seed]

    def complete(self, outcome: Outcome) -> Outcome:
        """Return the outcome with the seeds, steps, losses and run of these students."""
        arrays = outcome.arrays | {"steps": self.run.steps, "losses": self.run.losses}
        seeds, runs = range(len(self.run.models)), (self.run, *outcome.runs)
        return replace(outcome, seeds=seeds, steps=self.steps, arrays=arrays, runs=runs)


def column(rows: Iterable[Json], name: str) -> list[float]:
    """Return the numbers of this name; infinity for None, nothing for a row without it."""
    return [np.inf if row[name] is None else row[name] for row in rows if name in row]


def neuron_counts(model: GatedRNN) -> Json:
    """Return the number of neurons, in all and of each kind, and of gate outputs."""
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
    """Sizes and recipe of a group of students at one scale."""

    width: int
    seeds: int
    recipe: Recipe
    d: int = 4


# The paper's student at quick scale too, with another recipe. A larger learning rate than
# Recipe.fast's, a shorter memory of squared gradients and half the length leave the fewest neurons
# (docs/recipes.md, the last block of its table).
TEACHER_STUDENT = {
    "smoke": Protocol(8, 2, Recipe.fast(steps=50), d=2),
    "quick": Protocol(100, 4, Recipe.fast(learning_rate=4e-2, optimiser=Adam(b2=0.99), length=16)),
    "paper": Protocol(100, 16, Recipe.paper()),
}
LITERAL = Protocol(100, 16, Recipe.paper(literal=True))

# At quick scale a sixth of the paper's sequences, each with its mirror image. What the students
# learn beside the task is noise, and falls with the root of the number of sequences.
REGRESSION = {
    "smoke": Protocol(8, 2, Recipe.noisy(steps=50)),
    "quick": Protocol(80, 4, Recipe.noisy(weight_decay=7e-4)),
    "paper": Protocol(80, 8, Recipe.paper(steps=300_000)),
}

# The paper gives neither the steps nor the size. Decay this strong leaves few neurons and still
# every answer right; weaker decay leaves more neurons, stronger decay makes some answers wrong.
RECALL = {
    "smoke": Protocol(8, 2, Recipe(steps=50, learning_rate=1e-2)),
    "quick": Protocol(32, 8, Recipe(steps=10_000, learning_rate=1e-2, weight_decay=5e-3)),
    "paper": Protocol(32, 16, Recipe(steps=100_000, learning_rate=1e-2, weight_decay=5e-3)),
}

# Keys of the teacher, the same for all seeds, and of the students' weights and data.
TEACHER_KEYS, LITERAL_KEYS = (500, 501), (100, 7)
REGRESSION_KEY, RECALL_GATED_KEY, RECALL_SIDE_KEY = 21, 503, 504


def teacher_students(setting: Setting, *, literal: bool = False) -> Students[TeacherStudent]:
    """Return the students of table1 and figure2.

    literal  by the paper's recipe, its weight decay read literally; of another teacher
    """
    if literal:
        name, keys, protocol = "literal", LITERAL_KEYS, LITERAL
    else:
        name, keys, protocol = "teacher_student", TEACHER_KEYS, TEACHER_STUDENT[setting.scale]
    task = TeacherStudent.random(protocol.d, key=jax.random.key(keys[0]))
    return train_students(name, task, protocol, keys[1], setting)


def regression_students(setting: Setting) -> Students[InContextRegression]:
    task = InContextRegression(mirrored=setting.scale != "paper")
    return train_students("regression", task, REGRESSION[setting.scale], REGRESSION_KEY, setting)


def recall_students(setting: Setting, *, side: bool) -> Students[AssociativeRecall]:
    """Return the students of recall_side, or of recall_gated."""
    protocol, task = RECALL[setting.scale], AssociativeRecall()

    def side_gated(width: int, *, key: PRNGKeyArray) -> SideGatedRNN:
        return SideGatedRNN.init(d_in=task.d_in, hidden=width, d_out=task.d_out, key=key)

    if side:
        return train_students("recall_side", task, protocol, RECALL_SIDE_KEY, setting, side_gated)
    return train_students("recall_gated", task, protocol, RECALL_GATED_KEY, setting)


def train_students(
    name: str,
    task: SomeTask,
    protocol: Protocol,
    key: int,
    setting: Setting,
    make_student: Callable[..., Layer] | None = None,
) -> Students[SomeTask]:
    """Train students by a protocol; gated RNNs where no make_student is given."""
    student, recipe = make_student or gated_student(task), protocol.recipe
    widths, seeds = [protocol.width], setting.count(protocol.seeds)
    run = setting.train(name, student, task, recipe, widths=widths, seeds=seeds, key=key)
    return Students(task, run, recipe.steps)
