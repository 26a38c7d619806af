"""Which architectures can mimic attention (Figure 4A): test loss of a linear-attention teacher.

The paper's order, from low to high: gated RNN (diagonal ≈ dense), far below LRU In+Out, below LRU,
below LSTM ≈ GRU; an MLP in place of the gates makes it worse. Judged at the largest width of each
depth, by medians and quartiles over seeds.
"""

import jax

from underhood.experiments.protocols.comparison import PAPER_WIDTHS, SEARCH, ComparisonPlan, Widths
from underhood.experiments.protocols.rate_search import compare
from underhood.experiments.running import Outcome, Setting
from underhood.experiments.running.rules import ordered, similar
from underhood.results.architectures import (
    DENSE,
    GATED,
    GRU_NAME,
    LRU_IN_OUT,
    LRU_MLP,
    LRU_PLAIN,
    LSTM_NAME,
)
from underhood.tasks import TeacherStudent
from underhood.training import Recipe

FIGURE4A_TEACHER_KEY, FIGURE4A_KEY = 530, 531


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


def reproduce_figure4a(setting: Setting) -> Outcome:
    """Judge the paper's order, pair by pair."""
    plan = plan_figure4a(setting.scale)
    comparison = compare(plan, setting)

    def losses(name: str, depth: int) -> list[float]:
        return comparison.values(comparison.widest(name, depth), "loss")

    gated = losses(GATED, 1)
    numbers = [similar("diagonal ≈ dense", gated, losses(DENSE, 1), 10, paper="alike")]
    for depth in plan.widths:
        layers = f"{depth} layer{'s' if depth > 1 else ''}"
        in_out, plain, mlp, lstm, gru = (
            losses(name, depth) for name in (LRU_IN_OUT, LRU_PLAIN, LRU_MLP, LSTM_NAME, GRU_NAME)
        )
        numbers += [
            ordered(
                f"gated RNN < LRU In+Out, {layers}", gated, in_out, paper="far below", least=10
            ),
            ordered(f"LRU In+Out < LRU, {layers}", in_out, plain, paper="below"),
            ordered(f"LRU < LSTM, {layers}", plain, lstm, paper="below"),
            similar(f"LSTM ≈ GRU, {layers}", lstm, gru, 3, paper="alike"),
            ordered(f"LRU In+Out < In+Out MLP, {layers}", in_out, mlp, paper="below"),
        ]
    where = "at the largest width of each depth"
    return comparison.outcome(
        plan, numbers, comparison.rows(), updates="million", where=where, arrays={}
    )
