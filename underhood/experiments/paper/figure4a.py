"""Which architectures can mimic attention (Figure 4A): test loss of a linear-attention teacher.

The paper's order, from low to high: gated RNN (diagonal ≈ dense), far below LRU In+Out, below LRU,
below LSTM ≈ GRU; an MLP in place of the gates makes it worse. Judged at the largest width of each
depth, by medians and quartiles over seeds.
"""

import jax

from underhood.experiments.protocols.architectures import (
    DENSE,
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
from underhood.experiments.running.rules import Number, alike, ordered
from underhood.experiments.running.setting import Setting
from underhood.tasks import Task, TeacherStudent
from underhood.training import Recipe

RATES = {"quick": (3e-3, 1e-2, 3e-2, 1e-1), "paper": (1e-3, 3e-3, 1e-2, 3e-2)}
# d, length, and the plan. The paper's comparison runs a million updates; ours a tenth of that.
PLANS = {
    "smoke": (2, 4, Plan({1: (4,)}, 2, Recipe(steps=10, batch=8), (1e-2,), 5)),
    "quick": (
        3,
        16,
        Plan({1: (16,), 2: (16,)}, 4, Recipe(steps=4_000, batch=32), RATES["quick"], 1_000),
    ),
    "paper": (
        6,
        32,
        Plan(
            {1: (8, 16, 32, 64, 128), 2: (8, 16, 32, 64)},
            4,
            Recipe(steps=100_000),
            RATES["paper"],
            10_000,
        ),
    ),
}
TEACHER, STUDENTS = 530, 531


def problem(scale: str) -> tuple[Task, Plan]:
    """The task, and who is trained on it."""
    d, length, plan = PLANS[scale]
    return TeacherStudent.random(d, length=length, key=jax.random.key(TEACHER)), plan


def comparison(setting: Setting) -> Comparison:
    """The students, shared with figure6."""
    return compare("figure4a", *problem(setting.scale), STUDENTS, setting)


def run(setting: Setting) -> Outcome:
    """The paper's order, pair by pair."""
    found = comparison(setting)
    gated = losses(found, GATED, 1)
    numbers: list[Number] = [
        alike("diagonal ≈ dense", gated, losses(found, DENSE, 1), 10, paper="alike")
    ]
    plan = PLANS[setting.scale][2]
    for depth in plan.widths:
        layers = f"{depth} layer{'s' if depth > 1 else ''}"
        in_out, plain, mlp, lstm, gru = (
            losses(found, name, depth) for name in (LRU_IN_OUT, LRU_PLAIN, LRU_MLP, LSTM_, GRU_)
        )
        numbers += [
            ordered(
                f"gated RNN < LRU In+Out, {layers}", gated, in_out, paper="far below", least=10
            ),
            ordered(f"LRU In+Out < LRU, {layers}", in_out, plain, paper="below"),
            ordered(f"LRU < LSTM, {layers}", plain, lstm, paper="below"),
            alike(f"LSTM ≈ GRU, {layers}", lstm, gru, 3, paper="alike"),
            ordered(f"LRU In+Out < In+Out MLP, {layers}", in_out, mlp, paper="below"),
        ]
    return Outcome(
        tuple(numbers),
        tuple(found.rows()),
        notes_on(found, plan, "million", "at the largest width of each depth"),
        tuple(range(found.seeds)),
        plan.recipe.steps,
        found.arrays(),
        found.runs,
    )


def losses(found: Comparison, name: str, depth: int) -> list[float]:
    """Test losses of the widest students."""
    return found.values(found.widest(name, depth), "loss")


def notes_on(found: Comparison, plan: Plan, paper: str, where: str) -> tuple[str, ...]:
    """Steps, sizes that are judged, and learning rates, in words."""
    notes = [f"{plan.recipe.steps:,} updates, against the paper's {paper}; judged {where}."]
    if len(plan.rates) > 1:
        grid = ", ".join(f"{rate:g}" for rate in plan.rates)
        notes.append(
            f"The rate of each depth and width: the best of {grid} after the first "
            f"{plan.search_steps:,} updates of one student that is not judged. Where the training "
            "loss of a student ends above twice its lowest, its size is trained again at the next "
            f"smaller rate; so it was for {'; '.join(found.broke) or 'none'}."
        )
    return tuple(notes)
