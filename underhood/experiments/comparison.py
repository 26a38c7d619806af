"""Every architecture on one task (Figures 4 and 6): one or two layers, several widths and seeds.

The learning rate of an architecture at a depth and width is the best of a small grid: of students
that are not judged, one per rate, each trained for the first tenth of the steps or so of the very
run that follows, under its schedule. What is not stable there is not chosen. Everything else is the
paper's: AdamW, cosine to a thousandth. Its weight decay is for Section 4.1 alone, so there is none
here.
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from underhood.experiments.architectures import ARCHITECTURES, Architecture, MakeStudent
from underhood.experiments.setting import Setting
from underhood.tasks import Task
from underhood.training import Recipe, Run


@dataclass(frozen=True)
class Plan:
    """Sizes and steps of a comparison at one scale; `widths` by depth."""

    widths: dict[int, tuple[int, ...]]
    seeds: int
    recipe: Recipe
    rates: tuple[float, ...]
    search_steps: int


@dataclass(frozen=True)
class Student:
    """One trained student: who it is, and its losses; None where training lost it."""

    architecture: str
    depth: int
    width: int
    seed: int
    rate: float
    parameters: int
    training: float | None
    loss: float | None
    validation: float | None


@dataclass(frozen=True)
class Comparison:
    """All students of a task and the runs they come from."""

    task: Task
    students: tuple[Student, ...]
    runs: tuple[Run, ...]
    seeds: int

    def pick(self, name: str, depth: int | None = None, width: int | None = None) -> list[Student]:
        """The students of an architecture, of one depth and width if given."""
        return [
            one
            for one in self.students
            if one.architecture == name
            and depth in (None, one.depth)
            and width in (None, one.width)
        ]

    def widest(self, name: str, depth: int) -> list[Student]:
        """The students of the largest width of a depth."""
        found = self.pick(name, depth)
        return [one for one in found if one.width == max(other.width for other in found)]

    def groups(self, name: str | None = None) -> list[list[Student]]:
        """Students that differ by their seed alone."""
        found: dict[Any, list[Student]] = {}
        for one in self.students:
            if name in (None, one.architecture):
                found.setdefault((one.architecture, one.depth, one.width), []).append(one)
        return list(found.values())

    def best(
        self, name: str, measure: str, most_parameters: float = np.inf
    ) -> list[Student] | None:
        """The group with the lowest median, among those with at most so many parameters."""
        fits = [one for one in self.groups(name) if one[0].parameters <= most_parameters]
        return min(fits, key=lambda one: np.median(self.values(one, measure)), default=None)

    def values(self, students: Iterable[Student], measure: str) -> list[float]:
        """Losses; a student that was lost counts as one that answers zero."""
        nothing = self.task.validation() if measure == "validation" else self.task
        return [
            value if (value := getattr(one, measure)) is not None else nothing.zero_loss
            for one in students
        ]

    def rows(self) -> list[dict[str, Any]]:
        """A row per group: sizes, rate, quartiles of the losses."""
        found = []
        for group in self.groups():
            first = group[0]
            row: dict[str, Any] = {
                "architecture": first.architecture,
                "layers": first.depth,
                "width": first.width,
                "parameters": first.parameters,
                "rate": first.rate,
            }
            scaled = float(np.median(self.values(group, "loss"))) / self.task.scale
            row["loss over scale"] = scaled
            for measure in ("loss", "validation"):
                low, middle, high = np.quantile(self.values(group, measure), (0.25, 0.5, 0.75))
                row |= {
                    f"{measure}": float(middle),
                    f"{measure}, quartiles": f"{low:.3g} to {high:.3g}",
                }
            found.append(row)
        return found

    def arrays(self) -> dict[str, np.ndarray]:
        """One entry per student; `architecture` counts in the order of ARCHITECTURES."""
        names = [one.name for one in ARCHITECTURES]
        columns: dict[str, list[Any]] = {
            "architecture": [names.index(one.architecture) for one in self.students]
        }
        for field in ("depth", "width", "seed", "parameters"):
            columns[field] = [getattr(one, field) for one in self.students]
        found = {name: np.array(values, np.int64) for name, values in columns.items()}
        for field in ("rate", "training", "loss", "validation"):
            values = [getattr(one, field) for one in self.students]
            found[field] = np.array([np.nan if one is None else one for one in values])
        # Loss curves, 100 points each.
        curves = np.concatenate([one.losses for one in self.runs])
        every = -(-curves.shape[1] // 100)
        found["curves"] = curves[:, every - 1 :: every].astype(np.float32)
        found["curve_steps"] = self.runs[0].steps[every - 1 :: every]
        return found


def compare(name: str, task: Task, plan: Plan, key: int, setting: Setting) -> Comparison:
    """Search the learning rate and train, for every architecture, depth and width."""
    seeds = setting.count(plan.seeds)
    cells = [
        (architecture, depth, width)
        for architecture in ARCHITECTURES
        for depth in architecture.depths
        for width in plan.widths.get(depth, ())
    ]

    def run_of(architecture: Architecture, depth: int, width: int, setting: Setting) -> Run:
        # A run per width: nothing is padded, each resumes by itself, and several can share an
        # accelerator, in processes of their own.
        run_name = f"{name}_{slug(architecture.name)}_{depth}_{width}"
        make = architecture.make(task, depth)
        rate = search(run_name, make, width, task, plan, key + 1, setting.part(0, 0.25))
        return setting.part(0.25, 1).train(
            run_name,
            make,
            task,
            plan.recipe,
            widths=width,
            seeds=seeds,
            axes={"learning_rate": [rate]},
            key=key,
        )

    runs = setting.each([(cell[1], functools.partial(run_of, *cell)) for cell in cells])
    students = tuple(
        student_of(architecture.name, depth, row, curve)
        for (architecture, depth, _), run in zip(cells, runs, strict=True)
        for row, curve in zip(run.rows, run.losses, strict=True)
    )
    return Comparison(task, students, tuple(runs), seeds)


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


def student_of(name: str, depth: int, row: dict[str, Any], curve: np.ndarray) -> Student:
    """A member of a run. Training loss: the mean over the last hundredth of the steps."""
    last = float(np.mean(curve[-max(len(curve) // 100, 1) :]))
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
