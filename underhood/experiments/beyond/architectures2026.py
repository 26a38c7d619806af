"""Layers of today in the comparison of Figure 4: does closeness to attention predict learning?

Every layer of `layers/modern` stands between a linear embedding and a linear readout, as the LRUs
of Figure 4 do, and is trained by the same protocol at the same widths: on a linear-attention
teacher (figure4a) and on in-context regression (figure4b), one layer deep. Beside its loss every
student has its `attention_score` on the task's own tokens. The rank correlation of score and loss
is taken over architectures, each by its median over seeds.

The rules were written before the run:

    closeness    the rank correlation of score and validation loss on regression is below 0 in 95 %
                 of bootstrap samples, which draw architectures and then seeds, with replacement
    imitation    the rank correlation of the two tasks' losses is at least figure6's HIGH
"""

from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray
from scipy.stats import rankdata

from underhood import layers
from underhood.analysis import attention_score
from underhood.common.files import Json
from underhood.experiments.paper.figure4 import MEASURE, plan_figure4a, plan_figure4b
from underhood.experiments.paper.figure6 import HIGH
from underhood.experiments.protocols.architectures import ARCHITECTURES, Architecture
from underhood.experiments.protocols.comparison import Comparison, train_comparison
from underhood.experiments.protocols.rate_search import ComparisonPlan
from underhood.experiments.protocols.students import Studies
from underhood.experiments.running import Outcome, Setting
from underhood.experiments.running.rules import judged, ours, shown
from underhood.layers import Layer, Stack
from underhood.results.files import Number
from underhood.results.verdicts import NOT_JUDGED
from underhood.tasks import Task
from underhood.training.ensemble import StudentMaker

MODERN_SEEDS, SCORE_KEY, BOOTSTRAPS = 4, 730, 2_000
# A correlation over fewer architectures than this says nothing.
FEWEST = 6
TASKS = ("teacher-student", "regression")


