"""Identification needs mild overparametrisation (Figure 3A): loss against the student's size.

The construction needs d(d+1)/2 neurons for key-values, d for queries, and as many gate outputs as
key-values. The rules are in `sizes.py`.
"""

import jax

from underhood.experiments.protocols.sizes import Sweep, sweep
from underhood.experiments.running.outcomes import Outcome
from underhood.experiments.running.setting import Setting
from underhood.tasks import TeacherStudent
from underhood.training import Recipe

# d, the length of training sequences, and the sizes.
PLANS = {
    "smoke": (2, 8, Sweep((3, 5), (3,), 2, Recipe.fast(steps=30, batch=8))),
    "quick": (
        3,
        16,
        Sweep((5, 7, 9, 12, 15, 18), (3, 6, 9), 4, Recipe.fast(steps=8_000, batch=32)),
    ),
    "paper": (
        4,
        32,
        Sweep(
            (6, 8, 10, 12, 14, 16, 20, 24, 28, 36, 48), (4, 7, 10, 13, 16, 20), 4, Recipe.paper()
        ),
    ),
}
# By scale; the quick scale has seeds of its own, on which nothing was tried before.
KEYS = {"smoke": 510, "quick": 610, "paper": 510}


def run(setting: Setting) -> Outcome:
    """Full-rank teachers."""
    d, length, plan = PLANS[setting.scale]
    key = KEYS[setting.scale]
    task = TeacherStudent.random(d, length=length, key=jax.random.key(key))
    memory = d * (d + 1) // 2
    return sweep("figure3a", task, plan, key + 1, memory + d, memory, setting)
