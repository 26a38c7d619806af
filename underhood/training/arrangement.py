"""An ensemble arranged for this machine: groups that fit into memory, and their programs.

Members whose students have the same structure are vmapped in one program. A CPU gains nothing from
a wide program, because its activations leave the cache: there each member runs alone, as many at a
time as there are cores. Padding adds zeros at the end of every axis and masks the gradients there,
which leaves the function and its training as they were. docs/training.md says why, and why a
foreign layer is never padded (`tests/training/test_training.py` tries each of ours).
"""

from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from underhood.common.errors import BadInput
from underhood.training import device
from underhood.training.ensemble import Ensemble, Shapes, SplitStudent, at_length
from underhood.training.members import NUMBER_AXES
from underhood.training.program_cache import PROGRAMS, program_key
from underhood.training.step import ALIVE, GroupConstants, GroupState, advance_program

# A padded program does the work of its widest member for each; beyond this waste two programs
# are better than one, although an accelerator waits for launches more than for arithmetic.
MOST_PADDING = 8.0
# The numbers of the members in each group.
Grouping = tuple[tuple[int, ...], ...]


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
    """Group the members as `lanes` and `memory` allow, or as before, and compile their programs."""
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
            need = f"{needed / 2**20:.1f} MiB of memory and may take {budget / 2**20:.1f}"
            what = f"{len(ensemble.members)} members up to width {widest} need {need}"
            advice = "reduce the recipe's batch or length, the widths, or the number of members"
            raise BadInput(f"train: {what}; {advice}.")
        groups = group(ensemble.students, max(1, min(largest - 1, int(largest * budget / needed))))


def group_constants(ensemble: Ensemble, numbers: Sequence[int]) -> GroupConstants:
    students = [ensemble.students[number] for number in numbers]
    members = [ensemble.members[number] for number in numbers]
    shapes = common_shapes([parts.shapes for parts in students])
    uniform = all(parts.shapes == shapes for parts in students)
    masks = None if uniform else [mask_of(parts.weights, shapes) for parts in students]
    values = {
        name: [member.get(name, getattr(ensemble.recipe, name)) for member in members]
        for name in NUMBER_AXES
    }
    losses = [ensemble.settled_losses[number] for number in numbers if ensemble.settled_losses]
    return GroupConstants(
        fixed=stack_trees([parts.fixed for parts in students]),
        mask=None if masks is None else stack_trees(masks),
        numbers={name: jnp.asarray(given) for name, given in values.items()},
        key=jnp.stack([ensemble.sequence_keys[number] for number in numbers]),
        teacher=stack_trees([ensemble.teacher_of(member) for member in members]),
        settled_loss=stack_trees(losses) if losses else None,
    )


def first_group_state(ensemble: Ensemble, numbers: Sequence[int]) -> GroupState:
    students = [ensemble.students[number] for number in numbers]
    shapes = common_shapes([parts.shapes for parts in students])
    direction = ensemble.recipe.optimiser.direction()

    def first_state(parts: SplitStudent) -> GroupState:
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

        def build() -> jax.stages.Compiled:
            advance = jax.jit(advance_program(static, task, recipe), donate_argnums=1)
            with device.precision_of(recipe.precision):
                arguments = constants[place], states[place], *step_numbers(ensemble, 0, 1)
                return device.compiled(advance.lower(*arguments))

        key = program_key(task, looks[place], recipe.whole)
        return PROGRAMS.get(key, (static, task, recipe), build)

    first_of = {look: looks.index(look) for look in looks}
    with ThreadPoolExecutor(len(device.core_numbers())) as pool:
        built = dict(zip(first_of.values(), pool.map(program, first_of.values()), strict=True))
    return tuple(built[first_of[look]] for look in looks)


def stack_trees(trees: Sequence[PyTree]) -> PyTree:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def group(students: Sequence[SplitStudent], lanes: int | None) -> Grouping:
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


def numbers_by_kind(students: Sequence[SplitStudent]) -> dict[Hashable, list[int]]:
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
    return pad(jax.tree.map(jnp.ones_like, weights), shapes)
