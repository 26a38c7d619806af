"""Students of every architecture on one task (Figures 4 and 6), and their losses.

`compare` trains them; `read_comparison` reads them from a finished result. Training runs are large
and stay where they were trained; a result is small and can be copied. So where runs are only read,
and these are missing, `compare` reads the losses of the students from the result too.
"""

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np

from underhood.common.errors import BadInput
from underhood.common.files import Json
from underhood.common.numbers import finite_or_none
from underhood.common.tensors import read_tensors
from underhood.experiments.protocols.architectures import PAPER_ARCHITECTURES
from underhood.experiments.protocols.rate_search import ComparisonPlan, hundredths, train_size
from underhood.experiments.running import Outcome, Setting
from underhood.results.architectures import ARCHITECTURE_NAMES
from underhood.results.files import ARRAYS, RESULT, finished_result
from underhood.sweeps.engines import MissingRun
from underhood.tasks import Task
from underhood.training import Run


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


PAPER_PROTOCOL = (
    "The paper's protocol: learning rate 1e-3, falling to 1e-6, without a search. LSTMs and GRUs "
    "begin as in Flax, LRUs as in Minimal-LRU. Two things differ from Minimal-LRU: D is a matrix, "
    "and λ has the same learning rate as the rest. Sizes of which a student's training loss ended "
    "above twice its lowest value: {broke}."
)

