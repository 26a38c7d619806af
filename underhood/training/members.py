"""The members of an ensemble: every combination of width, axes and seed.

A member's keys depend on the run's key and on its own seed alone. So the same seed at another
width, or in another ensemble, starts from the same draw and sees the same sequences.
"""

import contextlib
import itertools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from underhood.common.errors import BadInput, check_name, with_article
from underhood.common.numbers import is_whole
from underhood.layers import LinearAttention
from underhood.tasks import Task, TeacherStudent

# What may differ between members without changing the program.
NUMBER_AXES = ("learning_rate", "weight_decay")
TEACHER_AXIS = "teacher"
# Values by the axis' name; numbers also as {width: value}.
Axes = Mapping[str, Iterable[PyTree]]
# A seed is folded into a key as 32 bits.
LARGEST_SEED = 2**31 - 1


@dataclass(frozen=True)
class Member:
    """One student of an ensemble; a teacher is named by its place in the axis."""

    seed: int
    width: int
    axes: tuple[tuple[str, float | int], ...] = ()

    def get(self, axis: str, default: float) -> float:
        return dict(self.axes).get(axis, default)


def combine(
    seeds: int | Iterable[int], widths: int | Iterable[int], axes: Axes | None, task: Task
) -> tuple[tuple[Member, ...], tuple[LinearAttention, ...]]:
    if is_whole(seeds):
        count = operator.index(seeds)  # type: ignore[arg-type]
        if count < 1:
            raise BadInput(f"train: seeds is {count}; train at least one, or list which.")
        seeds = range(count)
    seeds = distinct_whole_numbers("seeds", seeds, least=0)
    widths = distinct_whole_numbers("widths", (widths,) if is_whole(widths) else widths, least=1)
    if not isinstance(axes, Mapping | None):
        raise BadInput("train: axes is a dictionary from names to lists of values.")
    # The values of each axis, by width.
    places: dict[str, dict[int, Sequence[float]]] = {}
    teachers: tuple[LinearAttention, ...] = ()
    for name, values in (axes or {}).items():
        check_name("axis", name, (*NUMBER_AXES, TEACHER_AXIS))
        if not isinstance(values, Iterable):
            raise BadInput(f"train: the axis {name} is a list of values; write [value] for one.")
        if name == TEACHER_AXIS:
            teachers = check_teachers(tuple(values), task)
            places[name] = dict.fromkeys(widths, range(len(teachers)))
        elif isinstance(values, Mapping):
            if missing := [width for width in widths if width not in values]:
                raise BadInput(f"train: the axis {name} has no value for width {missing[0]}.")
            places[name] = {width: [axis_number(name, values[width])] for width in widths}
        else:
            numbers = [axis_number(name, value) for value in values]
            if len(set(numbers)) < len(numbers):
                raise BadInput(f"train: the axis {name} holds a value twice; list each once.")
            places[name] = dict.fromkeys(widths, numbers)
        if not all(places[name].values()):
            raise BadInput(f"train: the axis {name} is empty; give it at least one value.")
    members = tuple(
        Member(seed, width, tuple(zip(places, point, strict=True)))
        for width in widths
        for point in itertools.product(*(by_width[width] for by_width in places.values()))
        for seed in seeds
    )
    return members, teachers


def distinct_whole_numbers(name: str, values: PyTree, *, least: int) -> tuple[int, ...]:
    try:
        numbers = tuple(values)
    except TypeError:
        raise BadInput(f"train: {name} is a number or a list of numbers.") from None
    if not numbers:
        raise BadInput(f"train: {name} is empty; give at least one.")
    wanted = f"whole numbers from {least} to {LARGEST_SEED}"
    for number in numbers:
        if not is_whole(number) or not least <= operator.index(number) <= LARGEST_SEED:
            raise BadInput(f"train: {name} holds {number!r}; use {wanted}.")
    numbers = tuple(map(operator.index, numbers))
    if len(set(numbers)) < len(numbers):
        raise BadInput(f"train: {name} holds the same number twice; list each once.")
    return numbers


def axis_number(axis: str, value: PyTree) -> float:
    with contextlib.suppress(TypeError, ValueError):
        value = value if isinstance(value, bool | str) else float(value)
    if isinstance(value, float) and math.isfinite(value) and value >= 0:
        return value
    wanted = "finite numbers from 0 on" if isinstance(value, float) else "numbers"
    raise BadInput(f"train: the axis {axis} holds {value!r}; use {wanted}.")


def check_teachers(teachers: tuple[PyTree, ...], task: Task) -> tuple[LinearAttention, ...]:
    """Refuse all but attention layers with the shapes of the task's own teacher."""
    if not isinstance(task, TeacherStudent):
        kind = type(task).__name__
        raise BadInput(f"train: the axis teacher needs a TeacherStudent, not {kind}.")
    wanted = jax.tree.map(np.shape, task.attention)
    for number, teacher in enumerate(teachers):
        if not isinstance(teacher, LinearAttention):
            kind = type(teacher).__name__
            raise BadInput(
                f"train: teacher {number} is {with_article(kind)}, not a LinearAttention."
            )
        if not eqx.tree_equal(jax.tree.map(np.shape, teacher), wanted):
            raise BadInput(f"train: teacher {number} differs in fields or shapes from the task's.")
    return teachers
