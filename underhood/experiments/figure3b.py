"""Teachers of low rank are learned by fewer neurons (Figure 3B): r² key-values and r queries.

With W_V and M of rank r in general position (r ≤ d/2, so that their spaces do not meet) nothing is
symmetric, and the smallest network has r² + r neurons and r² gate outputs.
"""

import jax

from underhood.experiments.results import Outcome
from underhood.experiments.setting import Setting
from underhood.experiments.sizes import Sweep, sweep
from underhood.tasks import TeacherStudent
from underhood.training import Recipe

# d, rank, the length of training sequences, and the sizes.
PLANS = {
    "smoke": (2, 1, 8, Sweep((2, 3), (), 2, Recipe.fast(steps=30, batch=8))),
    "quick": (4, 2, 16, Sweep((3, 4, 6, 8, 10, 12), (), 4, Recipe.fast(steps=8_000, batch=32))),
    "paper": (
        12,
        6,
        32,
        Sweep((18, 26, 34, 38, 42, 46, 52, 62, 84, 110), (), 4, Recipe.paper()),
    ),
}
TEACHER, STUDENTS = 520, 521


def run(setting: Setting) -> Outcome:
    """Teachers of rank r."""
    d, rank, length, plan = PLANS[setting.scale]
    task = TeacherStudent.random(d, rank, length=length, key=jax.random.key(TEACHER))
    return sweep("figure3b", task, plan, STUDENTS, rank * rank + rank, rank * rank, setting)
