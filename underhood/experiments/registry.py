"""The experiments by name; a new one is a file in paper/ or beyond/, and a line here.

Its claim is a record in `results/claims.toml`, its figure a line in `report/figures.py`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from underhood.common.errors import BadInput
from underhood.experiments.beyond import (
    architectures2026,
    atlas,
    identifiability,
    recall_memory,
    recall_training,
    weight_decay,
)
from underhood.experiments.paper import (
    figure2,
    figure3,
    figure4,
    figure6,
    lstm_weights,
    optimal_step,
    recall_gated,
    recall_side,
    reverse,
    table1,
    table2,
    table3,
)
from underhood.experiments.protocols import students
from underhood.experiments.protocols.students import Studies
from underhood.experiments.running import Outcome, Setting
from underhood.results.claims import CLAIMS

SCALES = ("smoke", "quick", "paper")


def no_studies(setting: Setting) -> Studies:
    """Return nothing: for experiments that keep no runs."""
    return {}


@dataclass(frozen=True)
class Experiment:
    """A claim, the function that tests it, and its budget of seconds by scale.

    studies  returns what the experiment trains, by the names of its runs. Short runs that depend on
             what was found, such as fine-tuning, are not among them
    judged   seconds of the budget at paper scale that are not training: analysis, short runs
    by_name  scales at which it runs only if its name is given, and not with `reproduce all`

    Budgets are for two cores at smoke and quick scale, and for one H200 at paper scale. A run that
    several experiments share counts for the first. An experiment has no scale without a budget.
    """

    claim: str
    run: Callable[[Setting], Outcome]
    budget: dict[str, int]
    studies: Callable[[Setting], Studies] = no_studies
    judged: int = 0
    by_name: tuple[str, ...] = ()

    def judging(self, scale: str) -> float:
        """Return the seconds of the budget that are not training; a fifth if it is not known."""
        budget = self.budget.get(scale, 0)
        if self.studies is no_studies:
            return budget
        return min(self.judged, budget) if scale == "paper" else budget / 5


SENTENCES = {claim.name: claim.sentence for claim in CLAIMS}


def budget_of(*seconds: int | None) -> dict[str, int]:
    budgets = zip(SCALES, seconds, strict=True)
    return {scale: budget for scale, budget in budgets if budget is not None}


# The function, seconds at smoke, quick and paper scale, and of experiments that train, what they
# train and how long judging it takes at paper scale. docs/howto/reproduce.md says where the seconds
# at paper scale come from.
Entry = tuple[Callable[[Setting], Outcome], int | None, int | None, int | None]
Training = tuple[Callable[[Setting], Studies], int]
TRAINING: dict[str, Training] = {
    "table1": (students.teacher_studies, 80),
    "figure2": (students.teacher_studies, 390),
    **{name: (partial(figure3.studies_of, name), 20) for name in figure3.PLANS},
    "figure4a": (lambda setting: figure4.plan_figure4a(setting.scale).studies(setting), 15),
    "figure4b": (lambda setting: figure4.plan_figure4b(setting.scale).studies(setting), 20),
    "figure6": (figure6.studies_of_figure6, 5),
    "table2": (students.regression_studies, 30),
    "recall_gated": (partial(students.recall_studies, side=False), 170),
    "recall_side": (partial(students.recall_studies, side=True), 560),
    "recall_training": (recall_training.studies_of_recall_training, 60),
    "weight_decay": (weight_decay.studies_of_weight_decay, 30),
    "architectures2026": (architectures2026.studies_of_architectures2026, 0),
}
REGISTRY: dict[str, Entry] = {
    "table1": (table1.reproduce_table1, 10, 110, 460),
    "figure2": (figure2.reproduce_figure2, 5, 10, 390),
    "figure3a": (figure3.reproduce_figure3a, 10, 55, 810),
    "figure3b": (figure3.reproduce_figure3b, 10, 30, 990),
    "figure3c": (figure3.reproduce_figure3c, 10, 60, 140),
    "figure4a": (figure4.reproduce_figure4a, 40, 120, 5070),
    "figure4b": (figure4.reproduce_figure4b, 30, 165, 1280),
    "figure6": (figure6.reproduce_figure6, 5, 5, 7870),
    "table2": (table2.reproduce_table2, 10, 60, 80),
    "table3": (table3.reproduce_table3, 10, 20, 40),
    "lstm_weights": (lstm_weights.reproduce_lstm_weights, 5, 10, 20),
    "reverse": (reverse.reproduce_reverse, 5, 5, 10),
    "optimal_step": (optimal_step.reproduce_optimal_step, 5, 10, 30),
    "recall_gated": (recall_gated.reproduce_recall_gated, 10, 30, 300),
    "recall_side": (recall_side.reproduce_recall_side, 10, 30, 310),
    "identifiability": (identifiability.reproduce_identifiability, 10, 90, 2400),
    "recall_memory": (recall_memory.reproduce_recall_memory, 10, 100, 900),
    "recall_training": (recall_training.reproduce_recall_training, 15, 1500, 1200),
    "atlas": (atlas.reproduce_atlas, 15, 120, 300),
    "weight_decay": (weight_decay.reproduce_weight_decay, None, None, 720),
    "architectures2026": (architectures2026.reproduce_architectures2026, 40, 3600, None),
}
# Experiments with more than three minutes at quick scale, and the scales at which only their name
# starts them.
BY_NAME: dict[str, tuple[str, ...]] = {
    "recall_training": ("quick",),
    "architectures2026": SCALES,
}
EXPERIMENTS: dict[str, Experiment] = {
    name: Experiment(
        SENTENCES[name],
        run,
        budget_of(*seconds),
        *TRAINING.get(name, (no_studies, 0)),
        BY_NAME.get(name, ()),
    )
    for name, (run, *seconds) in REGISTRY.items()
}


def check_scale(names: Iterable[str], scale: str) -> None:
    """Refuse experiments that do not run at a scale."""
    for name in names:
        if scale not in (scales := EXPERIMENTS[name].budget):
            raise BadInput(f"{name} does not run at {scale} scale; use {' or '.join(scales)}.")


def at_scale(scale: str) -> list[str]:
    """Return the experiments that `reproduce all` runs at a scale."""
    return [
        name
        for name, experiment in EXPERIMENTS.items()
        if scale in experiment.budget and scale not in experiment.by_name
    ]
