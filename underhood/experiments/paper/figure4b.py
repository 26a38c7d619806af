"""Who learns in context better than one gradient step (Figure 4B)?

In-context regression, validated on tasks of twice the variance that were never seen in training.
One optimal gradient step, the best that linear attention can do, is known in closed form. The
paper: nonlinear layers with enough parameters beat it, the GRU is best, LRU In+Out far better than
LRU, and an MLP in place of its gates poor. "Enough parameters" is judged at each architecture's
best size, the pairs of LRUs at the largest width of each depth.
"""

import numpy as np

from underhood.experiments.protocols.comparison import PAPER_WIDTHS, SEARCH, ComparisonPlan, Widths
from underhood.experiments.protocols.rate_search import compare
from underhood.experiments.running import Outcome, Setting
from underhood.experiments.running.rules import below, near, ordered
from underhood.results.architectures import (
    GATED,
    GRU_NAME,
    LRU_IN_OUT,
    LRU_MLP,
    LRU_PLAIN,
    LSTM_NAME,
)
from underhood.tasks import InContextRegression
from underhood.training import Recipe

FIGURE4B_KEY = 541
MEASURE = "validation"


def plan_figure4b(scale: str) -> ComparisonPlan:
    """Plan the comparison. The paper trains for 300,000 updates; we for a third of that."""
    plans: dict[str, tuple[Widths, int, Recipe]] = {
        "smoke": ({1: (4,)}, 2, Recipe(steps=10, batch=8)),
        "quick": ({1: (32,)}, 6, Recipe(steps=9_000, batch=32)),
        "paper": (PAPER_WIDTHS, 4, Recipe(steps=100_000)),
    }
    plan, task = (*plans[scale], *SEARCH[scale]), InContextRegression()
    return ComparisonPlan("figure4b", task, FIGURE4B_KEY, *plan)


def reproduce_figure4b(setting: Setting) -> Outcome:
    """Judge the architectures against the gradient step, and against each other."""
    plan = plan_figure4b(setting.scale)
    comparison = compare(plan, setting)
    line = plan.task.validation().best_loss
    best = {
        name: comparison.values(comparison.best(name, MEASURE) or [], MEASURE)
        for name in (GRU_NAME, LSTM_NAME, LRU_IN_OUT, LRU_PLAIN, LRU_MLP, GATED)
    }
    numbers = [
        near("one gradient step", line, 0.1892, 5e-5, what="closed form", paper=None, seeds=1)
    ]
    numbers += [
        below(f"{name} < gradient step", best[name], line, paper="below")
        for name in (GRU_NAME, LSTM_NAME, LRU_IN_OUT)
    ]
    numbers += [
        ordered(f"GRU < {name}", best[GRU_NAME], losses, paper="GRU best")
        for name, losses in best.items()
        if name != GRU_NAME
    ]
    for depth in plan.widths:
        layers = f"{depth} layer{'s' if depth > 1 else ''}"
        in_out, plain, mlp = (
            comparison.values(comparison.widest(name, depth), MEASURE)
            for name in (LRU_IN_OUT, LRU_PLAIN, LRU_MLP)
        )
        numbers += [
            ordered(f"LRU In+Out < LRU, {layers}", in_out, plain, paper="far below", least=2),
            ordered(f"LRU In+Out < In+Out MLP, {layers}", in_out, mlp, paper="far below"),
        ]
    rows = comparison.rows()
    for row, group in zip(rows, comparison.groups(), strict=True):
        losses = comparison.values(group, MEASURE)
        beat = sum(loss < line for loss in losses)
        row["below the gradient step"] = f"{beat} of {len(losses)}"
    return comparison.outcome(
        plan,
        numbers,
        rows,
        updates="300,000",
        where="at each architecture's best size, pairs of LRUs at the largest width of each depth",
        arrays={"gradient_step": np.array(line)},
    )
