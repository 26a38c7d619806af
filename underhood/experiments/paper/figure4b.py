"""Who learns in context better than one gradient step (Figure 4B)?

In-context regression, validated on tasks of twice the variance that were never seen in training.
One optimal gradient step, the best that linear attention can do, is known in closed form. The
paper: nonlinear layers with enough parameters beat it, the GRU is best, LRU In+Out far better than
LRU, and an MLP in place of its gates poor. "Enough parameters" is judged at each architecture's
best size, the pairs of LRUs at the largest width of each depth.
"""

from typing import Any

import numpy as np

from underhood.experiments.paper.figure4a import RATES, notes_on
from underhood.experiments.protocols.architectures import (
    GATED,
    GRU_,
    LRU_IN_OUT,
    LRU_MLP,
    LRU_PLAIN,
    LSTM_,
)
from underhood.experiments.protocols.comparison import Comparison, Plan
from underhood.experiments.protocols.rate_search import compare
from underhood.experiments.running.outcomes import Outcome
from underhood.experiments.running.rules import Number, below, near, ordered
from underhood.experiments.running.setting import Setting
from underhood.tasks import InContextRegression, Task
from underhood.training import Recipe

# The paper's comparison runs 300,000 updates; ours a third of that.
PLANS = {
    "smoke": Plan({1: (4,)}, 2, Recipe(steps=10, batch=8), (1e-2,), 5),
    "quick": Plan({1: (32,)}, 6, Recipe(steps=9_000, batch=32), RATES["quick"], 1_000),
    "paper": Plan(
        {1: (8, 16, 32, 64, 128), 2: (8, 16, 32, 64)},
        4,
        Recipe(steps=100_000),
        RATES["paper"],
        10_000,
    ),
}
STUDENTS = 541
MEASURE = "validation"
WHERE = "at each architecture's best size, pairs of LRUs at the largest width of each depth"


def problem(scale: str) -> tuple[Task, Plan]:
    """The task, and who is trained on it."""
    return InContextRegression(), PLANS[scale]


def comparison(setting: Setting) -> Comparison:
    """The students, shared with figure6."""
    return compare("figure4b", *problem(setting.scale), STUDENTS, setting)


def run(setting: Setting) -> Outcome:
    """Against the gradient step, and against each other."""
    found = comparison(setting)
    plan = PLANS[setting.scale]
    line = found.task.validation().best_loss
    best = {
        name: found.values(found.best(name, MEASURE) or [], MEASURE)
        for name in (GRU_, LSTM_, LRU_IN_OUT, LRU_PLAIN, LRU_MLP, GATED)
    }
    numbers: list[Number] = [
        near("one gradient step", line, 0.1892, 5e-5, what="closed form", paper=None, seeds=1)
    ]
    numbers += [
        below(f"{name} < gradient step", best[name], line, paper="below")
        for name in (GRU_, LSTM_, LRU_IN_OUT)
    ]
    numbers += [
        ordered(f"GRU < {name}", best[GRU_], best[name], paper="GRU best")
        for name in best
        if name != GRU_
    ]
    for depth in plan.widths:
        layers = f"{depth} layer{'s' if depth > 1 else ''}"
        in_out, plain, mlp = (
            found.values(found.widest(name, depth), MEASURE)
            for name in (LRU_IN_OUT, LRU_PLAIN, LRU_MLP)
        )
        numbers += [
            ordered(f"LRU In+Out < LRU, {layers}", in_out, plain, paper="far below", least=2),
            ordered(f"LRU In+Out < In+Out MLP, {layers}", in_out, mlp, paper="far below"),
        ]
    rows = [
        {
            **row,
            "below the gradient step": share_below(found, row, line),
        }
        for row in found.rows()
    ]
    return Outcome(
        tuple(numbers),
        tuple(rows),
        notes_on(found, plan, "300,000", WHERE),
        tuple(range(found.seeds)),
        plan.recipe.steps,
        {**found.arrays(), "gradient_step": np.array(line)},
        found.runs,
    )


def share_below(found: Comparison, row: dict[str, Any], line: float) -> str:
    """How many seeds of a row beat the gradient step."""
    students = found.pick(row["architecture"], row["layers"], row["width"])
    values = found.values(students, MEASURE)
    return f"{sum(value < line for value in values)} of {len(values)}"
