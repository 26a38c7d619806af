"""Loss against the student's size (Figure 3); the rules are in `protocols/sizes.py`.

A  Identification needs mild overparametrisation. The construction needs d(d+1)/2 neurons for
   key-values, d for queries, and as many gate outputs as key-values.
B  Teachers of low rank are learned by fewer neurons. With W_V and M of rank r in general position
   (r ≤ d/2, so that their spaces do not meet) nothing is symmetric, and the smallest network has r²
   key-values, r queries and r² gate outputs.
C  In-context regression needs few neurons, because a gradient step is low-rank attention: values
   read y (rank d_y), keys and queries read x (rank d_x), so d_x·d_y key-values and d_x queries.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from underhood.experiments.protocols.sizes import SizePlan, reproduce_sizes
from underhood.experiments.running import Outcome, Setting
from underhood.sweeps.study import Study
from underhood.tasks import InContextRegression, TeacherStudent
from underhood.training import Recipe

# Neurons of the first axis, gate outputs of the second, seeds, recipe, key, and at paper scale how
# many sizes each run holds and which are trained with weight decay too. The quick scale has keys of
# its own, on which nothing was tried before.
Sizes = tuple[Any, ...]  # Any: the fields of SizePlan from `neurons` on
# The paper decays weights "in the experiment of Section 4.1", which this is not.
SMOKE = Recipe.fast(steps=30, batch=8, weight_decay=0.0)
QUICK = Recipe.fast(steps=8_000, batch=32, weight_decay=0.0)
PAPER, LONG = Recipe.paper(weight_decay=0.0), Recipe.paper(steps=300_000, weight_decay=0.0)
MANY_NEURONS, MANY_GATES = (10, 12, 14, 16, 18, 20, 24, 28, 48), (7, 9, 10, 11, 13, 20)
LOW_RANK_NEURONS = (26, 34, 38, 42, 46, 52, 62, 84, 110)
# The width and the rank of the teacher, the length of its sequences, and the sizes.
TeacherSizes = tuple[int, int, int, Sizes]
FIGURE3A: dict[str, TeacherSizes] = {
    "smoke": (2, 2, 8, ((3, 5), (3,), 2, SMOKE, 510)),
    "quick": (3, 3, 16, ((5, 7, 9, 12, 15, 18), (3, 6, 9), 4, QUICK, 610)),
    "paper": (
        *(4, 4, 32),
        (MANY_NEURONS, MANY_GATES, 8, PAPER, 510, (4, 4, 1, 6), (12, 14, 16, 20, 28)),
    ),
}
FIGURE3B: dict[str, TeacherSizes] = {
    "smoke": (2, 1, 8, ((2, 3), (), 2, SMOKE, 520)),
    "quick": (4, 2, 16, ((3, 4, 6, 8, 10, 12), (), 4, QUICK, 620)),
    "paper": (12, 6, 32, (LOW_RANK_NEURONS, (), 4, PAPER, 520, (5, 2, 2), (42, 46, 62, 84))),
}
FIGURE3C: dict[str, Sizes] = {
    "smoke": ((6, 12), (), 2, Recipe.noisy(steps=30, batch=8, weight_decay=0.0), 22),
    "quick": ((6, 9, 12, 16, 20, 24), (), 4, Recipe.noisy(steps=15_000, weight_decay=0.0), 632),
    "paper": ((6, 8, 10, 12, 14, 16, 20, 24, 32, 48), (), 8, LONG, 22, (), (8, 12, 16, 24)),
}


def plan_figure3c(scale: str) -> SizePlan:
    task = InContextRegression()
    memory = task.d_x * task.d_y
    predicted = memory + task.d_x, memory
    neurons, gates, seeds, recipe, key, *more = FIGURE3C[scale]
    # "around the number of recurrent neurons prescribed by our low-rank construction"
    paper = "fall", predicted[0]
    return SizePlan(task, predicted, neurons, gates, seeds, recipe, key, paper, *more)


def plan_teacher(plans: dict[str, TeacherSizes], scale: str) -> SizePlan:
    """Plan students of a random teacher; its key is the given one, the students' the next."""
    d, rank, length, (neurons, gates, seeds, recipe, key, *more) = plans[scale]
    task = TeacherStudent.random(d, rank, length=length, key=jax.random.key(key))
    memory = d * (d + 1) // 2 if rank == d else rank * rank
    predicted = memory + rank, memory
    # Full rank: identification takes "around twice as many neurons as the actual number of neurons
    # required". Low rank: the transition is where "the number of hidden neurons match" r(r + 1).
    paper = ("median", f"around twice {predicted[0]}") if rank == d else ("fall", predicted[0])
    return SizePlan(task, predicted, neurons, gates, seeds, recipe, key + 1, paper, *more)


# From a scale to the sizes.
PLANS: dict[str, Callable[[str], SizePlan]] = {
    "figure3a": partial(plan_teacher, FIGURE3A),
    "figure3b": partial(plan_teacher, FIGURE3B),
    "figure3c": plan_figure3c,
}


def studies_of(name: str, setting: Setting) -> dict[str, Study]:
    """Return what a panel trains, by the names of the runs."""
    plan = PLANS[name](setting.scale)
    return plan.every_study(name, setting.count(plan.seeds))


def reproduce_figure3(name: str, setting: Setting) -> Outcome:
    return reproduce_sizes(name, PLANS[name](setting.scale), setting)


reproduce_figure3a, reproduce_figure3b, reproduce_figure3c = (
    partial(reproduce_figure3, name) for name in PLANS
)
