"""Students that several experiments look at: trained once, kept in the folder of the results."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jaxtyping import PRNGKeyArray

from underhood.experiments.running.setting import Setting
from underhood.layers import GatedRNN, SideGatedRNN
from underhood.tasks import AssociativeRecall, InContextRegression, Task, TeacherStudent
from underhood.training import Adam, Recipe, Run


@dataclass(frozen=True)
class Students:
    """A task, the run of its students, and how many steps they took."""

    task: Any
    run: Run
    steps: int


@dataclass(frozen=True)
class Protocol:
    """Sizes and recipe of a group of students at one scale."""

    width: int
    seeds: int
    recipe: Recipe
    d: int = 4


# The paper's student at quick scale too; only the recipe is another one. A larger step than
# Recipe.fast's, a shorter memory of squared gradients and half the length leave the fewest neurons
# (docs/recipes.md, the last block of its table).
TEACHER_STUDENT = {
    "smoke": Protocol(8, 2, Recipe.fast(steps=50), d=2),
    "quick": Protocol(100, 4, Recipe.fast(learning_rate=4e-2, optimiser=Adam(b2=0.99), length=16)),
    "paper": Protocol(100, 16, Recipe.paper()),
}

# At quick scale a sixth of the paper's sequences, each with its mirror image: what the students
# learn that is of no use is noise, and falls with the root of their number.
REGRESSION = {
    "smoke": Protocol(8, 2, Recipe.noisy(steps=50)),
    "quick": Protocol(80, 4, Recipe.noisy(weight_decay=7e-4)),
    "paper": Protocol(80, 8, Recipe.paper(steps=300_000)),
}

# The paper gives neither the steps nor the size. Decay this strong leaves few neurons and still
# every answer right; weaker decay leaves more, stronger decay loses answers.
RECALL = {
    "smoke": Protocol(8, 2, Recipe(steps=50, learning_rate=1e-2)),
    "quick": Protocol(32, 8, Recipe(steps=10_000, learning_rate=1e-2, weight_decay=5e-3)),
    "paper": Protocol(32, 16, Recipe(steps=100_000, learning_rate=1e-2, weight_decay=5e-3)),
}

# One teacher for all seeds, and the key that the students' weights and data come from.
TEACHER, TEACHER_STUDENTS, REGRESSION_STUDENTS = 500, 501, 21
LITERAL_TEACHER, LITERAL_STUDENTS = 100, 7
RECALL_GATED, RECALL_SIDE = 503, 504


def gated_rnn(task: Task) -> Callable[..., GatedRNN]:
    """Students with as many gate outputs as neurons."""

    def student(width: int, *, key: PRNGKeyArray) -> GatedRNN:
        return GatedRNN.init(d_in=task.d_in, hidden=width, gated=width, d_out=task.d_out, key=key)

    return student


def teacher_students(setting: Setting) -> Students:
    """The students of table1 and figure2."""
    protocol = TEACHER_STUDENT[setting.scale]
    task = TeacherStudent.random(protocol.d, key=jax.random.key(TEACHER))
    return trained("teacher_student", gated_rnn(task), task, protocol, TEACHER_STUDENTS, setting)


def literal_students(setting: Setting) -> Students:
    """Students of the paper's recipe with its weight decay read literally, on another teacher."""
    protocol = Protocol(100, 16, Recipe.paper(literal=True))
    task = TeacherStudent.random(protocol.d, key=jax.random.key(LITERAL_TEACHER))
    return trained("literal", gated_rnn(task), task, protocol, LITERAL_STUDENTS, setting)


def regression_students(setting: Setting) -> Students:
    """The students of table2."""
    protocol = REGRESSION[setting.scale]
    task = InContextRegression(mirrored=setting.scale != "paper")
    return trained("regression", gated_rnn(task), task, protocol, REGRESSION_STUDENTS, setting)


def recall_students(setting: Setting, *, side: bool) -> Students:
    """The students of recall_gated and recall_side."""
    protocol, task = RECALL[setting.scale], AssociativeRecall()

    def side_gated(width: int, *, key: PRNGKeyArray) -> SideGatedRNN:
        return SideGatedRNN.init(d_in=task.d_in, hidden=width, d_out=task.d_out, key=key)

    if side:
        return trained("recall_side", side_gated, task, protocol, RECALL_SIDE, setting)
    return trained("recall_gated", gated_rnn(task), task, protocol, RECALL_GATED, setting)


def trained(
    name: str,
    make_student: Callable[..., Any],
    task: Task,
    protocol: Protocol,
    key: int,
    setting: Setting,
) -> Students:
    """A run by its protocol."""
    run = setting.train(
        name,
        make_student,
        task,
        protocol.recipe,
        widths=protocol.width,
        seeds=setting.count(protocol.seeds),
        key=key,
    )
    return Students(task, run, protocol.recipe.steps)
