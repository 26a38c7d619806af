"""How the students of a comparison (Figures 4 and 6) are trained, for every depth and width.

By the paper's protocol there is one learning rate for all. A plan with several searches: the
learning rate of a size is the best of a small grid, by one student per rate that is trained for
about the first tenth of the run and not judged. If a student breaks later, all seeds of its size
are trained again at the next smaller rate. Everything else is the paper's: AdamW, cosine to a
thousandth. Its weight decay is for Section 4.1 alone, so there is none here.
"""

import re
from dataclasses import dataclass, replace

import numpy as np

from underhood.experiments.protocols.architectures import ARCHITECTURES, Architecture
from underhood.experiments.protocols.students import column
from underhood.experiments.running.setting import Setting
from underhood.sweeps.study import Study
from underhood.tasks import Task
from underhood.training import Recipe, Run
from underhood.training.ensemble import StudentMaker

# Widths of the students, by depth.
Widths = dict[int, tuple[int, ...]]
PAPER_WIDTHS: Widths = {1: (8, 16, 32, 64, 128), 2: (8, 16, 32, 64)}
# Learning rates to choose from, and the updates after which the rate is chosen, by scale.
SEARCH: dict[str, tuple[tuple[float, ...], int]] = {
    "smoke": ((1e-2,), 5),
    "quick": ((3e-3, 1e-2, 3e-2, 1e-1), 1_000),
    "paper": ((1e-3, 3e-3, 1e-2, 3e-2), 10_000),
}
# A student is broken if its training loss ends above this many times its lowest. Losses end within
# a twentieth of their lowest at paper scale, and within a half at quick scale, whose batches are
# small; those of students that broke end at twice it or more.
BROKEN_ABOVE = 2.0


@dataclass(frozen=True)
class ComparisonPlan:
    """What a comparison trains at one scale.

    name           of the comparison; its runs are named after it
    key            of weights and data
    rates          learning rates to choose from; a single one is not searched
    search_steps   updates after which the rate is chosen
    kept_in        the experiment whose result keeps the losses; "": the one of this name
    prefix         of the names of the arrays there
    """

    name: str
    task: Task
    key: int
    widths: Widths
    seeds: int
    recipe: Recipe
    rates: tuple[float, ...]
    search_steps: int
    architectures: tuple[Architecture, ...] = ARCHITECTURES
    kept_in: str = ""
    prefix: str = ""

    @property
    def result(self) -> str:
        """The experiment whose result keeps the losses of the students."""
        return self.kept_in or self.name

    def sizes(self) -> list[tuple[Architecture, int, int]]:
        """Return every architecture with each of its depths and widths."""
        return [
            (architecture, depth, width)
            for architecture in self.architectures
            for depth in architecture.depths
            for width in self.widths.get(depth, ())
        ]

    def study(
        self, make_student: StudentMaker, width: int, seeds: int, rates: tuple[float, ...]
    ) -> Study:
        """Return what to train of one size."""
        students, axes = {"student": make_student}, {"learning_rate": rates}
        return Study(self.task, students, self.recipe, (width,), seeds, axes, self.key)

    def search_study(self, make_student: StudentMaker, width: int) -> Study:
        """Return what is trained to choose the rate of one size: one student for each rate."""
        search = replace(self, recipe=self.recipe.first(self.search_steps), key=self.key + 1)
        return search.study(make_student, width, 1, self.rates)

    def run_name(self, architecture: Architecture, depth: int, width: int) -> str:
        return f"{self.name}_{slug(architecture.name)}_{depth}_{width}"

    def studies(self, setting: Setting) -> dict[str, Study]:
        """Return what is trained if no student breaks, by the names of the runs.

        The rate of a searched run is not known yet, so it stands here with the first of the grid.
        """
        studies = {}
        for architecture, depth, width in self.sizes():
            name = self.run_name(architecture, depth, width)
            student = architecture.make(self.task, depth)
            if len(self.rates) > 1:
                studies[f"{name}_rates"] = self.search_study(student, width)
            seeds = setting.count(self.seeds)
            studies[name] = self.study(student, width, seeds, self.rates[:1])
        return studies


def train_size(
    plan: ComparisonPlan, architecture: Architecture, depth: int, width: int, setting: Setting
) -> tuple[Run, list[float]]:
    """Return the run of one size, and the learning rates at which it broke.

    A run per width: nothing is padded, each resumes by itself, and several can share an
    accelerator, in processes of their own.
    """
    name = plan.run_name(architecture, depth, width)
    student, seeds = architecture.make(plan.task, depth), setting.count(plan.seeds)
    chosen = search_rate(name, student, width, plan, setting.part(0, 0.25))
    broke_at: list[float] = []
    for rate in sorted((rate for rate in plan.rates if rate <= chosen), reverse=True):
        title = name if rate == chosen else f"{name}_at_{rate:g}"
        run = setting.part(0.25, 1).train(title, plan.study(student, width, seeds, (rate,)))
        if not any(map(is_broken, run.losses)):
            break
        broke_at.append(rate)
    return run, broke_at


def search_rate(
    name: str, make_student: StudentMaker, width: int, plan: ComparisonPlan, setting: Setting
) -> float:
    if len(plan.rates) == 1:
        return plan.rates[0]
    run = setting.train(f"{name}_rates", plan.search_study(make_student, width))
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


def slug(name: str) -> str:
    """Return an architecture's name as part of a folder's."""
    return "_".join(re.findall(r"[^\W_]+", name.lower()))
