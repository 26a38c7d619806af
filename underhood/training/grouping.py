"""Which members share a program, and how students of different widths fit into one.

Members whose students have the same structure are vmapped in one program. A CPU gains nothing from
a wide program, because its activations leave the cache: there each member runs alone, as many at a
time as there are cores.

Padding adds zeros at the end of every axis. A neuron with zero weights outputs what nobody reads,
so the padded student is the same function. It stays so because gradients are masked: the mask is 1
on a student's own weights and 0 on the rest, and an optimiser that sees zero gradients on zero
weights leaves them zero.

This holds for our own layers (`tests/training/test_training.py` tries each of them). A foreign
layer may normalise over its width, say, so it is never padded: it shares programs only with
students of equal shapes.
"""

from collections.abc import Hashable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from underhood.training.ensemble import Parts, Shapes

# A padded program does the work of its widest member for each; beyond this waste two programs
# are better than one, although an accelerator waits for launches more than for arithmetic.
MOST_PADDING = 8.0
# The numbers of the members in each group.
Grouping = tuple[tuple[int, ...], ...]


def group(students: Sequence[Parts], lanes: int | None) -> Grouping:
    """Return members by program, at most `lanes` in each; None: as many as padding allows."""
    groups: list[tuple[int, ...]] = []
    for members in numbers_by_kind(students).values():
        # By size, so that members that must be split are padded least.
        members.sort(key=lambda number: numbers_in(students[number].shapes))
        current: list[int] = []
        for number in members:
            trial = [*current, number]
            full = lanes is not None and len(trial) > lanes
            if current and (full or waste([students[n].shapes for n in trial]) > MOST_PADDING):
                groups.append(tuple(current))
                trial = [number]
            current = trial
        groups.append(tuple(current))
    return tuple(groups)


def numbers_by_kind(students: Sequence[Parts]) -> dict[Hashable, list[int]]:
    """Return the numbers of the students that one program could train."""
    by_kind: dict[Hashable, list[int]] = {}
    for number, parts in enumerate(students):
        by_kind.setdefault(parts.kind(), []).append(number)
    return by_kind


def waste(shapes_of_each: Sequence[Shapes]) -> float:
    """Return how many times more numbers the padded weights hold than the members' own."""
    needed = sum(map(numbers_in, shapes_of_each))
    return len(shapes_of_each) * numbers_in(common_shapes(shapes_of_each)) / max(needed, 1)


def common_shapes(shapes_of_each: Sequence[Shapes]) -> Shapes:
    """Return the smallest shapes that hold all of them."""
    by_array = zip(*shapes_of_each, strict=True)
    return tuple(tuple(map(max, zip(*shapes, strict=True))) for shapes in by_array)


def numbers_in(shapes: Shapes) -> int:
    return sum(int(np.prod(shape)) for shape in shapes)


def pad(weights: PyTree, shapes: Shapes) -> PyTree:
    """Return the weights with zeros at the end of every axis."""
    leaves, structure = jax.tree.flatten(weights)
    # Numbers without axes give an empty list, which jnp.pad refuses.
    padded = [
        jnp.pad(leaf, [(0, to - now) for now, to in zip(leaf.shape, shape, strict=True)] or 0)
        for leaf, shape in zip(leaves, shapes, strict=True)
    ]
    return jax.tree.unflatten(structure, padded)


def cut(weights: PyTree, shapes: Shapes) -> PyTree:
    """Undo `pad`."""
    leaves, structure = jax.tree.flatten(weights)
    parts = [leaf[tuple(map(slice, shape))] for leaf, shape in zip(leaves, shapes, strict=True)]
    return jax.tree.unflatten(structure, parts)


def mask_of(weights: PyTree, shapes: Shapes) -> PyTree:
    """Return 1 where a student has weights of its own and 0 where it is padded."""
    return pad(jax.tree.map(jnp.ones_like, weights), shapes)
