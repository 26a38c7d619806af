"""Teachers of low rank are learned by fewer neurons (Figure 3B): r² key-values and r queries.

With W_V and M of rank r in general position (r ≤ d/2, so that their spaces do not meet) nothing is
symmetric, and the smallest network has r² + r neurons and r² gate outputs.
"""

import jax

from underhood.experiments.protocols.sizes import Sweep, sweep
from underhood.experiments.running.outcomes import Outcome
from underhood.experiments.running.setting import Setting
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
# By scale; the quick scale has seeds of its own, on which nothing was tried before.
KEYS = {"smoke": 520, "quick": 620, "paper": 520}


def run(setting: Setting) -> Outcome:
    """Teachers of rank r."""
    d, rank, length, plan = PLANS[setting.scale]
    key = KEYS[setting.scale]
    task = TeacherStudent.random(d, rank, length=length, key=jax.random.key(key))
    return sweep("figure3b", task, plan, key + 1, rank * rank + rank, rank * rank, setting)
