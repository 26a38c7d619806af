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
from typing import Any

import jax
from jaxtyping import PRNGKeyArray

from underhood.common.errors import BadInput
from underhood.common.numbers import is_whole
from underhood.layers import LinearAttention
from underhood.tasks import Task, TeacherStudent

# What may differ between members without changing the program.
NUMBERS = ("learning_rate", "weight_decay")
TEACHER = "teacher"

# A seed is folded into a key as 32 bits.
LARGEST = 2**31


@dataclass(frozen=True)
class Member:
    """One student of an ensemble; a teacher is named by its place in the axis."""

    seed: int
    width: int
    axes: tuple[tuple[str, float | int], ...] = ()

    def get(self, name: str, default: Any) -> Any:
        """The member's place on an axis, or what holds for all."""
        return dict(self.axes).get(name, default)


def combine(
    seeds: int | Iterable[int],
    widths: int | Iterable[int],
    axes: Mapping[str, Iterable[Any]] | None,
    task: Task,
) -> tuple[tuple[Member, ...], tuple[LinearAttention, ...]]:
    """All members, and the teachers of the teacher axis."""
    if is_whole(seeds):
        count = operator.index(seeds)  # type: ignore[arg-type]
        if count < 1:
            raise BadInput(f"train: seeds is {count}; train at least one, or list which.")
        seeds = range(count)
    seeds = whole_numbers("seeds", seeds, least=0)  # type: ignore[arg-type]
    widths = whole_numbers("widths", (widths,) if is_whole(widths) else widths, least=1)  # type: ignore[arg-type]
    if not isinstance(axes, Mapping | None):
        raise BadInput("train: axes is a dictionary from names to lists of values.")
    # The places of each width.
    places: dict[str, dict[int, Sequence[float]]] = {}
    teachers: tuple[LinearAttention, ...] = ()
    for name, values in (axes or {}).items():
        if not isinstance(values, Iterable):
            raise BadInput(f"train: the axis {name} is a list of values; write [value] for one.")
        if name == TEACHER:
            teachers = check_teachers(tuple(values), task)
            places[name] = dict.fromkeys(widths, range(len(teachers)))
        elif name in NUMBERS and isinstance(values, Mapping):
            if missing := [width for width in widths if width not in values]:
                raise BadInput(f"train: the axis {name} has no value for width {missing[0]}.")
            places[name] = {width: [check_number(name, values[width])] for width in widths}
        elif name in NUMBERS:
            numbers = [check_number(name, value) for value in values]
            if len(set(numbers)) < len(numbers):
                raise BadInput(f"train: the axis {name} holds a value twice; list each once.")
            places[name] = dict.fromkeys(widths, numbers)
        else:
            known = ", ".join((*NUMBERS, TEACHER))
            raise BadInput(f"train: unknown axis {name!r}; the axes are {known}.")
        if not all(places[name].values()):
            raise BadInput(f"train: the axis {name} is empty; give it at least one value.")
    members = tuple(
        Member(seed, width, tuple(zip(places, point, strict=True)))
        for width in widths
        for point in itertools.product(*(own[width] for own in places.values()))
        for seed in seeds
    )
    return members, teachers


def whole_numbers(name: str, values: Iterable[int], *, least: int) -> tuple[int, ...]:
    """Distinct whole numbers, at least one of them."""
    try:
        numbers = tuple(values)
    except TypeError:
        raise BadInput(f"train: {name} is a number or a list of numbers.") from None
    if not numbers:
        raise BadInput(f"train: {name} is empty; give at least one.")
    for number in numbers:
        if not is_whole(number) or not least <= operator.index(number) < LARGEST:
            raise BadInput(
                f"train: {name} holds {number!r}; use whole numbers from {least} to {LARGEST - 1}."
            )
    numbers = tuple(operator.index(number) for number in numbers)
    if len(set(numbers)) < len(numbers):
        raise BadInput(f"train: {name} holds the same number twice; list each once.")
    return numbers


def check_number(name: str, value: Any) -> float:
    """A finite number that is not negative."""
    with contextlib.suppress(TypeError, ValueError):
        value = value if isinstance(value, bool | str) else float(value)
    if not isinstance(value, float):
        raise BadInput(f"train: the axis {name} holds {value!r}; use numbers.")
    if not math.isfinite(value) or value < 0:
        raise BadInput(f"train: the axis {name} holds {value!r}; use finite numbers from 0 on.")
    return value


def check_teachers(teachers: tuple[Any, ...], task: Task) -> tuple[LinearAttention, ...]:
    """Attention layers that can stand where the task's own teacher stands."""
    if not isinstance(task, TeacherStudent):
        raise BadInput(
            f"train: the axis teacher needs a TeacherStudent, not {type(task).__name__}."
        )

    def shape(teacher: Any) -> Any:
        leaves, structure = jax.tree.flatten(teacher)
        return structure, [leaf.shape for leaf in leaves]

    for number, teacher in enumerate(teachers):
        if not isinstance(teacher, LinearAttention):
            kind = type(teacher).__name__
            raise BadInput(f"train: teacher {number} is a {kind}, not a LinearAttention.")
        if shape(teacher) != shape(task.attention):
            raise BadInput(f"train: teacher {number} has other weights or shapes than the task's.")
    return teachers


def member_keys(key: PRNGKeyArray, seed: int) -> tuple[PRNGKeyArray, PRNGKeyArray]:
    """A key for the first weights and a key for the sequences."""
    first, second = jax.random.split(jax.random.fold_in(key, seed))
    return first, second
