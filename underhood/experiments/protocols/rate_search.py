"""How the students of a comparison (Figures 4 and 6) are trained, for every depth and width.

The learning rate of an architecture at a depth and width is the best of a small grid. To choose it,
one student per rate is trained for about the first tenth of the steps of the run that follows,
under the same schedule; these students are not judged. A rate that is unstable there is not chosen.
If a student breaks later, by its training loss, all seeds of its size are trained again at the next
smaller rate. Everything else is the paper's: AdamW, cosine to a thousandth. Its weight decay is for
Section 4.1 alone, so there is none here.
"""

import functools

import numpy as np

from underhood.common.files import Json
from underhood.common.numbers import finite_or_none
from underhood.experiments.protocols.architectures import Architecture, MakeStudent
from underhood.experiments.protocols.comparison import Comparison, ComparisonPlan, TrainedStudent
from underhood.experiments.running.setting import Setting
from underhood.training import Run

# A student is broken if its training loss ends above this many times its lowest. Losses end within
# a twentieth of their lowest at paper scale, and within a half at quick scale, whose batches are
# small; those of students that broke end at twice it or more.
BROKEN_ABOVE = 2.0


def compare(plan: ComparisonPlan, setting: Setting) -> Comparison:
    """Search the learning rate and train, for every architecture, depth and width."""
    seeds = setting.count(plan.seeds)
    sizes = plan.sizes()

    def train_size(
        architecture: Architecture, depth: int, width: int, setting: Setting
    ) -> tuple[Run, list[float]]:
        # A run per width: nothing is padded, each resumes by itself, and several can share an
        # accelerator, in processes of their own.
        name = f"{plan.name}_{slug(architecture.name)}_{depth}_{width}"
        make_student = architecture.make(plan.task, depth)
        chosen = search_rate(name, make_student, width, plan, setting.part(0, 0.25))
        broke_at: list[float] = []
        for rate in sorted((rate for rate in plan.rates if rate <= chosen), reverse=True):
            run = setting.part(0.25, 1).train(
                name if rate == chosen else f"{name}_at_{rate:g}",
                make_student,
                plan.task,
                plan.recipe,
                widths=[width],
                seeds=seeds,
                axes={"learning_rate": [rate]},
                key=plan.key,
            )
            if not any(map(is_broken, run.losses)):
                break
            broke_at.append(rate)
        return run, broke_at

    trained = setting.each([(size[1], functools.partial(train_size, *size)) for size in sizes])
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
    return Comparison(plan.task, students, tuple(run for run, _ in trained), seeds, broke)


def search_rate(
    name: str, make_student: MakeStudent, width: int, plan: ComparisonPlan, setting: Setting
) -> float:
    """Return the best learning rate of the grid."""
    if len(plan.rates) == 1:
        return plan.rates[0]
    run = setting.train(
        f"{name}_rates",
        make_student,
        plan.task,
        plan.recipe.first(plan.search_steps),
        widths=[width],
        seeds=1,
        axes={"learning_rate": plan.rates},
        key=plan.key + 1,
    )
    # A student that diverged has no loss. Of two rates with equal losses the smaller is taken.
    candidates = [
        (row["loss"] if row["loss"] is not None else np.inf, row["learning_rate"])
        for row in run.rows
    ]
    return min(candidates)[1]


def hundredths(curve: np.ndarray) -> np.ndarray:
    """Return the means of a loss curve over hundredths of the steps, up to the last step."""
    size = max(len(curve) // 100, 1)
    means: np.ndarray = curve[len(curve) % size :].reshape(-1, size).mean(axis=1)
    return means


def is_broken(curve: np.ndarray) -> bool:
    """Tell whether a student has lost what it had learnt: its loss ends far above the lowest."""
    means = hundredths(curve)
    return not means[-1] <= BROKEN_ABOVE * np.min(means)


def student_of(name: str, depth: int, row: Json, curve: np.ndarray) -> TrainedStudent:
    """Return a member of a run; its training loss is the mean over the last hundredth."""
    return TrainedStudent(
        name,
        depth,
        row["width"],
        row["seed"],
        row["learning_rate"],
        row["parameters"],
        finite_or_none(hundredths(curve)[-1]),
        row["loss"],
        row.get("validation_loss", row["loss"]),
    )


def slug(name: str) -> str:
    """Return an architecture's name as part of a folder's."""
    kept = "".join(letter if letter.isalnum() else "_" for letter in name.lower())
    return "_".join(part for part in kept.split("_") if part)
