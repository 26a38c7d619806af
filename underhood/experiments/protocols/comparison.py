"""Students of every architecture on one task (Figures 4 and 6), and their losses."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

import numpy as np

from underhood.common.files import Json
from underhood.experiments.protocols.architectures import ARCHITECTURES, Architecture
from underhood.experiments.running.outcomes import Outcome
from underhood.results.architectures import ARCHITECTURE_NAMES
from underhood.tasks import Task
from underhood.training import Recipe, Run

# Widths of the students, by depth.
Widths = dict[int, tuple[int, ...]]
PAPER_WIDTHS: Widths = {1: (8, 16, 32, 64, 128), 2: (8, 16, 32, 64)}
# Learning rates to choose from, and the updates after which the rate is chosen, by scale.
SEARCH: dict[str, tuple[tuple[float, ...], int]] = {
    "smoke": ((1e-2,), 5),
    "quick": ((3e-3, 1e-2, 3e-2, 1e-1), 1_000),
    "paper": ((1e-3, 3e-3, 1e-2, 3e-2), 10_000),
}


@dataclass(frozen=True)
class ComparisonPlan:
    """What the comparison of this name trains at one scale; `key` gives weights and data."""

    name: str
    task: Task
    key: int
    widths: Widths
    seeds: int
    recipe: Recipe
    rates: tuple[float, ...]
    search_steps: int

    def sizes(self) -> list[tuple[Architecture, int, int]]:
        """Return every architecture with each of its depths and widths."""
        return [
            (architecture, depth, width)
            for architecture in ARCHITECTURES
            for depth in architecture.depths
            for width in self.widths.get(depth, ())
        ]


@dataclass(frozen=True)
class TrainedStudent:
    """One student of a comparison and its losses, which are None if its training diverged."""

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
    """All students of a task.

    runs   that the students come from; empty if they were read from a finished result
    broke  in words, sizes that broke and the learning rates at which they did
    read   provenance of the finished result the students were read from; None if trained now
    """

    task: Task
    students: tuple[TrainedStudent, ...]
    runs: tuple[Run, ...]
    seeds: int
    broke: tuple[str, ...] = ()
    read: Json | None = None

    def widest(self, name: str, depth: int) -> list[TrainedStudent]:
        """Return the students of the largest width of an architecture at a depth."""
        groups = [group for group in self.groups(name) if group[0].depth == depth]
        return max(groups, key=lambda group: group[0].width, default=[])

    def losses(self, names: Iterable[str], depth: int, measure: str) -> list[list[float]]:
        """Return the losses of the widest students of each architecture at a depth."""
        return [self.values(self.widest(name, depth), measure) for name in names]

    def groups(self, name: str | None = None) -> list[list[TrainedStudent]]:
        """Return groups of students that differ in their seed only."""
        groups: dict[tuple[str, int, int], list[TrainedStudent]] = {}
        for student in self.students:
            if name in (None, student.architecture):
                size = student.architecture, student.depth, student.width
                groups.setdefault(size, []).append(student)
        return list(groups.values())

    def best(
        self, name: str, measure: str, most_parameters: float = np.inf
    ) -> list[TrainedStudent] | None:
        """Return the group with the lowest median, among those with at most so many parameters."""
        fits = [group for group in self.groups(name) if group[0].parameters <= most_parameters]
        return min(fits, key=lambda group: np.median(self.values(group, measure)), default=None)

    def values(self, students: Iterable[TrainedStudent], measure: str) -> list[float]:
        """Return losses; a student that diverged counts as one that answers zero."""
        task = self.task.validation() if measure == "validation" else self.task
        losses = [getattr(student, measure) for student in students]
        return [task.zero_loss if loss is None else loss for loss in losses]

    def rows(self) -> list[Json]:
        """Return a row per group: sizes, rate, quartiles of the losses."""
        rows = []
        for group in self.groups():
            first = group[0]
            row: Json = {
                "architecture": first.architecture,
                "layers": first.depth,
                **{name: getattr(first, name) for name in ("width", "parameters", "rate")},
                "loss over scale": float(np.median(self.values(group, "loss"))) / self.task.scale,
            }
            for measure in ("loss", "validation"):
                low, middle, high = np.quantile(self.values(group, measure), (0.25, 0.5, 0.75))
                row[measure] = float(middle)
                row[f"{measure}, quartiles"] = f"{low:.3g} to {high:.3g}"
            rows.append(row)
        return rows

    def columns(self) -> dict[str, np.ndarray]:
        """Return arrays with an entry per student; architectures are counted in their order."""
        table = {
            field.name: [getattr(student, field.name) for student in self.students]
            for field in fields(TrainedStudent)
        }
        table["architecture"] = list(map(ARCHITECTURE_NAMES.index, table["architecture"]))
        # The loss None becomes NaN.
        floats = ("rate", "training", "loss", "validation")
        return {
            name: np.array(values, float if name in floats else np.int64)
            for name, values in table.items()
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the columns, and the loss curves of all students, 100 points each."""
        curves = np.concatenate([run.losses for run in self.runs])
        every = -(-curves.shape[1] // 100)
        return {
            **self.columns(),
            "curves": curves[:, every - 1 :: every].astype(np.float32),
            "curve_steps": self.runs[0].steps[every - 1 :: every],
        }

    def complete(
        self, outcome: Outcome, plan: ComparisonPlan, *, updates: str, where: str
    ) -> Outcome:
        """Return the outcome with the notes, seeds, steps, arrays and runs of what was trained.

        updates  of the paper's comparison, in words
        where    at which sizes the numbers are judged, in words
        """
        notes = [f"{plan.recipe.steps:,} updates, against the paper's {updates}; judged {where}."]
        if len(plan.rates) > 1:
            grid = ", ".join(f"{rate:g}" for rate in plan.rates)
            notes.append(
                f"Learning rate of each depth and width: the best of {grid}, by the loss after the "
                f"first {plan.search_steps:,} updates of one student that is not judged. If the "
                "training loss of a student ends above twice its lowest value, all seeds of its "
                "size are trained again at the next smaller rate. Sizes and rates where that "
                f"happened: {'; '.join(self.broke) or 'none'}."
            )
        arrays, seeds, steps = self.arrays() | outcome.arrays, range(self.seeds), plan.recipe.steps
        return replace(
            outcome, notes=notes, seeds=seeds, steps=steps, arrays=arrays, runs=self.runs
        )
