"""Students of a comparison as its finished result has them.

Runs are large, and kept where they were trained; a result is small, and travels. So what is made
from the students' losses alone needs no runs.
"""

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from underhood.experiments.protocols.architectures import ARCHITECTURES
from underhood.experiments.protocols.comparison import Comparison, Plan, Student
from underhood.experiments.running.outcomes import ARRAYS, whole_result
from underhood.experiments.running.setting import Setting
from underhood.tasks import Task

log = logging.getLogger("underhood")

# In the order of a Student's.
FIELDS = (
    "architecture",
    *("depth", "width", "seed", "rate", "parameters"),
    *("training", "loss", "validation"),
)


class Misfit(Exception):
    """Why a result is not used, as the end of a sentence."""


def earlier(name: str, task: Task, plan: Plan, setting: Setting) -> Comparison | None:
    """The comparison of this name, if the folder has its result and it is not made anew.

    None too where the result does not fit, damaged or of other students; the log says why.
    """
    folder = setting.folder / name
    if name in setting.anew or not (folder / "result.json").exists():
        return None
    try:
        return fitting(folder, task, plan, setting)
    except Misfit as why:
        log.warning("%s is not used, because %s; training instead", folder / "result.json", why)
        return None


def fitting(folder: Path, task: Task, plan: Plan, setting: Setting) -> Comparison:
    """The comparison that a folder's result tells of, if it is what the plan asks for."""
    result = whole_result(folder / "result.json")
    if result is None:
        raise Misfit("it is damaged, or of a newer version")
    origin = result["provenance"]
    if result["scale"] != setting.scale or origin.get("steps") != plan.recipe.steps:
        raise Misfit(f"it is at {result['scale']} scale, with {origin.get('steps')} updates")
    seeds, training = setting.count(plan.seeds), origin.get("training")
    try:
        students = students_in(safetensors.numpy.load_file(folder / ARRAYS))
        who = [identity(one) for one in students]
        rates = {one.rate for one in students}
    except (OSError, LookupError, TypeError, ValueError, safetensors.SafetensorError):
        raise Misfit("its arrays are not those of a comparison") from None
    if who != planned(plan, seeds) or not rates <= set(plan.rates):
        raise Misfit(f"it is of other students, sizes or rates ({seeds} seeds are wanted)")
    told = {"experiment": folder.name, "commit": origin.get("commit"), "training": training}
    found = Comparison(task, students, (), seeds, read=told)
    if not isinstance(training, list) or not same(found.rows(), result["rows"]):
        raise Misfit("its arrays say other than its rows")
    return found


def same(rows: list[dict[str, Any]], told: Any) -> bool:
    """Whether a result's table says of the students what its arrays say."""

    def alike(one: Any, other: Any) -> bool:
        if isinstance(one, float) and isinstance(other, float):
            return math.isclose(one, other, rel_tol=1e-9)
        return bool(one == other)

    try:
        pairs = list(zip(rows, told, strict=True))
        return all(alike(one[key], other[key]) for one, other in pairs for key in one)
    except (LookupError, TypeError, ValueError):
        return False


def planned(plan: Plan, seeds: int) -> list[tuple[str, int, int, int]]:
    """Whom a plan trains, in the order of a comparison."""
    return [
        (architecture.name, depth, width, seed)
        for architecture, depth, width in plan.sizes()
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
