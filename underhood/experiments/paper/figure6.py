"""Both tasks, all architectures, training and validation loss against parameters (Figure 6).

At quick scale the students are those of Figures 4A and 4B, read from the finished results of these,
if the folder has them and the command does not make them anew; else from their runs. At paper scale
Figure 4 has one width, so this experiment has students of its own: every width, at searched
learning rates, an eighth and a third of the paper's updates. The orders of Figure 4 are judged on
them too. What the paper says of this figure is that an input gate helps an LRU to mimic attention
"within one layer, but also with several layers", and that among LRUs closeness to attention and
in-context learning correlate; all else is ours. docs/reproduction.md says what is judged.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from scipy.stats import spearmanr

from underhood.common.files import Json
from underhood.experiments.paper.figure4 import (
    LRUS,
    in_layers,
    judge_imitation,
    judge_learning,
    plan_figure4a,
    plan_figure4b,
)
from underhood.experiments.protocols.architectures import ARCHITECTURES
from underhood.experiments.protocols.comparison import Comparison, compare, read_comparison
from underhood.experiments.protocols.rate_search import PAPER_WIDTHS, SEARCH, ComparisonPlan
from underhood.experiments.running import Outcome, Setting
from underhood.experiments.running.rules import judged, ordered, ours, shown
from underhood.results.architectures import (
    GATED,
    GRU_NAME,
    LRU_IN_OUT,
    LRU_MLP,
    LRU_PLAIN,
    LSTM_NAME,
)
from underhood.results.files import SHOWN, Number
from underhood.results.verdicts import NOT_JUDGED
from underhood.sweeps.study import Study
from underhood.training import Recipe

EQUAL_PARAMETERS = 1.5
# A rank correlation is high from here on, and says something of so many sizes and more.
HIGH, FEWEST_SIZES = 0.7, 6


IMITATION, REGRESSION_TASK = "teacher-student", "regression"
# Architecture, layers, width.
SizeOfStudent = tuple[str, int, int]


def plans_figure6(scale: str) -> dict[str, ComparisonPlan]:
    """Plan both comparisons: those of Figure 4, at paper scale with every width and a search."""
    plans = {IMITATION: plan_figure4a(scale), REGRESSION_TASK: plan_figure4b(scale)}
    if scale != "paper":
        return plans
    rates, search_steps = SEARCH[scale]
    return {
        name: replace(
            plan,
            name=f"{plan.name}_searched",
            widths=PAPER_WIDTHS,
            recipe=Recipe(steps=100_000),
            rates=rates,
            search_steps=search_steps,
            architectures=ARCHITECTURES,
            kept_in="figure6",
            prefix=f"{name}/",
        )
        for name, plan in plans.items()
    }


def studies_of_figure6(setting: Setting) -> dict[str, Study]:
    plans = plans_figure6(setting.scale).values()
    return {name: study for plan in plans for name, study in plan.studies(setting).items()}


def reproduce_figure6(setting: Setting) -> Outcome:
    plans = plans_figure6(setting.scale)
    parts = dict(zip(plans, (setting.part(0, 0.5), setting.part(0.5, 1)), strict=True))
    tasks = {
        name: read_comparison(plan, setting) or compare(plan, parts[name])
        for name, plan in plans.items()
    }
    numbers = [
        # Fresh sequences are training and validation alike, so the first says nothing.
        ratio_near(tasks[IMITATION], None, "training = validation, teacher-student", 1.0),
        ratio_near(tasks[REGRESSION_TASK], GATED, "validation over training, gated RNN", 2.0),
        *input_gate_helps(tasks[IMITATION]),
        *(
            ours(at_best_sizes(comparison, rival, name))
            for name, comparison in tasks.items()
            for rival in (LRU_PLAIN, LRU_MLP)
        ),
        *closeness(*tasks.values()),
    ]
    judged_above = {number.name for number in numbers}
    if setting.scale == "paper":
        numbers += [
            ours(replace(number, name=f"{number.name}, {name}, searched rates", paper=None))
            for name, judge in ((IMITATION, judge_imitation), (REGRESSION_TASK, judge_learning))
            for number in judge(tasks[name], plans[name])
            if number.rule != SHOWN and f"{number.name}, {name}" not in judged_above
        ]
    read = {name: comparison.read for name, comparison in tasks.items() if comparison.read}
    return Outcome(
        numbers=numbers,
        rows=[{"task": name, **row} for name, both in tasks.items() for row in both.rows()],
        notes=[
            "Best sizes: for each architecture the size with the lowest training loss among those "
            f"with at most {EQUAL_PARAMETERS:g} times the parameters of the smaller of the two "
            "largest models.",
            *(
                f"The students on {name} are those of the finished result of "
                f"{source['experiment']}, judged at commit {source['commit']}."
                for name, source in read.items()
            ),
        ],
        seeds=range(min(comparison.seeds for comparison in tasks.values())),
        steps=plans[IMITATION].recipe.steps,
        arrays={
            f"{name}/{field}": array
            for name, comparison in tasks.items()
            for field, array in comparison.columns().items()
        },
        runs=[run for comparison in tasks.values() for run in comparison.runs],
        earlier=earlier_runs(source["training"] for source in read.values()),
    )


def earlier_runs(trainings: Iterable[list[Json]]) -> list[Json]:
    """Return the provenance of all runs; two tasks that one result keeps have the same list."""
    lists: list[list[Json]] = []
    for training in trainings:
        if training not in lists:
            lists.append(training)
    return [run for training in lists for run in training]


def ratio_near(comparison: Comparison, name: str | None, what: str, target: float) -> Number:
    """Judge the median over students of validation over training loss: within a tenth.

    name  of the architecture, whose widest students count; None: all students
    """
    ratios = [
        student.validation / student.training
        for student in (comparison.students if name is None else comparison.widest(name, 1))
        if student.training and student.validation is not None
    ]
    median = float(np.median(ratios)) if ratios else None
    holds = median is not None and abs(median / target - 1) <= 0.1
    rule = f"median over students = {target:g} within 10 %"
    return ours(judged(what, median, rule, holds, paper=None, seeds=comparison.seeds))


def input_gate_helps(imitating: Comparison) -> list[Number]:
    """Judge that LRU In+Out mimics attention better than LRU, at the largest width of a depth."""
    numbers = []
    for depth in sorted({group[0].depth for group in imitating.groups(LRU_PLAIN)}):
        in_out, plain = imitating.losses((LRU_IN_OUT, LRU_PLAIN), depth, "loss")
        title = f"LRU In+Out < LRU, {in_layers(depth)}, {IMITATION}"
        numbers.append(ordered(title, in_out, plain, paper="below"))
    return numbers


def closeness(imitating: Comparison, learning: Comparison) -> list[Number]:
    """Judge whether LRUs that imitate attention better also learn better in context.

    The rank correlation, over the sizes that both tasks have, of the median losses on the two. Of
    few sizes it says nothing, and there is no number. Larger students do better on both tasks, so
    two correlations stand beside it: that of the LRUs of one size, in the mean over sizes, and that
    of LSTMs and GRUs.
    """

    def ranks_of(sizes: Sequence[SizeOfStudent]) -> float:
        return float(spearmanr(*([losses[size] for size in sizes] for losses in medians)).statistic)

    medians = [
        {
            (group[0].architecture, group[0].depth, group[0].width): float(
                np.median(comparison.values(group, measure))
            )
            for group in comparison.groups()
        }
        for comparison, measure in ((imitating, "loss"), (learning, "validation"))
    ]
    both = sorted(medians[0].keys() & medians[1].keys())
    lrus = [size for size in both if size[0] in LRUS]
    gates = [size for size in both if size[0] in (LSTM_NAME, GRU_NAME)]
    rule, name = f"rank correlation ≥ {HIGH:g}", "closeness to attention and in-context loss, LRUs"
    if len(lrus) < FEWEST_SIZES:
        return []
    value, seeds = ranks_of(lrus), imitating.seeds
    numbers = [judged(name, value, rule, value >= HIGH, paper="high", seeds=seeds)]
    by_size = [
        [size for size in lrus if size[1:] == shape] for shape in {size[1:] for size in lrus}
    ]
    equal = [ranks_of(sizes) for sizes in by_size if len(sizes) == len(LRUS)]
    if equal:
        title = f"{name} of one size, mean over {len(equal)} sizes"
        numbers.append(shown(title, float(np.mean(equal)), seeds=seeds))
    if len(gates) >= FEWEST_SIZES:
        title = "closeness to attention and in-context loss, LSTMs and GRUs"
        numbers.append(shown(title, ranks_of(gates), seeds=seeds))
    return numbers


def at_best_sizes(comparison: Comparison, rival: str, task: str) -> Number:
    """Judge LRU In+Out against another LRU: the best group of each that both can afford."""
    names = (LRU_IN_OUT, rival)
    largest = [max(group[0].parameters for group in comparison.groups(name)) for name in names]
    most = EQUAL_PARAMETERS * min(largest)
    first, second = (comparison.best(name, "training", most) for name in names)
    title = f"LRU In+Out < {rival}, best sizes, {task}"
    if first is None or second is None:
        rule, seeds = "both afford a width", comparison.seeds
        return judged(title, None, rule, NOT_JUDGED, paper=None, seeds=seeds)
    losses = [comparison.values(group, "training") for group in (first, second)]
    return ordered(title, *losses, paper=None)
