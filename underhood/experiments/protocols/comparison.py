"""Students of every architecture on one task (Figures 4 and 6): who they are, and their losses."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from underhood.experiments.protocols.architectures import ARCHITECTURES, Architecture
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

    def sizes(self) -> list[tuple[Architecture, int, int]]:
        """Every architecture with each of its depths and widths."""
        return [
            (architecture, depth, width)
            for architecture in ARCHITECTURES
            for depth in architecture.depths
            for width in self.widths.get(depth, ())
        ]


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
    """All students of a task and the runs they come from; in words, what broke at which rate.

    read    where the students are from a finished result, which has no runs: what it tells of them
    """

    task: Task
    students: tuple[Student, ...]
    runs: tuple[Run, ...]
    seeds: int
    broke: tuple[str, ...] = ()
    read: dict[str, Any] | None = None

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

    def columns(self) -> dict[str, np.ndarray]:
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
        return found

    def arrays(self) -> dict[str, np.ndarray]:
        """The columns, and the loss curves of all students, 100 points each."""
        found = self.columns()
        curves = np.concatenate([one.losses for one in self.runs])
        every = -(-curves.shape[1] // 100)
        found["curves"] = curves[:, every - 1 :: every].astype(np.float32)
        found["curve_steps"] = self.runs[0].steps[every - 1 :: every]
        return found