def mixer_maker(kind: Any, **more: int) -> Any:  # Any: a class with its own `init`, and a function
    """Return make_layer for a mixer with two heads that are together as wide as the stream."""

    def make(width: int, *, key: PRNGKeyArray) -> Layer:
        size = max(width // 2, 1)
        layer: Layer = kind.init(
            d_in=width, d_out=width, heads=2, d_k=size, d_v=size, key=key, **more
        )
        return layer

    return make


def channels_of_width(kind: Any, name: str) -> Any:  # Any: the same
    """Return make_layer for a layer with a state per channel, as many as the stream is wide."""

    def make(width: int, *, key: PRNGKeyArray) -> Layer:
        layer: Layer = kind.init(d_in=width, d_out=width, key=key, **{name: width})
        return layer

    return make


MODERN = {
    "Mamba-2": mixer_maker(layers.Mamba2),
    "Jamba's Mamba": channels_of_width(layers.JambaBlock, "inner"),
    "gated DeltaNet": mixer_maker(layers.GatedDeltaNet),
    "DeltaNet": mixer_maker(layers.DeltaNet),
    "KDA": mixer_maker(layers.KDA, rank=4),
    "GLA": mixer_maker(layers.GLA, rank=4),
    "RetNet": mixer_maker(layers.RetNet),
    "lightning": mixer_maker(layers.Lightning),
    "HGRN2": mixer_maker(layers.HGRN2),
    "RWKV-6": mixer_maker(layers.RWKV6, rank=4),
    "RWKV-7": mixer_maker(layers.RWKV7, rank=4),
    "mLSTM": mixer_maker(layers.MLSTM),
    "RG-LRU": channels_of_width(layers.RGLRU, "inner"),
    "minGRU": channels_of_width(layers.MinGRU, "hidden"),
}
# At smoke scale one student of one layer, and none of the paper's.
SMOKE_LAYERS = ("minGRU",)


def modern_architecture(name: str) -> Architecture:
    """Return a layer of today between an embedding and a readout."""

    def make(task: Task, depth: int) -> StudentMaker:
        sizes = {"d_in": task.d_in, "d_out": task.d_out, "depth": depth}
        return lambda width, *, key: Stack.init(MODERN[name], hidden=width, **sizes, key=key)

    return Architecture(name, (1,), make)


@dataclass(frozen=True)
class ModernPlan(ComparisonPlan):
    """The plan of a comparison, for layers of today."""

    chosen: tuple[str, ...] = tuple(MODERN)

    def sizes(self) -> list[tuple[Architecture, int, int]]:
        width = self.widths[1][-1]
        return [(modern_architecture(name), 1, width) for name in self.chosen]


@dataclass(frozen=True)
class PaperPlan(ComparisonPlan):
    """The plan of a comparison, for the paper's architectures with one layer."""

    def sizes(self) -> list[tuple[Architecture, int, int]]:
        return [(kind, 1, self.widths[1][-1]) for kind in ARCHITECTURES]


def plans_of(scale: str) -> dict[str, list[ComparisonPlan]]:
    """Return what is trained on each task: layers of today, then the paper's."""
    plans: dict[str, list[ComparisonPlan]] = {}
    for task, plan in zip(TASKS, (plan_figure4a(scale), plan_figure4b(scale)), strict=True):
        fields = {name: getattr(plan, name) for name in plan.__dataclass_fields__}
        modern = ModernPlan(
            **fields
            | {"name": f"{plan.name}_2026", "seeds": 1 if scale == "smoke" else MODERN_SEEDS},
            chosen=SMOKE_LAYERS if scale == "smoke" else tuple(MODERN),
        )
        # The runs of figure4 are read, if they are there.
        plans[task] = [modern] if scale == "smoke" else [modern, PaperPlan(**fields)]
    return plans


def studies_of_architectures2026(setting: Setting) -> Studies:
    """Return what is trained, by the names of its runs."""
    plans = chain.from_iterable(plans_of(setting.scale).values())
    return {name: study for plan in plans for name, study in plan.studies(setting).items()}


def reproduce_architectures2026(setting: Setting) -> Outcome:
    plans = plans_of(setting.scale)
    parts = [
        (len(plan.sizes()), partial(train_comparison, plan))
        for task in TASKS
        for plan in plans[task]
    ]
    trained = iter(setting.part(0, 0.8).each(parts))
    comparisons = {task: [next(trained) for _ in plans[task]] for task in TASKS}
    students = [
        (task, place, comparison)
        for task in TASKS
        for comparison in comparisons[task]
        for place in range(len(comparison.students))
    ]
    rows: list[Json] = []
    for task, place, comparison in setting.part(0.8, 1).over(students):
        student = comparison.students[place]
        if student.seed < MODERN_SEEDS:
            model = [model for run in comparison.runs for model in run.models][place]
            rows.append(student_row(task, comparison, place, model))
    seeds = min(comparison.seeds for each in comparisons.values() for comparison in each)
    step = plans["regression"][0].task.validation().best_loss
    return Outcome(
        numbers=judge_closeness(rows, min(seeds, MODERN_SEEDS), step),
        rows=rows,
        notes=[
            "Scores are attention_score on the task's tokens. Correlations are over "
            "architectures, by medians over seeds; their error is the spread of "
            f"{BOOTSTRAPS:,} bootstrap samples of architectures and seeds."
        ],
        seeds=range(min(seeds, MODERN_SEEDS)),
        steps=plans["regression"][0].recipe.steps,
        arrays=arrays_of_rows(rows) | {"gradient_step": np.array(step)},
        runs=[run for each in comparisons.values() for both in each for run in both.runs],
    )


def student_row(task: str, comparison: Comparison, place: int, model: Layer) -> Json:
    """Return a student's losses and its score; a student that diverged scores 0."""
    student = comparison.students[place]
    loss, validation = (comparison.values([student], name)[0] for name in ("loss", MEASURE))
    score = 0.0
    if student.loss is not None:
        key = jax.random.key(SCORE_KEY)
        score = attention_score(model, key=key, task=comparison.task).score
    return {
        "task": task,
        "architecture": student.architecture,
        "of today": student.architecture in MODERN,
        "seed": student.seed,
        "parameters": student.parameters,
        "rate": student.rate,
        "loss": loss,
        "validation": validation,
        "score": score,
    }


def by_architecture(rows: list[Json], task: str, name: str) -> dict[str, np.ndarray]:
    """Return a number of the students of a task, by architecture."""
    names = dict.fromkeys(row["architecture"] for row in rows if row["task"] == task)
    return {
        architecture: np.array(
            [
                row[name]
                for row in rows
                if (row["task"], row["architecture"]) == (task, architecture)
            ]
        )
        for architecture in names
    }


def rank_correlation(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return Spearman's correlation over the last axis; 0 if one of the two is constant."""
    ranks = [rankdata(values, axis=-1) for values in (first, second)]
    ranks = [rank - rank.mean(axis=-1, keepdims=True) for rank in ranks]
    scale = np.sqrt(np.sum(ranks[0] ** 2, axis=-1) * np.sum(ranks[1] ** 2, axis=-1))
    together = np.sum(ranks[0] * ranks[1], axis=-1)
    return np.divide(together, scale, out=np.zeros_like(scale), where=scale > 0)


def bootstrap_correlations(
    first: dict[str, np.ndarray], second: dict[str, np.ndarray]
) -> tuple[float, np.ndarray]:
    """Return the correlation of medians, and those of samples of architectures and of seeds.

    A seed of an architecture is drawn for both tables at once.
    """
    tables = [np.stack([table[name] for name in first]) for table in (first, second)]
    count, seeds = tables[0].shape
    rng = np.random.default_rng(SCORE_KEY)
    chosen = rng.integers(count, size=(BOOTSTRAPS, count, 1))
    drawn_seeds = rng.integers(seeds, size=(BOOTSTRAPS, count, seeds))
    drawn = [np.median(table[chosen, drawn_seeds], axis=-1) for table in tables]
    medians = [np.median(table, axis=-1) for table in tables]
    return float(rank_correlation(*medians)), rank_correlation(*drawn)


def judge_closeness(rows: list[Json], seeds: int, step: float) -> list[Number]:
    """Judge whether scores, and losses on the teacher, predict the loss in context."""
    learning = by_architecture(rows, "regression", "validation")
    numbers = [shown("one gradient step", step, seeds=1)]
    rule = "rank correlation of score and loss < 0 in 95 % of bootstrap samples"
    title = "closeness to attention and in-context loss, all layers"
    if len(learning) < FEWEST:
        nothing = judged(title, None, rule, NOT_JUDGED, paper=None, seeds=seeds)
        return [*numbers, ours(nothing)]
    value, drawn = bootstrap_correlations(by_architecture(rows, "regression", "score"), learning)
    below = float(np.mean(drawn < 0))
    numbers += [
        ours(judged(title, value, rule, below >= 0.95, paper=None, seeds=seeds)),
        shown("its bootstrap error", float(np.std(drawn)), seeds=seeds),
    ]
    value, drawn = bootstrap_correlations(
        by_architecture(rows, "teacher-student", "loss"), learning
    )
    rule, title = (
        f"rank correlation ≥ {HIGH:g}",
        "loss on a teacher and in-context loss, all layers",
    )
    numbers += [
        ours(judged(title, value, rule, value >= HIGH, paper=None, seeds=seeds)),
        shown("its bootstrap error, teacher", float(np.std(drawn)), seeds=seeds),
    ]
    return numbers


def arrays_of_rows(rows: list[Json]) -> dict[str, np.ndarray]:
    """Return what the figure shows: scores and losses of the students on regression."""
    chosen = [row for row in rows if row["task"] == "regression"]
    names = list(dict.fromkeys(row["architecture"] for row in chosen))
    return {
        "architecture": np.array([names.index(row["architecture"]) for row in chosen]),
        "of_today": np.array([int(row["of today"]) for row in chosen]),
        "score": np.array([row["score"] for row in chosen]),
        "validation": np.array([row["validation"] for row in chosen]),
    }
