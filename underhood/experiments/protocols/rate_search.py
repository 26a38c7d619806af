"""How the students of a comparison (Figures 4 and 6) are trained, for every depth and width.

The learning rate of an architecture at a depth and width is the best of a small grid. To choose it,
one student per rate is trained for about the first tenth of the steps of the run that follows,
under the same schedule; these students are not judged. A rate that is unstable there is not chosen.
If a student breaks later, by its training loss, all seeds of its size are trained again at the next
smaller rate. Everything else is the paper's: AdamW, cosine to a thousandth. Its weight decay is for
Section 4.1 alone, so there is none here.
"""

import functools
import re

import numpy as np

from underhood.common.files import Json
from underhood.common.numbers import finite_or_none
from underhood.experiments.protocols.architectures import Architecture, MakeStudent
from underhood.experiments.protocols.comparison import Comparison, ComparisonPlan, TrainedStudent
from underhood.experiments.protocols.students import column
from underhood.experiments.running.setting import Setting
from underhood.training import Run

# A student is broken if its training loss ends above this many times its lowest. Losses end within
# a twentieth of their lowest at paper scale, and within a half at quick scale, whose batches are
# small; those of students that broke end at twice it or more.
BROKEN_ABOVE = 2.0


def compare(plan: ComparisonPlan, setting: Setting) -> Comparison:
    """Search the learning rate and train, for every architecture, depth and width."""
    sizes = plan.sizes()
    trained = setting.each(
        [(size[1], functools.partial(train_size, plan, *size)) for size in sizes]
    )
    broke = tuple(
        f"{architecture.name}, {depth} × {width}, at {rate:g}"
        for (architecture, depth, width), (_, rates) in zip(sizes, trained, strict=True)
        for rate in rates
    )
    students = tuple(
        student_of(architecture.name, depth, row, curve)
        for (architecture, depth, _), (run, _) in zip(sizes, trained, strict=True)
        for row, curve in zip(run.rows, run.losses, strict=True)
    )
    runs = tuple(run for run, _ in trained)
    return Comparison(plan.task, students, runs, setting.count(plan.seeds), broke)


def train_size(
    plan: ComparisonPlan, architecture: Architecture, depth: int, width: int, setting: Setting
) -> tuple[Run, list[float]]:
    """Return the run of one size, and the learning rates at which it broke.

    A run per width: nothing is padded, each resumes by itself, and several can share an
    accelerator, in processes of their own.
    """
    name = f"{plan.name}_{slug(architecture.name)}_{depth}_{width}"
    student, task, recipe = architecture.make(plan.task, depth), plan.task, plan.recipe
    chosen = search_rate(name, student, width, plan, setting.part(0, 0.25))
    widths, seeds, key = [width], setting.count(plan.seeds), plan.key
    broke_at: list[float] = []
    for rate in sorted((rate for rate in plan.rates if rate <= chosen), reverse=True):
        title, axes = name if rate == chosen else f"{name}_at_{rate:g}", {"learning_rate": [rate]}
        run = setting.part(0.25, 1).train(
            title, student, task, recipe, widths=widths, seeds=seeds, axes=axes, key=key
        )
        if not any(map(is_broken, run.losses)):
            break
        broke_at.append(rate)
    return run, broke_at


def search_rate(
    name: str, make_student: MakeStudent, width: int, plan: ComparisonPlan, setting: Setting
) -> float:
    """Return the best learning rate of the grid."""
    if len(plan.rates) == 1:
        return plan.rates[0]
    title, recipe = f"{name}_rates", plan.recipe.first(plan.search_steps)
    key, axes = plan.key + 1, {"learning_rate": plan.rates}
    run = setting.train(
        title, make_student, plan.task, recipe, widths=[width], seeds=1, axes=axes, key=key
    )
    # A student that diverged has no loss. Of two rates with equal losses the smaller is taken.
    losses, rates = column(run.rows, "loss"), column(run.rows, "learning_rate")
    return min(zip(losses, rates, strict=True))[1]


def hundredths(curve: np.ndarray) -> np.ndarray:
    """Return the means of a loss curve over hundredths of the steps, up to the last step."""
    size = max(len(curve) // 100, 1)
    means: np.ndarray = curve[len(curve) % size :].reshape(-1, size).mean(axis=1)
    return means


def is_broken(curve: np.ndarray) -> bool:
    """Tell whether a student has lost what it had learnt: its loss ends far above the lowest."""
    means = hundredths(curve)
    return not means[-1] <= BROKEN_ABOVE * np.min(means)


def student_of(architecture: str, depth: int, row: Json, curve: np.ndarray) -> TrainedStudent:
    """Return a member of a run; its training loss is the mean over the last hundredth."""
    columns = "width", "seed", "learning_rate", "parameters", "loss"
    width, seed, rate, parameters, loss = (row[name] for name in columns)
    losses = finite_or_none(hundredths(curve)[-1]), loss, row.get("validation_loss", loss)
    return TrainedStudent(architecture, depth, width, seed, rate, parameters, *losses)


def slug(name: str) -> str:
    """Return an architecture's name as part of a folder's."""
    return "_".join(re.findall(r"[^\W_]+", name.lower()))
