"""In-context regression needs few neurons (Figure 3C): a gradient step is low-rank attention.

Values read y (rank d_y), keys and queries read x (rank d_x): d_x·d_y key-values and d_x queries.
"""

from underhood.experiments.protocols.sizes import Sweep, sweep
from underhood.experiments.running.outcomes import Outcome
from underhood.experiments.running.setting import Setting
from underhood.tasks import InContextRegression
from underhood.training import Recipe

PLANS = {
    "smoke": Sweep((6, 12), (), 2, Recipe.noisy(steps=30, batch=8)),
    "quick": Sweep((6, 9, 12, 16, 20, 24), (), 4, Recipe.noisy(steps=15_000)),
    "paper": Sweep((6, 8, 10, 12, 14, 16, 20, 24, 32, 48), (), 4, Recipe.paper(steps=300_000)),
}
# By scale; the quick scale has seeds of its own, on which nothing was tried before.
KEYS = {"smoke": 22, "quick": 632, "paper": 22}


def run(setting: Setting) -> Outcome:
    """Regression students of growing size."""
    task = InContextRegression()
    memory = task.d_x * task.d_y
    plan = PLANS[setting.scale]
    return sweep("figure3c", task, plan, KEYS[setting.scale], memory + task.d_x, memory, setting)
