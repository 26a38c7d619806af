"""An ensemble arranged for this machine: groups that fit into memory, and their programs."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from underhood.common.errors import BadInput
from underhood.training import device
from underhood.training.ensemble import Ensemble, Parts, at_length
from underhood.training.grouping import Grouping, common_shapes, cut, group, mask_of, pad
from underhood.training.members import NUMBER_AXES
from underhood.training.program_cache import PROGRAMS, program_key
from underhood.training.step import ALIVE, GroupConstants, GroupState, advance_program


@dataclass(frozen=True, eq=False)
class Arrangement:
    """Groups of members with their compiled programs; can go from any step to any later one.

    constants  what each group's members keep
    at_once    groups that run at the same time
    bytes      memory that a run takes
    """

    ensemble: Ensemble
    groups: Grouping
    constants: tuple[GroupConstants, ...]
    programs: tuple[jax.stages.Compiled, ...]
    at_once: int
    bytes: int

    def first_states(self) -> list[GroupState]:
        return [first_group_state(self.ensemble, numbers) for numbers in self.groups]

    def advance(self, states: list[GroupState], start: int, stop: int) -> list[GroupState]:
        """Return the states after steps start to stop − 1; the given ones are used up."""

        ends = step_numbers(self.ensemble, start, stop)

        def advance_group(place: int) -> GroupState:
            with device.precision_of(self.ensemble.recipe.precision):
                after = self.programs[place](self.constants[place], states[place], *ends)
                return jax.block_until_ready(after)

        if self.at_once == 1:
            return [advance_group(place) for place in range(len(self.groups))]
        with ThreadPoolExecutor(self.at_once) as pool:
            return list(pool.map(advance_group, range(len(self.groups))))

    def by_member(self, states: list[GroupState]) -> list[GroupState]:
        """Return every member's state, its weights cut to their own shapes."""
        by_number: dict[int, GroupState] = {}
        for numbers, state in zip(self.groups, states, strict=True):
            for place, number in enumerate(numbers):
                member = jax.tree.map(lambda leaf, place=place: leaf[place], state)
                weights = cut(member.weights, self.ensemble.students[number].shapes)
                by_number[number] = member._replace(weights=weights)
        return [by_number[number] for number in range(len(self.ensemble.members))]

    def curves(self, states: list[GroupState], step: int) -> np.ndarray:
        """Return the mean loss per window [members, windows]; NaN where no step was made yet."""
        window, steps = self.ensemble.window, self.ensemble.recipe.steps
        starts = window * np.arange(self.ensemble.windows)
        counts = np.clip(step - starts, 0, np.minimum(window, steps - starts))
        sums = np.zeros((len(self.ensemble.members), len(starts)))
        for numbers, state in zip(self.groups, states, strict=True):
            sums[list(numbers)] = np.asarray(state.curve, np.float64)
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def arrange(
    ensemble: Ensemble,
    *,
    lanes: int | None = None,
    memory: int | None = None,
    grouping: Grouping | None = None,
) -> Arrangement:
    """Group the members and compile their programs.

    lanes     members per program; None: all on an accelerator, one on a CPU
    memory    bytes to stay within; None: what is free
    grouping  of a run that goes on; None: groups as large as fit into memory
    """
    lanes = 1 if lanes is None and device.is_cpu() else lanes
    budget = device.free_memory() if memory is None else memory
    groups = grouping or group(ensemble.students, lanes)
    while True:
        at_once = min(len(device.core_numbers()), len(groups)) if device.is_cpu() else 1
        constants = tuple(group_constants(ensemble, numbers) for numbers in groups)
        programs = compiled_programs(ensemble, groups, constants)
        kept, running = zip(*map(device.bytes_needed, programs), strict=True)
        needed = sum(kept) + sum(sorted(running, reverse=True)[:at_once])
        if needed <= budget or grouping:
            return Arrangement(ensemble, groups, constants, programs, at_once, needed)
        largest = max(map(len, groups))
        if largest == 1:
            widest = max(member.width for member in ensemble.members)
            raise BadInput(
                f"train: {len(ensemble.members)} members up to width {widest} need "
                f"{needed / 2**20:.1f} MiB of memory and may take {budget / 2**20:.1f}; "
                "reduce the recipe's batch or length, the widths, or the number of members."
            )
        smaller = max(1, min(largest - 1, int(largest * budget / needed)))
        groups = group(ensemble.students, smaller)


