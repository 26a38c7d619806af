"""A study: students of several kinds on one task, at every width, point of the axes, and seed.

Every student that it trains has an address, a checksum of all that decides its weights: the task,
what its function does and what that function holds, the recipe, width, axes, seed and key, and the
version of the code that trains. A student with the same address is trained only once.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from pathlib import Path

import jax
from jaxtyping import PyTree

import underhood.common
import underhood.layers
import underhood.tasks
import underhood.training
from underhood.common.errors import BadInput
from underhood.common.files import Json
from underhood.sweeps.descriptions import describe, describe_task
from underhood.tasks import Task
from underhood.training import Recipe
from underhood.training.ensemble import Ensemble, StudentMaker, describe_members
from underhood.training.members import TEACHER_AXIS, Axes, Member, combine
from underhood.training.storage.checksums import tree_checksum
from underhood.training.storage.settings import as_setting

# The result of training depends on the code in these folders.
CODE = (underhood.common, underhood.layers, underhood.tasks, underhood.training)


@dataclass(frozen=True)
class Study:
    """What to train.

    students  functions make_student(width, *, key) by name
    seeds     how many, or which
    axes      learning_rate, weight_decay, teacher: a list of values used at every width,
              or (for numbers) a dict {width: value}
    key       of the first weights and the sequences
    """

    task: Task
    students: Mapping[str, StudentMaker]
    recipe: Recipe
    widths: tuple[int, ...]
    seeds: int | tuple[int, ...] = 1
    axes: Axes = field(default_factory=dict)
    key: int = 0
    sums: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, kind, advice in (
            ("task", Task, "one of underhood.tasks"),
            ("recipe", Recipe, "Recipe.fast(steps) for example"),
        ):
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise BadInput(f"Study: the {name} is a {type(value).__name__}; use {advice}.")
        if not isinstance(self.students, Mapping) or not self.students:
            raise BadInput("Study: students is a dictionary from names to functions.")
        for name, make_student in self.students.items():
            if not isinstance(name, str) or not name.isidentifier():
                raise BadInput(f"Study: {name!r} cannot name a student; use letters, digits and _.")
            if not callable(make_student):
                raise BadInput(f"Study: the student {name} is no function (width, *, key).")
        # Axes may come as generators; from here on they are read many times.
        if isinstance(self.axes, Mapping):
            kept = {
                name: dict(values) if isinstance(values, Mapping) else tuple(values)
                for name, values in self.axes.items()
            }
            object.__setattr__(self, "axes", kept)
        self.members()

    def members(self) -> tuple[Member, ...]:
        """Return width, axes and seed of every student of a kind."""
        return combine(self.seeds, self.widths, self.axes, self.task)[0]

    def ensemble(
        self,
        student: str,
        widths: int | tuple[int, ...] | None = None,
        seeds: int | tuple[int, ...] | None = None,
    ) -> Ensemble:
        """Return all students of a kind, or those of some widths and seeds, ready to be trained."""
        return describe_members(
            self.students[student],
            self.task,
            self.recipe,
            widths=self.widths if widths is None else widths,
            seeds=self.seeds if seeds is None else seeds,
            axes=self.axes,
            key=jax.random.key(self.key),
        )

    def addresses(self, student: str, members: Iterable[Member] | None = None) -> dict[Member, str]:
        """Return the address of every student of a kind, or of some."""
        common, addresses = self.common(student), {}
        for member in self.members() if members is None else members:
            axes = [
                [axis, self.teacher_sums[int(value)] if axis == TEACHER_AXIS else value]
                for axis, value in member.axes
            ]
            addresses[member] = json_checksum([common, member.width, member.seed, axes])
        return addresses

    def all_addresses(self) -> set[str]:
        return {address for name in self.students for address in self.addresses(name).values()}

    def common(self, student: str) -> str:
        """Return a checksum of all that students of a kind share; it is sent with the study."""
        if student not in self.sums:
            what = {**self.description, "student": describe(self.students[student])}
            self.sums[student] = json_checksum(what)
        return self.sums[student]

    @cached_property
    def teacher_sums(self) -> list[str]:
        return [tree_checksum(teacher) for teacher in self.axes.get(TEACHER_AXIS, ())]

    @property
    def description(self) -> Json:
        """All that the whole study shares, as JSON."""
        what, numbers = describe_task(self.task)
        task = {"what": what, "numbers": numbers}
        recipe = {part.name: describe(getattr(self.recipe, part.name)) for part in fields(Recipe)}
        return {"code": code_version(), "task": task, "recipe": recipe, "key": self.key}


def json_checksum(value: PyTree) -> str:
    """Return a checksum of JSON that is the same in every process."""
    text = json.dumps(value, sort_keys=True, default=as_setting)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@cache
def code_version() -> str:
    """Return a checksum of the source files that decide what training gives."""
    sources = hashlib.sha256()
    for package in CODE:
        for path in sorted(Path(str(package.__file__)).parent.rglob("*.py")):
            sources.update(path.name.encode())
            sources.update(path.read_bytes())
    return sources.hexdigest()[:16]
