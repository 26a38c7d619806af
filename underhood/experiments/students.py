"""Students that several experiments look at: trained once, kept in the folder of the results."""

from dataclasses import dataclass

import jax
from jaxtyping import PRNGKeyArray

from underhood.experiments.setting import Setting
from underhood.layers import GatedRNN
from underhood.tasks import Task, TeacherStudent
from underhood.training import Recipe, Run, train


@dataclass(frozen=True)
class Students:
    """A task and the run of its students."""

    task: Task
    run: Run


@dataclass(frozen=True)
class Protocol:
    """Sizes and recipe of the teacher-student experiment at one scale."""

    d: int
    width: int
    seeds: int
    recipe: Recipe


# The paper's student at quick scale too; only the recipe is another one.
TEACHER_STUDENT = {
    "smoke": Protocol(2, 8, 2, Recipe.fast(steps=50)),
    "quick": Protocol(4, 100, 4, Recipe.fast()),
    "paper": Protocol(4, 100, 16, Recipe.paper()),
}
# One teacher for all seeds, and the key that the students' weights and data come from.
TEACHER, STUDENTS = 500, 501


def teacher_students(setting: Setting) -> Students:
    """The students of table1 and figure2."""
    protocol = TEACHER_STUDENT[setting.scale]
    task = TeacherStudent.random(protocol.d, key=jax.random.key(TEACHER))

    def student(width: int, *, key: PRNGKeyArray) -> GatedRNN:
        return GatedRNN.init(d_in=protocol.d, hidden=width, gated=width, d_out=protocol.d, key=key)

    run = train(
        student,
        task,
        protocol.recipe,
        widths=protocol.width,
        seeds=setting.count(protocol.seeds),
        key=jax.random.key(STUDENTS),
        out=setting.runs("teacher_student"),
    )
    return Students(task, run)