def group_constants(ensemble: Ensemble, numbers: Sequence[int]) -> GroupConstants:
    """Return what the members of a group keep, stacked."""
    students = [ensemble.students[number] for number in numbers]
    members = [ensemble.members[number] for number in numbers]
    shapes = common_shapes([parts.shapes for parts in students])
    uniform = all(parts.shapes == shapes for parts in students)
    masks = None if uniform else [mask_of(parts.weights, shapes) for parts in students]
    values = {
        name: [member.get(name, getattr(ensemble.recipe, name)) for member in members]
        for name in NUMBER_AXES
    }
    return GroupConstants(
        fixed=stack_trees([parts.fixed for parts in students]),
        mask=None if masks is None else stack_trees(masks),
        numbers={name: jnp.asarray(given) for name, given in values.items()},
        key=jnp.stack([ensemble.sequence_keys[number] for number in numbers]),
        teacher=stack_trees([ensemble.teacher_of(member) for member in members]),
    )


def first_group_state(ensemble: Ensemble, numbers: Sequence[int]) -> GroupState:
    students = [ensemble.students[number] for number in numbers]
    shapes = common_shapes([parts.shapes for parts in students])
    direction = ensemble.recipe.optimiser.direction()

    def first_state(parts: Parts) -> GroupState:
        weights = pad(parts.weights, shapes)
        curve = jnp.zeros(ensemble.windows)
        return GroupState(weights, direction.init(weights), jnp.asarray(ALIVE, jnp.int32), curve)

    return stack_trees([first_state(parts) for parts in students])


def step_numbers(ensemble: Ensemble, start: int, stop: int) -> tuple[np.int32, ...]:
    """Return the last arguments of `advance`: start, stop and window."""
    return np.int32(start), np.int32(stop), np.int32(ensemble.window)


def compiled_programs(
    ensemble: Ensemble, groups: Grouping, constants: Sequence[GroupConstants]
) -> tuple[jax.stages.Compiled, ...]:
    """Return a program per group; groups of the same kind and shapes share one, as do runs."""
    task, recipe = at_length(ensemble.task, ensemble.recipe), ensemble.recipe
    states = [first_group_state(ensemble, numbers) for numbers in groups]
    looks = [
        (ensemble.students[numbers[0]].kind(), str(jax.tree.map(jnp.shape, (kept, state))))
        for numbers, kept, state in zip(groups, constants, states, strict=True)
    ]

    def program(place: int) -> jax.stages.Compiled:
        static = ensemble.students[groups[place][0]].static
        key = program_key(task, looks[place], recipe.whole)
        return PROGRAMS.get(key, (static, task, recipe), lambda: build(place, static))

    def build(place: int, static: PyTree) -> jax.stages.Compiled:
        options = device.compiler_options()
        advance = advance_program(static, task, recipe)
        with device.precision_of(recipe.precision):
            arguments = constants[place], states[place], *step_numbers(ensemble, 0, 1)
            lowered = jax.jit(advance, donate_argnums=1).lower(*arguments)
            try:
                return lowered.compile(compiler_options=options)
            except Exception:
                # Another version of XLA may not know the option, which only saves threads.
                if options is None:
                    raise
                return lowered.compile()

    first_of = {look: looks.index(look) for look in looks}
    with ThreadPoolExecutor(len(device.core_numbers())) as pool:
        built = dict(zip(first_of.values(), pool.map(program, first_of.values()), strict=True))
    return tuple(built[first_of[look]] for look in looks)


def stack_trees(trees: Sequence[PyTree]) -> PyTree:
    """Return trees of equal structure as one with a first axis for the members."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
