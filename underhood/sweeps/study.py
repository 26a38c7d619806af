"""A study: students of several kinds on one task, at every width, point of the axes, and seed.

Every student that it trains has an address, a checksum of all that decides its weights: the task,
what its function does and what that function holds, the recipe, width, axes, seed and key, and the
version of the code that trains. What has an address is trained once.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

import underhood.layers
import underhood.tasks
import underhood.training
from underhood.common.errors import BadInput
from underhood.layers.files.storage import take_apart
from underhood.sweeps.descriptions import described
from underhood.tasks import Task
from underhood.training import Recipe
from underhood.training.members import TEACHER, Member, combine
from underhood.training.training import digest, named

# What is trained by code in these folders depends on it.
CODE = (underhood.layers, underhood.tasks, underhood.training)


@dataclass(frozen=True)
class Study:
    """What to train.

    students  functions make_student(width, *, key) by name
    seeds     how many, or which
    axes      what else differs: learning_rate, weight_decay, teacher; a list of values for all,
              or of a number a dictionary that gives each width its own
    key       of the first weights and the sequences
    """

    task: Task
    students: Mapping[str, Callable[..., Any]]
    recipe: Recipe
    widths: tuple[int, ...]
    seeds: int | tuple[int, ...] = 1
    axes: Mapping[str, Iterable[Any]] = field(default_factory=dict)
    key: int = 0
    sums: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.task, Task):
            kind = type(self.task).__name__
            raise BadInput(f"Study: the task is a {kind}; use one of underhood.tasks.")
        if not isinstance(self.recipe, Recipe):
            kind = type(self.recipe).__name__
            raise BadInput(f"Study: the recipe is a {kind}; use Recipe.fast(steps) for example.")
        if not isinstance(self.students, Mapping) or not self.students:
            raise BadInput("Study: students is a dictionary from names to functions.")
        for name, make_student in self.students.items():
            if not isinstance(name, str) or not name.isidentifier():
                raise BadInput(f"Study: {name!r} names a student; use letters, digits and _.")
            if not callable(make_student):
                raise BadInput(f"Study: the student {name} is no function (width, *, key).")
        # Axes may come as generators; from here on they are read many times.
        if isinstance(self.axes, Mapping):
            kept = {
                name: dict(values) if isinstance(values, Mapping) else tuple(values)
                for name, values in self.axes.items()
            }
            object.__setattr__(self, "axes", kept)
        combine(self.seeds, self.widths, self.axes, self.task)

    def members(self) -> tuple[Member, ...]:
        """Width, axes and seed of every student of a kind."""
        return combine(self.seeds, self.widths, self.axes, self.task)[0]

    def addresses(self, student: str, members: Iterable[Member] | None = None) -> dict[Member, str]:
        """The address of every student of a kind, or of some."""
        common = self.common(student)
        found = {}
        for member in self.members() if members is None else members:
            axes = [
                [name, self.teacher_sums[place] if name == TEACHER else place]  # type: ignore[index]
                for name, place in member.axes
            ]
            found[member] = checksum([common, member.width, member.seed, axes])
        return found

    def common(self, student: str) -> str:
        """A checksum of all that students of a kind share; made once, and sent with the study."""
        if student not in self.sums:
            what = {**self.described, "student": described(self.students[student])}
            self.sums[student] = checksum(what)
        return self.sums[student]

    @cached_property
    def teacher_sums(self) -> list[str]:
        """A checksum of each teacher of the axis."""
        return [digest(one) for one in self.axes.get(TEACHER, ())]

    @property
    def described(self) -> dict[str, Any]:
        """All that the whole study shares, as JSON."""
        tensors: dict[str, np.ndarray] = {}
        task = take_apart(self.task, "task", tensors)
        return {
            "code": code_version(),
            "task": {"what": task, "numbers": digest(tensors)},
            "recipe": {
                one.name: described(getattr(self.recipe, one.name)) for one in fields(self.recipe)
            },
            "key": self.key,
        }


def checksum(value: Any) -> str:
    """Of JSON, the same in every process."""
    text = json.dumps(value, sort_keys=True, default=named)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@cache
def code_version() -> str:
    """A checksum of the source files that decide what training gives."""
    sources = hashlib.sha256()
    for package in CODE:
        for path in sorted(Path(str(package.__file__)).parent.rglob("*.py")):
            sources.update(path.name.encode())
            sources.update(path.read_bytes())
    return sources.hexdigest()[:16]
