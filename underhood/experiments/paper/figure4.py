"""All architectures on one task (Figure 4): who mimics attention, and who learns in context?

A  Test loss of a linear-attention teacher, at the largest width of each depth.
B  In-context regression, validated on tasks of twice the variance, against one optimal gradient
   step, the best that linear attention can do; at each architecture's best size.

docs/reproduction.md has the paper's orders and the rules.
"""

import jax
import numpy as np

from underhood.experiments.protocols.comparison import compare
from underhood.experiments.protocols.rate_search import PAPER_WIDTHS, SEARCH, ComparisonPlan, Widths
from underhood.experiments.running import Outcome, Setting
from underhood.experiments.running.rules import below, ordered, ours, shown, similar
from underhood.results import architectures as names
from underhood.tasks import InContextRegression, TeacherStudent
from underhood.training import Recipe

FIGURE4A_TEACHER_KEY, FIGURE4A_KEY, FIGURE4B_KEY = 530, 531, 541
LRUS = (names.LRU_IN_OUT, names.LRU_PLAIN, names.LRU_MLP)
MEASURE = "validation"


def plan_figure4a(scale: str) -> ComparisonPlan:
    """Plan the comparison. The paper trains for a million updates; we for a tenth of that."""
    plans: dict[str, tuple[int, int, Widths, int, Recipe]] = {
        "smoke": (2, 4, {1: (4,)}, 2, Recipe(steps=10, batch=8)),
        "quick": (3, 16, {1: (16,), 2: (16,)}, 4, Recipe(steps=4_000, batch=32)),
        "paper": (6, 32, PAPER_WIDTHS, 4, Recipe(steps=100_000)),
    }
    d, length, widths, seeds, recipe = plans[scale]
    task = TeacherStudent.random(d, length=length, key=jax.random.key(FIGURE4A_TEACHER_KEY))
    return ComparisonPlan("figure4a", task, FIGURE4A_KEY, widths, seeds, recipe, *SEARCH[scale])


def plan_figure4b(scale: str) -> ComparisonPlan:
    """Plan the comparison. The paper trains for 300,000 updates; we for a third of that."""
    plans: dict[str, tuple[Widths, int, Recipe]] = {
        "smoke": ({1: (4,)}, 2, Recipe(steps=10, batch=8)),
        "quick": ({1: (32,)}, 6, Recipe(steps=9_000, batch=32)),
        "paper": (PAPER_WIDTHS, 4, Recipe(steps=100_000)),
    }
    plan = (*plans[scale], *SEARCH[scale])
    return ComparisonPlan("figure4b", InContextRegression(), FIGURE4B_KEY, *plan)


def in_layers(depth: int) -> str:
    return f"{depth} layer{'s' if depth > 1 else ''}"


def reproduce_figure4a(setting: Setting) -> Outcome:
    plan = plan_figure4a(setting.scale)
    comparison = compare(plan, setting)
    gated, dense = comparison.losses((names.GATED, names.DENSE), 1, "loss")
    numbers = [similar("diagonal ≈ dense", gated, dense, 10, paper="alike")]
    for depth in plan.widths:
        layers = in_layers(depth)
        compared = (*LRUS, names.LSTM_NAME, names.GRU_NAME)
        in_out, plain, mlp, lstm, gru = comparison.losses(compared, depth, "loss")
        title = f"gated RNN < LRU In+Out, {layers}"
        numbers += [
            ours(ordered(title, gated, in_out, paper=None, least=10)),
            ordered(f"LRU In+Out < LRU, {layers}", in_out, plain, paper="below"),
            ours(ordered(f"LRU < LSTM, {layers}", plain, lstm, paper=None)),
            similar(f"LSTM ≈ GRU, {layers}", lstm, gru, 3, paper="alike"),
            ordered(f"LRU In+Out < In+Out MLP, {layers}", in_out, mlp, paper="below"),
        ]
    outcome = Outcome(numbers=numbers, rows=comparison.rows())
    where = "at the largest width of each depth"
    return comparison.complete(outcome, plan, updates="million", where=where)


def reproduce_figure4b(setting: Setting) -> Outcome:
    plan = plan_figure4b(setting.scale)
    comparison = compare(plan, setting)
    line = plan.task.validation().best_loss
    gru, lstm = names.GRU_NAME, names.LSTM_NAME
    best = {
        name: comparison.values(comparison.best(name, MEASURE) or [], MEASURE)
        for name in (gru, lstm, *LRUS, names.GATED)
    }
    numbers = [shown("one gradient step", line, seeds=1)]
    numbers += [
        below(f"{name} < gradient step", best[name], line, paper="below")
        for name in (gru, lstm, names.LRU_IN_OUT)
    ]
    numbers += [
        ordered(f"GRU < {name}", best[gru], losses, paper="GRU best")
        for name, losses in best.items()
        if name != gru
    ]
    for depth in plan.widths:
        layers = in_layers(depth)
        in_out, plain, mlp = comparison.losses(LRUS, depth, MEASURE)
        numbers += [
            ordered(f"LRU In+Out < LRU, {layers}", in_out, plain, paper="far below", least=2),
            ordered(f"LRU In+Out < In+Out MLP, {layers}", in_out, mlp, paper="far below"),
        ]
    rows = comparison.rows()
    for row, group in zip(rows, comparison.groups(), strict=True):
        losses = comparison.values(group, MEASURE)
        beat = sum(loss < line for loss in losses)
        row["below the gradient step"] = f"{beat} of {len(losses)}"
    where = "at each architecture's best size, pairs of LRUs at the largest width of each depth"
    outcome = Outcome(numbers=numbers, rows=rows, arrays={"gradient_step": np.array(line)})
    return comparison.complete(outcome, plan, updates="300,000", where=where)
