"""Students of a comparison, read from its finished result.

Training runs are large and stay where they were trained; a result is small and can be copied. What
needs the students' losses alone reads the result.
"""

import logging
import math
from dataclasses import fields
from pathlib import Path

import numpy as np

from underhood.common.files import Json
from underhood.common.numbers import finite_or_none
from underhood.common.tensors import read_tensors
from underhood.experiments.protocols.comparison import Comparison, ComparisonPlan, TrainedStudent
from underhood.experiments.running.setting import Setting
from underhood.results.architectures import ARCHITECTURE_NAMES
from underhood.results.files import ARRAYS, RESULT, finished_result


class Misfit(Exception):
    """Why a result is not used, as the end of a sentence."""


def read_comparison(plan: ComparisonPlan, setting: Setting) -> Comparison | None:
    """Read the comparison of a plan from the folder of results.

    None if there is none, if the same command runs it anew, or if it does not fit the plan; the
    log says why it does not fit.
    """
    folder = setting.folder / plan.name
    if plan.name in setting.anew or not (folder / RESULT).exists():
        return None
    try:
        return fitting(folder, plan, setting)
    except Misfit as why:
        logging.getLogger("underhood").warning(
            "%s is not used, because %s; training instead", folder / RESULT, why
        )
        return None


def fitting(folder: Path, plan: ComparisonPlan, setting: Setting) -> Comparison:
    """Read the comparison in a folder; raise Misfit if it is not what the plan asks for."""
    result = finished_result(folder / RESULT)
    if result is None:
        raise Misfit("it is damaged, or of a newer version")
    origin = result["provenance"]
    if result["scale"] != setting.scale or origin.get("steps") != plan.recipe.steps:
        raise Misfit(f"it is at {result['scale']} scale, with {origin.get('steps')} updates")
    seeds, training = setting.count(plan.seeds), origin.get("training")
    try:
        students = students_in(read_tensors(folder / ARRAYS).arrays)
        identities = [(s.architecture, s.depth, s.width, s.seed) for s in students]
        rates = {student.rate for student in students}
    except (OSError, LookupError, TypeError, ValueError):
        raise Misfit("its arrays are not those of a comparison") from None
    if identities != planned_students(plan, seeds) or not rates <= set(plan.rates):
        raise Misfit(f"it is of other students, sizes or rates ({seeds} seeds are wanted)")
    read = {"experiment": folder.name, "commit": origin.get("commit"), "training": training}
    comparison = Comparison(plan.task, students, (), seeds, read=read)
    if not isinstance(training, list) or not same_rows(comparison.rows(), result["rows"]):
        raise Misfit("its arrays say other than its rows")
    return comparison


def same_rows(rows: list[Json], stored: list[Json]) -> bool:
    """Tell whether a result's table says what its arrays say."""

    def same(ours: object, theirs: object) -> bool:
        if isinstance(ours, float) and isinstance(theirs, float):
            return math.isclose(ours, theirs, rel_tol=1e-9)
        return ours == theirs

    pairs = zip(rows, stored, strict=False)
    return len(rows) == len(stored) and all(
        name in theirs and same(ours[name], theirs[name]) for ours, theirs in pairs for name in ours
    )


def planned_students(plan: ComparisonPlan, seeds: int) -> list[tuple[str, int, int, int]]:
    """Return architecture, depth, width and seed of every student of a plan, in order."""
    return [
        (architecture.name, depth, width, seed)
        for architecture, depth, width in plan.sizes()
        for seed in range(seeds)
    ]


def students_in(columns: dict[str, np.ndarray]) -> tuple[TrainedStudent, ...]:
    """Return the students whose `columns` these are."""
    lists = [columns[field.name].tolist() for field in fields(TrainedStudent)]
    return tuple(
        TrainedStudent(ARCHITECTURE_NAMES[place], *rest[:-3], *map(finite_or_none, rest[-3:]))
        for place, *rest in zip(*lists, strict=True)
    )