STUDENT_COLUMNS = tuple(field.name for field in fields(TrainedStudent))
# Students that differ in their seed only.
SeedGroup = list[TrainedStudent]


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

    def widest(self, name: str, depth: int) -> SeedGroup:
        groups = [group for group in self.groups(name) if group[0].depth == depth]
        return max(groups, key=lambda group: group[0].width, default=[])

    def losses(self, names: Iterable[str], depth: int, measure: str) -> list[list[float]]:
        """Return the losses of the widest students of each architecture at a depth."""
        return [self.values(self.widest(name, depth), measure) for name in names]

    def groups(self, name: str | None = None) -> list[SeedGroup]:
        groups: dict[tuple[str, int, int], SeedGroup] = {}
        for student in self.students:
            if name in (None, student.architecture):
                size = student.architecture, student.depth, student.width
                groups.setdefault(size, []).append(student)
        return list(groups.values())

    def best(self, name: str, measure: str, most_parameters: float = np.inf) -> SeedGroup | None:
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
            name: [getattr(student, name) for student in self.students] for name in STUDENT_COLUMNS
        }
        table["architecture"] = list(map(ARCHITECTURE_NAMES.index, table["architecture"]))
        # The loss None becomes NaN.
        floats = ("rate", "training", "loss", "validation")
        return {
            name: np.array(values, float if name in floats else np.int64)
            for name, values in table.items()
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the columns, and the loss curves of students with runs, 100 points each."""
        if not self.runs:
            return self.columns()
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

        updates  what the paper's are, in words
        where    at which sizes the numbers are judged, in words
        """
        notes = [f"{plan.recipe.steps:,} updates, {updates}; judged {where}."]
        if len(plan.rates) > 1:
            grid = ", ".join(f"{rate:g}" for rate in plan.rates)
            notes.append(
                f"Learning rate of each depth and width: the best of {grid}, by the loss after the "
                f"first {plan.search_steps:,} updates of one student that is not judged. If the "
                "training loss of a student ends above twice its lowest value, all seeds of its "
                "size are trained again at the next smaller rate. Sizes and rates where that "
                f"happened: {'; '.join(self.broke) or 'none'}."
            )
        elif plan.architectures is PAPER_ARCHITECTURES:
            notes.append(PAPER_PROTOCOL.format(broke="; ".join(self.broke) or "none"))
        return replace(
            outcome,
            notes=notes,
            seeds=range(self.seeds),
            steps=plan.recipe.steps,
            arrays=self.arrays() | outcome.arrays,
            runs=self.runs,
            earlier=self.read["training"] if self.read else (),
        )


def compare(plan: ComparisonPlan, setting: Setting) -> Comparison:
    """Return all students of a plan: trained, or their losses if runs are only read and missing."""
    try:
        return train_comparison(plan, setting)
    except MissingRun as missing:
        if not (setting.folder / plan.result / RESULT).exists():
            raise
        try:
            return fitting(plan, setting)
        except Misfit as why:
            raise BadInput(f"{missing} Its losses in {RESULT} cannot be used: {why}.") from None


def train_comparison(plan: ComparisonPlan, setting: Setting) -> Comparison:
    """Search the learning rate and train, for every architecture, depth and width."""
    sizes = plan.sizes()
    trained = setting.each([(size[1], partial(train_size, plan, *size)) for size in sizes])
    students, broke = [], []
    for (kind, depth, width), (run, rates) in zip(sizes, trained, strict=True):
        members = zip(run.rows, run.losses, strict=True)
        students += [student_of(kind.name, depth, row, curve) for row, curve in members]
        broke += [f"{kind.name}, {depth} × {width}, at {rate:g}" for rate in rates]
    runs, seeds = tuple(run for run, _ in trained), setting.count(plan.seeds)
    return Comparison(plan.task, tuple(students), runs, seeds, tuple(broke))


def student_of(architecture: str, depth: int, row: Json, curve: np.ndarray) -> TrainedStudent:
    """Return a member of a run; its training loss is the mean over the last hundredth."""
    columns = "width", "seed", "learning_rate", "parameters", "loss"
    width, seed, rate, parameters, loss = (row[name] for name in columns)
    losses = finite_or_none(hundredths(curve)[-1]), loss, row.get("validation_loss", loss)
    return TrainedStudent(architecture, depth, width, seed, rate, parameters, *losses)


class Misfit(Exception):
    """Why a result is not used, as the end of a sentence."""


def read_comparison(plan: ComparisonPlan, setting: Setting) -> Comparison | None:
    """Read the comparison of a plan from the folder of results.

    None if there is none, if the same command runs the experiment that trains it, or if it does not
    fit the plan; the log says why it does not fit. Students that an experiment keeps for itself
    take hours, so they are read as finished runs are: delete the result to train them anew.
    """
    path = setting.folder / plan.result / RESULT
    trained_now = plan.result == plan.name and plan.name in setting.anew
    if trained_now or not path.exists():
        return None
    try:
        return fitting(plan, setting)
    except Misfit as why:
        text = "%s is not used, because %s; training instead"
        logging.getLogger("underhood").warning(text, path, why)
        return None


def fitting(plan: ComparisonPlan, setting: Setting) -> Comparison:
    """Read the comparison of a plan; raise Misfit if it is not what the plan asks for."""
    folder = setting.folder / plan.result
    result = finished_result(folder / RESULT)
    if result is None:
        raise Misfit("it is damaged, or of a newer version")
    origin = result["provenance"]
    if result["scale"] != setting.scale or origin.get("steps") != plan.recipe.steps:
        raise Misfit(f"it is at {result['scale']} scale, with {origin.get('steps')} updates")
    seeds, training = setting.count(plan.seeds), origin.get("training")
    try:
        arrays = read_tensors(folder / ARRAYS).arrays
        students = students_in({name: arrays[plan.prefix + name] for name in STUDENT_COLUMNS})
        identities = [(s.architecture, s.depth, s.width, s.seed) for s in students]
        rates = {student.rate for student in students}
    except (OSError, LookupError, TypeError, ValueError):
        raise Misfit("its arrays are not those of a comparison") from None
    if identities != planned_students(plan, seeds) or not rates <= set(plan.rates):
        raise Misfit(f"it is of other students, sizes or rates ({seeds} seeds are wanted)")
    read = {"experiment": folder.name, "commit": origin.get("commit"), "training": training}
    comparison = Comparison(plan.task, students, (), seeds, read=read)
    rows = result["rows"]
    if plan.prefix and isinstance(rows, list):
        rows = [row for row in rows if f"{row.get('task')}/" == plan.prefix]
    if not isinstance(training, list) or not same_rows(comparison.rows(), rows):
        raise Misfit("its arrays say other than its rows")
    return comparison


def same_rows(rows: list[Json], stored: list[Json]) -> bool:
    """Tell whether a result's table says what its arrays say."""

    def same(ours: object, theirs: object) -> bool:
        if isinstance(ours, float) and isinstance(theirs, float):
            # A loss is divided by the task's scale, which other machines round differently.
            return math.isclose(ours, theirs, rel_tol=1e-5)
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
    lists = [columns[name].tolist() for name in STUDENT_COLUMNS]
    return tuple(
        TrainedStudent(ARCHITECTURE_NAMES[place], *rest[:-3], *map(finite_or_none, rest[-3:]))
        for place, *rest in zip(*lists, strict=True)
    )
