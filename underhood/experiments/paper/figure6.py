"""Both tasks, all architectures, training and validation loss against parameters (Figure 6).

The students are those of Figures 4A and 4B. They are read from the finished results of these, if
the folder has them and the command does not make them anew; else from their runs. Sizes are few, so
numbers of parameters are equal up to EQUAL_PARAMETERS. docs/reproduction.md says what is judged.
"""

import numpy as np

from underhood.experiments.paper.figure4 import plan_figure4a, plan_figure4b
from underhood.experiments.protocols.comparison import Comparison, compare, read_comparison
from underhood.experiments.running import Outcome, Setting
from underhood.experiments.running.rules import judged, ordered, ours
from underhood.results.architectures import GATED, LRU_IN_OUT, LRU_MLP, LRU_PLAIN
from underhood.results.files import Number
from underhood.results.verdicts import NOT_JUDGED

EQUAL_PARAMETERS = 1.5
# A rank correlation is high from here on, and says something of so many sizes and more.
HIGH, FEWEST_SIZES = 0.7, 6


def reproduce_figure6(setting: Setting) -> Outcome:
    plans = {
        "teacher-student": (plan_figure4a(setting.scale), setting.part(0, 0.5)),
        "regression": (plan_figure4b(setting.scale), setting.part(0.5, 1)),
    }
    tasks = {
        name: read_comparison(plan, setting) or compare(plan, part)
        for name, (plan, part) in plans.items()
    }
    numbers = [
        # Fresh sequences are training and validation alike, so the first says nothing.
        ratio_near(tasks["teacher-student"], None, "training = validation, teacher-student", 1.0),
        ratio_near(tasks["regression"], GATED, "validation over training, gated RNN", 2.0),
        *(
            at_equal_parameters(comparison, rival, name)
            for name, comparison in tasks.items()
            for rival in (LRU_PLAIN, LRU_MLP)
        ),
        *closeness(*tasks.values()),
    ]
    read = {name: comparison.read for name, comparison in tasks.items() if comparison.read}
    return Outcome(
        numbers=numbers,
        rows=[{"task": name, **row} for name, both in tasks.items() for row in both.rows()],
        notes=[
            "At equal parameters, for each architecture: the size with the lowest training loss "
            f"among those with at most {EQUAL_PARAMETERS:g} times the parameters of the smaller of "
            "the two largest models.",
            *(
                f"The students on {name} are those of the finished result of "
                f"{source['experiment']}, judged at commit {source['commit']}."
                for name, source in read.items()
            ),
        ],
        seeds=range(min(comparison.seeds for comparison in tasks.values())),
        steps=plans["teacher-student"][0].recipe.steps,
        arrays={
            f"{name}/{field}": array
            for name, comparison in tasks.items()
            for field, array in comparison.columns().items()
        },
        runs=[run for comparison in tasks.values() for run in comparison.runs],
        earlier=[run for source in read.values() for run in source["training"]],
    )


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


def closeness(imitating: Comparison, learning: Comparison) -> list[Number]:
    """Judge whether LRUs that imitate attention better also learn better in context.

    The rank correlation, over the sizes that both tasks have, of the median losses on the two. Of
    few sizes it says nothing, and there is no number.
    """
    medians = [
        {
            (group[0].architecture, group[0].depth, group[0].width): float(
                np.median(comparison.values(group, measure))
            )
            for name in (LRU_IN_OUT, LRU_PLAIN, LRU_MLP)
            for group in comparison.groups(name)
        }
        for comparison, measure in ((imitating, "loss"), (learning, "validation"))
    ]
    both = sorted(medians[0].keys() & medians[1].keys())
    rule, name = f"rank correlation ≥ {HIGH:g}", "closeness to attention and in-context loss, LRUs"
    if len(both) < FEWEST_SIZES:
        return []
    ranks = [np.argsort(np.argsort([losses[size] for size in both])) for losses in medians]
    value = float(np.corrcoef(ranks[0], ranks[1])[0, 1])
    return [judged(name, value, rule, value >= HIGH, paper="high", seeds=imitating.seeds)]


def at_equal_parameters(comparison: Comparison, rival: str, task: str) -> Number:
    """Judge LRU In+Out against another LRU: the best group of each that both can afford."""
    names = (LRU_IN_OUT, rival)
    largest = [max(group[0].parameters for group in comparison.groups(name)) for name in names]
    most = EQUAL_PARAMETERS * min(largest)
    first, second = (comparison.best(name, "training", most) for name in names)
    title = f"LRU In+Out < {rival} at equal parameters, {task}"
    if first is None or second is None:
        rule, seeds = "both afford a width", comparison.seeds
        return judged(title, None, rule, NOT_JUDGED, paper="below", seeds=seeds)
    losses = [comparison.values(group, "training") for group in (first, second)]
    return ordered(title, *losses, paper="below")
