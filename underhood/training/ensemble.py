"""Members made, grouped and compiled: an `Ensemble` can be advanced from any step to any other."""

import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from underhood.common.errors import BadInput
from underhood.layers import LinearAttention
from underhood.tasks import Task
from underhood.training.device import (
    bytes_needed,
    compiler_options,
    cores,
    free_memory,
    is_cpu,
    precision_of,
)
from underhood.training.grouping import Grouping, Parts, group
from underhood.training.members import TEACHER, Member, member_keys
from underhood.training.padding import common_shapes, cut, mask_of, pad
from underhood.training.program_cache import PROGRAMS, key_of
from underhood.training.recipes import Recipe
from underhood.training.step import Given, State, advance_program, first_state

# Points of a loss curve.
WINDOWS = 500

# What checkpoints can hold and optimisers can be trusted with.
PRECISIONS = ("float32", "float64", "complex64", "complex128")


class Ensemble:
    """All members of a run, their students not trained yet."""

    def __init__(
        self,
        make_student: Callable[..., Any],
        members: Sequence[Member],
        teachers: Sequence[LinearAttention],
        task: Task,
        recipe: Recipe,
        key: PRNGKeyArray,
    ):
        self.members, self.teachers, self.recipe = members, teachers, recipe
        self.task = task if recipe.length is None else task.with_length(recipe.length)
        self.window = -(-recipe.steps // WINDOWS)
        self.windows = -(-recipe.steps // self.window)
        self.keys = [member_keys(key, member.seed) for member in members]
        self.students = [
            Parts.of(make(make_student, member.width, first, self.task))
            for member, (first, _) in zip(members, self.keys, strict=True)
        ]
        self.groups: Grouping = ()
        self.programs: list[Any] = []
        self.given: list[Given] = []
        self.at_once, self.bytes = 1, 0

    def arrange(self, lanes: int | None, grouping: Grouping | None, memory: int | None) -> None:
        """Group the members and compile their programs, in groups that fit into memory."""
        lanes = 1 if lanes is None and is_cpu() else lanes
        self.groups = grouping or group(self.students, lanes)
        budget = free_memory() if memory is None else memory
        while True:
            self.at_once = min(cores(), len(self.groups)) if is_cpu() else 1
            self.given = [self.given_to(one) for one in self.groups]
            self.programs = self.compile()
            needs = [bytes_needed(program) for program in self.programs]
            running = sorted((while_running for _, while_running in needs), reverse=True)
            self.bytes = sum(kept for kept, _ in needs) + sum(running[: self.at_once])
            largest = max(map(len, self.groups))
            if self.bytes <= budget or grouping:
                return
            if largest == 1:
                widest = max(member.width for member in self.members)
                raise BadInput(
                    f"train: {len(self.members)} members up to width {widest} need "
                    f"{self.bytes / 2**20:.1f} MiB of memory and may take {budget / 2**20:.1f}; "
                    "reduce the recipe's batch or length, the widths, or the number of members."
                )
            smaller = max(1, min(largest - 1, int(largest * budget / self.bytes)))
            self.groups = group(self.students, smaller)

    def given_to(self, numbers: Sequence[int]) -> Given:
        """A group's constants, stacked."""
        parts = [self.students[number] for number in numbers]
        members = [self.members[number] for number in numbers]
        shapes = common_shapes([one.shapes for one in parts])
        uniform = all(one.shapes == shapes for one in parts)
        teachers = [self.teachers[one.get(TEACHER, 0)] for one in members] if self.teachers else []
        hyper = {
            name: jnp.asarray([one.get(name, getattr(self.recipe, name)) for one in members])
            for name in ("learning_rate", "weight_decay")
        }
        return Given(
            fixed=stacked([one.fixed for one in parts]),
            mask=None if uniform else stacked([mask_of(one.weights, shapes) for one in parts]),
            numbers=hyper,
            key=jnp.stack([self.keys[number][1] for number in numbers]),
            teacher=stacked(teachers) if teachers else None,
        )

    def first_states(self) -> list[State]:
        """All groups before the first step."""
        states = []
        for numbers in self.groups:
            parts = [self.students[number] for number in numbers]
            shapes = common_shapes([one.shapes for one in parts])
            states.append(
                stacked(
                    [
                        first_state(pad(one.weights, shapes), self.recipe, self.windows)
                        for one in parts
                    ]
                )
            )
        return states

    def compile(self) -> list[Any]:
        """A program per group; groups that look alike share one, as do runs."""
        states = self.first_states()
        looks = [
            (self.students[numbers[0]].kind(), str(jax.tree.map(jnp.shape, (given, state))))
            for numbers, given, state in zip(self.groups, self.given, states, strict=True)
        ]

        def program(place: int) -> Any:
            static = self.students[self.groups[place][0]].static
            key = key_of(self.task, looks[place], self.recipe.whole)
            return PROGRAMS.get(key, (static, self.task, self.recipe), lambda: build(place, static))

        def build(place: int, static: Any) -> Any:
            options = compiler_options()
            advance = advance_program(static, self.task, self.recipe)
            with precision_of(self.recipe.precision):
                lowered = jax.jit(advance, donate_argnums=1).lower(
                    self.given[place], states[place], *self.numbers(0, 1)
                )
                try:
                    return lowered.compile(compiler_options=options)
                except Exception:
                    # Another version of XLA may not know the option, which only saves threads.
                    if options is None:
                        raise
                    return lowered.compile()

        first_of = {look: looks.index(look) for look in looks}
        with ThreadPoolExecutor(cores()) as pool:
            built = dict(zip(first_of.values(), pool.map(program, first_of.values()), strict=True))
        return [built[first_of[look]] for look in looks]

    def advance(self, states: list[State], start: int, stop: int) -> list[State]:
        """All groups from one step to another."""

        def one(place: int) -> State:
            with precision_of(self.recipe.precision):
                after = self.programs[place](
                    self.given[place], states[place], *self.numbers(start, stop)
                )
                return jax.block_until_ready(after)

        if self.at_once == 1:
            return [one(place) for place in range(len(self.groups))]
        with ThreadPoolExecutor(self.at_once) as pool:
            return list(pool.map(one, range(len(self.groups))))

    def numbers(self, start: int, stop: int) -> tuple[np.int32, ...]:
        """What a program is told besides: from which step to which, and steps per point."""
        return np.int32(start), np.int32(stop), np.int32(self.window)

    def by_member(self, states: list[State]) -> list[State]:
        """Every member's own state, its weights cut to their own shapes."""
        found: dict[int, State] = {}
        for numbers, state in zip(self.groups, states, strict=True):
            for place, number in enumerate(numbers):
                own = jax.tree.map(lambda leaf, place=place: leaf[place], state)
                weights = cut(own.weights, self.students[number].shapes)
                found[number] = own._replace(weights=weights)
        return [found[number] for number in range(len(self.members))]

    def models(self, states: list[State]) -> list[Any]:
        """The students with the weights of their states."""
        return [
            eqx.combine(state.weights, parts.fixed, parts.static)
            for state, parts in zip(self.by_member(states), self.students, strict=True)
        ]

    def models_alike(self, states: list[State]) -> list[Any]:
        """The same students, padded where that is exact, so that few programs evaluate them all."""
        kinds = [parts.kind() for parts in self.students]
        shapes = {
            kind: common_shapes(
                [
                    own.shapes
                    for own, other in zip(self.students, kinds, strict=True)
                    if other == kind
                ]
            )
            for kind in set(kinds)
        }
        return [
            eqx.combine(pad(state.weights, shapes[kind]), parts.fixed, parts.static)
            for state, parts, kind in zip(self.by_member(states), self.students, kinds, strict=True)
        ]

    def curves(self, states: list[State], step: int) -> np.ndarray:
        """Mean training loss per window [members, windows]; NaN where no step was made yet."""
        starts = self.window * np.arange(self.windows)
        counts = np.clip(step - starts, 0, np.minimum(self.window, self.recipe.steps - starts))
        sums = np.zeros((len(self.members), self.windows))
        for numbers, state in zip(self.groups, states, strict=True):
            sums[list(numbers)] = np.asarray(state.curve, np.float64)
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def make(make_student: Callable[..., Any], width: int, key: PRNGKeyArray, task: Task) -> Any:
    """One student, refused with one line if the task cannot use it."""
    try:
        inspect.signature(make_student).bind(width, key=key)
    except TypeError as error:
        raise BadInput(
            f"train: make_student must be a function make_student(width, *, key), but {error}."
        ) from None
    except ValueError:
        # Some callables of C have no signature to check.
        pass
    student = make_student(width, key=key)
    weights = [leaf for leaf in jax.tree.leaves(student) if eqx.is_inexact_array(leaf)]
    if not callable(student) or not weights:
        kind = type(student).__name__
        raise BadInput(
            f"train: make_student gave a {kind}; give a module (a pytree) with arrays of weights "
            "and a call."
        )
    for leaf in weights:
        if str(leaf.dtype) not in PRECISIONS:
            raise BadInput(f"train: the student holds {leaf.dtype} weights; use float32.")
    sequence = jax.ShapeDtypeStruct((task.time, task.d_in), jnp.result_type(float))
    try:
        outputs = eqx.filter_eval_shape(student, sequence)
    except BadInput:
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadInput(
            f"train: the student fails on one sequence [time, d_in] = {sequence.shape}: {reason}"
        ) from error
    wanted = (task.time, task.d_out)
    if not isinstance(outputs, jax.ShapeDtypeStruct):
        kind = type(outputs).__name__
        raise BadInput(f"train: the student returns a {kind}; return one array [time, d_out].")
    if outputs.shape != wanted:
        raise BadInput(
            f"train: on a sequence {sequence.shape} the student gives {outputs.shape}, and the "
            f"task wants {wanted}; give the student {task.d_in} inputs and {task.d_out} outputs."
        )
    return student


def stacked(trees: Sequence[Any]) -> Any:
    """Trees of equal structure as one with a first axis for the members."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
