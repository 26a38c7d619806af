"""Which members share a program.

Members whose students have the same structure are vmapped in one program, padded to a common
width where that is exact. A CPU gains nothing from a wide program, because its activations leave
the cache: there each member runs alone, as many at a time as there are cores.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax

from underhood.training.padding import Shapes, common_shapes, is_own, numbers_in, shapes_of

# A padded program does the work of its widest member for each; beyond this waste two programs
# are better than one, although an accelerator waits for launches more than for arithmetic.
MOST_PADDING = 8.0

Grouping = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Parts:
    """A student taken apart: arrays that are trained, arrays that are not, and the rest."""

    weights: Any
    fixed: Any
    static: Any

    @classmethod
    def of(cls, student: Any) -> "Parts":
        arrays, static = eqx.partition(student, eqx.is_array)
        weights, fixed = eqx.partition(
            jax.tree.map(jax.numpy.asarray, arrays), eqx.is_inexact_array
        )
        return cls(weights, fixed, static)

    @property
    def shapes(self) -> Shapes:
        return shapes_of(self.weights)

    def together(self) -> Any:
        """The student again."""
        return eqx.combine(self.weights, self.fixed, self.static)

    def kind(self) -> tuple[Any, ...]:
        """Equal for students that one program can train."""
        leaves, structure = jax.tree.flatten((self.weights, self.fixed))
        statics, frame = jax.tree.flatten(self.static)
        kinds = tuple((leaf.dtype, leaf.ndim) for leaf in leaves)
        names = tuple(one if isinstance(one, str | int | float) else id(one) for one in statics)
        fixed = tuple(leaf.shape for leaf in jax.tree.leaves(self.fixed))
        padded = is_own(self.together())
        return structure, frame, kinds, names, fixed, None if padded else self.shapes


def group(students: Sequence[Parts], lanes: int | None) -> Grouping:
    """Members by program, at most `lanes` in each; None: as many as padding allows."""
    by_kind: dict[Any, list[int]] = {}
    for number, parts in enumerate(students):
        by_kind.setdefault(parts.kind(), []).append(number)
    groups: list[tuple[int, ...]] = []
    for members in by_kind.values():
        # By size, so that members that must be split are padded least.
        members.sort(key=lambda number: numbers_in(students[number].shapes))
        current: list[int] = []
        for number in members:
            trial = [*current, number]
            full = lanes is not None and len(trial) > lanes
            if current and (full or waste([students[one].shapes for one in trial]) > MOST_PADDING):
                groups.append(tuple(current))
                trial = [number]
            current = trial
        groups.append(tuple(current))
    return tuple(groups)


def waste(many: Sequence[Shapes]) -> float:
    """Numbers in the padded weights over numbers in the members' own."""
    own = sum(map(numbers_in, many))
    return len(many) * numbers_in(common_shapes(many)) / max(own, 1)
