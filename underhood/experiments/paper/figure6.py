"""Both tasks, all architectures, training and validation loss against parameters (Figure 6).

The students are those of Figures 4A and 4B: of their finished results, where the folder has them
and they are not made anew, else of their runs. Judged: on the teacher-student task training and
validation loss agree, every sequence being seen once; in regression validation tasks have twice
the variance, so that a student that is linear in the task's weights, as one gradient step is, has
exactly twice its training loss there; and among the LRUs the one with gates on both sides is the
best at equal numbers of parameters, on both tasks: each at its best size, none with more than
EQUAL times what the smaller of the two largest has, because widths are few.
"""

import numpy as np

from underhood.experiments.paper import figure4a, figure4b
from underhood.experiments.protocols.architectures import GATED, LRU_IN_OUT, LRU_MLP, LRU_PLAIN
from underhood.experiments.protocols.comparison import Comparison
from underhood.experiments.protocols.finished_comparisons import earlier
from underhood.experiments.running.outcomes import Outcome
from underhood.experiments.running.rules import DIFFERS, NOT_JUDGED, REPRODUCED, Number, ordered
from underhood.experiments.running.setting import Setting

EQUAL = 1.5


def run(setting: Setting) -> Outcome:
    """Both comparisons, put against parameters."""
    tasks = {
        "teacher-student": earlier("figure4a", *figure4a.problem(setting.scale), setting)
        or figure4a.comparison(setting.part(0, 0.5)),
        "regression": earlier("figure4b", *figure4b.problem(setting.scale), setting)
        or figure4b.comparison(setting.part(0.5, 1)),
    }
    numbers = [
        ratio_near(tasks["teacher-student"], None, "training = validation, teacher-student", 1.0),
        ratio_near(tasks["regression"], GATED, "validation over training, gated RNN", 2.0),
    ]
    for name, found in tasks.items():
        for rival in (LRU_PLAIN, LRU_MLP):
            numbers.append(at_equal_parameters(found, rival, name))
    rows = [{"task": name, **row} for name, found in tasks.items() for row in found.rows()]
    arrays = {
        f"{name}/{field}": array
        for name, found in tasks.items()
        for field, array in found.columns().items()
    }
    seeds = min(found.seeds for found in tasks.values())
    return Outcome(
        tuple(numbers),
        tuple(rows),
        (
            "At equal parameters: of each the size with the lowest training loss, among those "
            "with at most half as many again as the smaller of the two largest has.",
            *(
                f"The students on {name} are those of the finished result of "
                f"{found.read['experiment']}, judged at commit {found.read['commit']}."
                for name, found in tasks.items()
                if found.read
            ),
        ),
        tuple(range(seeds)),
        figure4a.PLANS[setting.scale][2].recipe.steps,
        arrays,
        tuple(run for found in tasks.values() for run in found.runs),
        tuple(one for found in tasks.values() if found.read for one in found.read["training"]),
    )


def ratio_near(found: Comparison, name: str | None, what: str, target: float) -> Number:
    """The median over students of validation over training loss, within a tenth."""
    students = [
        one
        for one in (found.students if name is None else found.widest(name, 1))
        if one.training and one.validation is not None
    ]
    ratios = [one.validation / one.training for one in students]  # type: ignore[operator]
    median = float(np.median(ratios)) if ratios else None
    holds = median is not None and abs(median / target - 1) <= 0.1
    verdict = REPRODUCED if holds else DIFFERS
    verdict = verdict if found.seeds >= 4 else NOT_JUDGED
    rule = f"median over students = {target:g} within 10 %"
    return Number(what, median, target, rule, verdict, found.seeds)


def at_equal_parameters(found: Comparison, rival: str, task: str) -> Number:
    """LRU In+Out against another LRU: the best group of each with about what both can afford."""
    largest = [max(one.parameters for one in found.pick(name)) for name in (LRU_IN_OUT, rival)]
    most = EQUAL * min(largest)
    ours, theirs = (found.best(name, "training", most) for name in (LRU_IN_OUT, rival))
    title = f"LRU In+Out < {rival} at equal parameters, {task}"
    if ours is None or theirs is None:
        return Number(title, None, "below", "both afford a width", NOT_JUDGED, found.seeds)
    return ordered(
        title, found.values(ours, "training"), found.values(theirs, "training"), paper="below"
    )
