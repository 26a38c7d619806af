"""Students of a comparison as its finished result has them.

Runs are large, and kept where they were trained; a result is small, and travels. So what is made
from the students' losses alone needs no runs.
"""

import numpy as np
import safetensors.numpy

from underhood.experiments.architectures import ARCHITECTURES
from underhood.experiments.comparison import Comparison, Plan, Student
from underhood.experiments.results import ARRAYS, whole_result
from underhood.experiments.setting import Setting
from underhood.tasks import Task

# In the order of a Student's.
FIELDS = (
    "architecture",
    *("depth", "width", "seed", "rate", "parameters"),
    *("training", "loss", "validation"),
)


def earlier(name: str, task: Task, plan: Plan, setting: Setting) -> Comparison | None:
    """The comparison of this name, if the folder has its result and it is not made anew.

    None too where the result is of other students than the plan asks for.
    """
    folder = setting.folder / name
    result = None
    if name not in setting.anew:
        result = whole_result(folder / "result.json", setting.scale, setting.seeds)
    if result is None or result["provenance"].get("steps") != plan.recipe.steps:
        return None
    seeds = setting.count(plan.seeds)
    try:
        students = students_in(safetensors.numpy.load_file(folder / ARRAYS))
    except (KeyError, IndexError, ValueError):
        return None
    if [identity(one) for one in students] != planned(plan, seeds):
        return None
    if any(one.rate not in plan.rates for one in students):
        return None
    told = {
        "experiment": name,
        "commit": result["provenance"].get("commit"),
        "training": result["provenance"].get("training", []),
    }
    return Comparison(task, students, (), seeds, read=told)


def planned(plan: Plan, seeds: int) -> list[tuple[str, int, int, int]]:
    """Whom a plan trains, in the order of a comparison."""
    return [
        (architecture.name, depth, width, seed)
        for architecture in ARCHITECTURES
        for depth in architecture.depths
        for width in plan.widths.get(depth, ())
        for seed in range(seeds)
    ]


def identity(student: Student) -> tuple[str, int, int, int]:
    return student.architecture, student.depth, student.width, student.seed


def students_in(columns: dict[str, np.ndarray]) -> tuple[Student, ...]:
    """The students whose `columns` these are."""
    names = [one.name for one in ARCHITECTURES]
    plain = {field: columns[field].tolist() for field in FIELDS}
    return tuple(
        Student(names[kind], depth, width, seed, rate, parameters, *map(finite, losses))
        for kind, depth, width, seed, rate, parameters, *losses in zip(*plain.values(), strict=True)
    )


def finite(value: float) -> float | None:
    """A loss; None for that of a student that was lost."""
    return value if np.isfinite(value) else None
