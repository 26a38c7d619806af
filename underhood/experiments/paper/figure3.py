"""Loss against the student's size (Figure 3); the rules are in `protocols/sizes.py`.

A  Identification needs mild overparametrisation. The construction needs d(d+1)/2 neurons for
   key-values, d for queries, and as many gate outputs as key-values.
B  Teachers of low rank are learned by fewer neurons. With W_V and M of rank r in general position
   (r ≤ d/2, so that their spaces do not meet) nothing is symmetric, and the smallest network has r²
   key-values, r queries and r² gate outputs.
C  In-context regression needs few neurons, because a gradient step is low-rank attention: values
   read y (rank d_y), keys and queries read x (rank d_x), so d_x·d_y key-values and d_x queries.

The quick scale has keys of its own, on which nothing was tried before.
"""

from functools import partial

import jax

from underhood.experiments.protocols.sizes import SizePlan, reproduce_sizes
from underhood.experiments.running.outcomes import Outcome
from underhood.experiments.running.setting import Setting
from underhood.tasks import InContextRegression, TeacherStudent
from underhood.training import Recipe


def plan_teacher(
    d: int,
    rank: int,
    *,
    length: int,
    neurons: tuple[int, ...],
    gates: tuple[int, ...] = (),
    seeds: int = 4,
    recipe: Recipe,
    key: int,
) -> SizePlan:
    """Plan students of a random teacher of a rank; `length` is that of its sequences."""
    task = TeacherStudent.random(d, rank, length=length, key=jax.random.key(key))
    memory = d * (d + 1) // 2 if rank == d else rank * rank
    return SizePlan(task, neurons, gates, seeds, recipe, (memory + rank, memory), key + 1)


def plan_regression(
    *, neurons: tuple[int, ...], seeds: int = 4, recipe: Recipe, key: int
) -> SizePlan:
    """Plan students of in-context regression."""
    task = InContextRegression()
    memory = task.d_x * task.d_y
    return SizePlan(task, neurons, (), seeds, recipe, (memory + task.d_x, memory), key)


SMOKE, QUICK = Recipe.fast(steps=30, batch=8), Recipe.fast(steps=8_000, batch=32)

FIGURE3A = {
    "smoke": partial(
        plan_teacher, 2, 2, length=8, neurons=(3, 5), gates=(3,), seeds=2, recipe=SMOKE, key=510
    ),
    "quick": partial(
        plan_teacher,
        *(3, 3),
        length=16,
        neurons=(5, 7, 9, 12, 15, 18),
        gates=(3, 6, 9),
        recipe=QUICK,
        key=610,
    ),
    "paper": partial(
        plan_teacher,
        *(4, 4),
        length=32,
        neurons=(6, 8, 10, 12, 14, 16, 20, 24, 28, 36, 48),
        gates=(4, 7, 10, 13, 16, 20),
        recipe=Recipe.paper(),
        key=510,
    ),
}

FIGURE3B = {
    "smoke": partial(plan_teacher, 2, 1, length=8, neurons=(2, 3), seeds=2, recipe=SMOKE, key=520),
    "quick": partial(
        plan_teacher, 4, 2, length=16, neurons=(3, 4, 6, 8, 10, 12), recipe=QUICK, key=620
    ),
    "paper": partial(
        plan_teacher,
        *(12, 6),
        length=32,
        neurons=(18, 26, 34, 38, 42, 46, 52, 62, 84, 110),
        recipe=Recipe.paper(),
        key=520,
    ),
}

FIGURE3C = {
    "smoke": partial(
        plan_regression, neurons=(6, 12), seeds=2, recipe=Recipe.noisy(steps=30, batch=8), key=22
    ),
    "quick": partial(
        plan_regression,
        neurons=(6, 9, 12, 16, 20, 24),
        recipe=Recipe.noisy(steps=15_000),
        key=632,
    ),
    "paper": partial(
        plan_regression,
        neurons=(6, 8, 10, 12, 14, 16, 20, 24, 32, 48),
        recipe=Recipe.paper(steps=300_000),
        key=22,
    ),
}


def reproduce_figure3a(setting: Setting) -> Outcome:
    """Train on full-rank teachers."""
    return reproduce_sizes("figure3a", FIGURE3A[setting.scale](), setting)


def reproduce_figure3b(setting: Setting) -> Outcome:
    """Train on teachers of low rank."""
    return reproduce_sizes("figure3b", FIGURE3B[setting.scale](), setting)


def reproduce_figure3c(setting: Setting) -> Outcome:
    """Train on in-context regression."""
    return reproduce_sizes("figure3c", FIGURE3C[setting.scale](), setting)
