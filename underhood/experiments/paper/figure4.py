"""All architectures on one task (Figure 4): who mimics attention, and who learns in context?

A  Test loss of a linear-attention teacher, at the largest width of each depth.
B  In-context regression, validated on tasks of twice the variance, against one optimal gradient
   step, the best that linear attention can do; at each architecture's best size.

At paper scale the protocol is the paper's, at one width for each depth. Figure 6 trains more widths
at searched learning rates. docs/reproduction.md has the paper's orders and the rules.
"""

import jax
import numpy as np

from underhood.experiments.protocols.architectures import PAPER_ARCHITECTURES
from underhood.experiments.protocols.comparison import Comparison, compare
from underhood.experiments.protocols.rate_search import SEARCH, ComparisonPlan, Widths
from underhood.experiments.running import Outcome, Setting
from underhood.experiments.running.rules import below, ordered, ours, shown, similar
from underhood.results import architectures as names
from underhood.results.files import Number
from underhood.tasks import InContextRegression, Task, TeacherStudent
from underhood.training import Recipe
from underhood.training.recipes import PAPER_STEPS

FIGURE4A_TEACHER_KEY, FIGURE4A_KEY, FIGURE4B_KEY = 530, 531, 541
LRUS = (names.LRU_IN_OUT, names.LRU_PLAIN, names.LRU_MLP)
MEASURE = "validation"
# The paper's protocol takes hours at every width, so each depth has one.
ONE_WIDTH: Widths = {1: (64,), 2: (32,)}
PAPER_RATES = ((1e-3,), 0)
# Updates on in-context regression (Appendix C.2).
REGRESSION_STEPS = 300_000


def plan_figure4a(scale: str) -> ComparisonPlan:
    plans: dict[str, tuple[int, int, Widths, int, Recipe]] = {
        "smoke": (2, 4, {1: (4,)}, 2, Recipe(steps=10, batch=8)),
        "quick": (3, 16, {1: (16,), 2: (16,)}, 4, Recipe(steps=4_000, batch=32)),
        "paper": (6, 32, ONE_WIDTH, 4, Recipe(steps=PAPER_STEPS)),
    }
    d, length, widths, seeds, recipe = plans[scale]
    task = TeacherStudent.random(d, length=length, key=jax.random.key(FIGURE4A_TEACHER_KEY))
    return as_planned("figure4a", task, FIGURE4A_KEY, widths, seeds, recipe, scale)


def plan_figure4b(scale: str) -> ComparisonPlan:
    plans: dict[str, tuple[Widths, int, Recipe]] = {
        "smoke": ({1: (4,)}, 2, Recipe(steps=10, batch=8)),
        "quick": ({1: (32,)}, 6, Recipe(steps=9_000, batch=32)),
        "paper": (ONE_WIDTH, 4, Recipe(steps=REGRESSION_STEPS)),
    }
    return as_planned("figure4b", InContextRegression(), FIGURE4B_KEY, *plans[scale], scale)


def as_planned(
    name: str, task: Task, key: int, widths: Widths, seeds: int, recipe: Recipe, scale: str
) -> ComparisonPlan:
    """Return a plan: the paper's protocol at paper scale, else with a search of the rates."""
    if scale == "paper":
        more = (*PAPER_RATES, PAPER_ARCHITECTURES)
        return ComparisonPlan(name, task, key, widths, seeds, recipe, *more)
    return ComparisonPlan(name, task, key, widths, seeds, recipe, *SEARCH[scale])


def in_layers(depth: int) -> str:
    return f"{depth} layer{'s' if depth > 1 else ''}"


def reproduce_figure4a(setting: Setting) -> Outcome:
    plan = plan_figure4a(setting.scale)
    comparison = compare(plan, setting)
    outcome = Outcome(numbers=judge_imitation(comparison, plan), rows=comparison.rows())
    return comparison.complete(
        outcome,
        plan,
        updates="as in the paper" if setting.scale == "paper" else "against the paper's 781,250",
        where="at the largest width of each depth",
    )


def judge_imitation(comparison: Comparison, plan: ComparisonPlan) -> list[Number]:
    """Judge who mimics attention, at the largest width of each depth."""
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
    return numbers


def reproduce_figure4b(setting: Setting) -> Outcome:
    plan = plan_figure4b(setting.scale)
    comparison = compare(plan, setting)
    line = plan.task.validation().best_loss
    rows = comparison.rows()
    for row, group in zip(rows, comparison.groups(), strict=True):
        losses = comparison.values(group, MEASURE)
        beat = sum(loss < line for loss in losses)
        row["below the gradient step"] = f"{beat} of {len(losses)}"
    outcome = Outcome(
        numbers=judge_learning(comparison, plan),
        rows=rows,
        arrays={"gradient_step": np.array(line)},
    )
    return comparison.complete(
        outcome,
        plan,
        updates="as in the paper" if setting.scale == "paper" else "against the paper's 300,000",
        where="at each architecture's best size, pairs of LRUs at the largest width of each depth",
    )


def judge_learning(comparison: Comparison, plan: ComparisonPlan) -> list[Number]:
    """Judge who learns in context, at the best size; pairs of LRUs at the largest width."""
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
    return numbers
