"""How the students of a comparison (Figures 4 and 6) are trained, for every depth and width.

The learning rate of an architecture at a depth and width is the best of a small grid: of students
that are not judged, one per rate, each trained for the first tenth of the steps or so of the very
run that follows, under its schedule. What is not stable there is not chosen. What breaks later, by
its training loss, is trained again at the next smaller rate, all seeds of that size. Everything
else is the paper's: AdamW, cosine to a thousandth. Its weight decay is for Section 4.1 alone, so
there is none here.
"""

import functools
from typing import Any

import numpy as np

from underhood.experiments.protocols.architectures import Architecture, MakeStudent
from underhood.experiments.protocols.comparison import Comparison, Plan, Student
from underhood.experiments.running.setting import Setting
from underhood.tasks import Task
from underhood.training import Run

# Training losses end within a twentieth of their lowest at paper scale, and within a half at quick
# scale, whose batches are small; of students that broke, at twice it or more.
BROKEN = 2.0


def compare(name: str, task: Task, plan: Plan, key: int, setting: Setting) -> Comparison:
    """Search the learning rate and train, for every architecture, depth and width."""
    seeds = setting.count(plan.seeds)
    sizes = plan.sizes()

    def run_of(
        architecture: Architecture, depth: int, width: int, setting: Setting
    ) -> tuple[Run, list[float]]:
        # A run per width: nothing is padded, each resumes by itself, and several can share an
        # accelerator, in processes of their own.
        run_name = f"{name}_{slug(architecture.name)}_{depth}_{width}"
        make = architecture.make(task, depth)
        chosen = search(run_name, make, width, task, plan, key + 1, setting.part(0, 0.25))
        broke_at: list[float] = []
        for rate in sorted((one for one in plan.rates if one <= chosen), reverse=True):
            run = setting.part(0.25, 1).train(
                run_name if rate == chosen else f"{run_name}_at_{rate:g}",
                make,
                task,
                plan.recipe,
                widths=width,
                seeds=seeds,
                axes={"learning_rate": [rate]},
                key=key,
            )
            if not any(map(broken, run.losses)):
                break
            broke_at.append(rate)
        return run, broke_at

    found = setting.each([(size[1], functools.partial(run_of, *size)) for size in sizes])
    runs = [run for run, _ in found]
    broke = tuple(
        f"{architecture.name}, {depth} × {width}, at {rate:g}"
        for (architecture, depth, width), (_, rates) in zip(sizes, found, strict=True)
        for rate in rates
    )
    students = tuple(
        student_of(architecture.name, depth, row, curve)
        for (architecture, depth, _), run in zip(sizes, runs, strict=True)
        for row, curve in zip(run.rows, run.losses, strict=True)
    )
    return Comparison(task, students, tuple(runs), seeds, broke)


def search(
    run_name: str,
    make: MakeStudent,
    width: int,
    task: Task,
    plan: Plan,
    key: int,
    setting: Setting,
) -> float:
    """The best learning rate."""
    if len(plan.rates) == 1:
        return plan.rates[0]
    run = setting.train(
        f"{run_name}_rates",
        make,
        task,
        plan.recipe.first(plan.search_steps),
        widths=width,
        seeds=1,
        axes={"learning_rate": plan.rates},
        key=key,
    )
    # A student that was lost has no loss. Of two that are equal the smaller rate is taken.
    found = [
        (row["loss"] if row["loss"] is not None else np.inf, row["learning_rate"])
        for row in run.rows
    ]
    return min(found)[1]


def hundredths(curve: np.ndarray) -> np.ndarray:
    """Means of a loss curve over hundredths of the steps, the last of them whole."""
    size = max(len(curve) // 100, 1)
    means: np.ndarray = curve[len(curve) % size :].reshape(-1, size).mean(axis=1)
    return means


def broken(curve: np.ndarray) -> bool:
    """Whether a student has lost what it had learnt: its loss ends far above the lowest."""
    means = hundredths(curve)
    return not means[-1] <= BROKEN * np.min(means)


def student_of(name: str, depth: int, row: dict[str, Any], curve: np.ndarray) -> Student:
    """A member of a run. Training loss: the mean over the last hundredth of the steps."""
    last = float(hundredths(curve)[-1])
    return Student(
        name,
        depth,
        row["width"],
        row["seed"],
        row["learning_rate"],
        row["parameters"],
        last if np.isfinite(last) else None,
        row["loss"],
        row.get("validation_loss", row["loss"]),
    )


def slug(name: str) -> str:
    """An architecture's name as part of a folder's."""
    kept = "".join(one if one.isalnum() else "_" for one in name.lower())
    return "_".join(part for part in kept.split("_") if part)
