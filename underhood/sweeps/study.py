"""A study: students of several kinds on one task, at every width, point of the axes, and seed.

Every student that it trains has an address, a checksum of all that decides its weights
(docs/cluster.md lists it). A student with the same address is trained only once.

A function is described by its instructions, by what it holds (closure and defaults), and by what
it names among the globals of its own file: functions and classes by what they do, values by their
contents. What it names from other files is described by name alone. Equal functions have equal
descriptions in every process.
"""

import hashlib
import importlib.util
import json
import sys
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import jax
import numpy as np
from jaxtyping import PyTree

import underhood.common
import underhood.layers
import underhood.tasks
import underhood.training
from underhood.common.errors import BadInput
from underhood.common.files import Json
from underhood.common.provenance import source_files
from underhood.layers.files import take_apart
from underhood.tasks import Task
from underhood.training import Recipe
from underhood.training.ensemble import (
    Ensemble,
    StudentMaker,
    check_task_and_recipe,
    make_ensemble,
)
from underhood.training.members import TEACHER_AXIS, Axes, Member, combine
from underhood.training.storage.checksums import tree_checksum
from underhood.training.storage.settings import as_setting

# Files are run under this name, so that they can tell, and pickled by value for workers.
MODULE = "underhood_study"
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

    def __post_init__(self) -> None:
        check_task_and_recipe(self.task, self.recipe, about="Study")
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
        return combine(self.seeds, self.widths, self.axes, self.task)[0]

    def ensemble(self, student: str, **which: int | tuple[int, ...]) -> Ensemble:
        """Return all students of a kind, or of `which` widths and seeds, ready to be trained."""
        make_student, key = self.students[student], jax.random.key(self.key)
        which = {"widths": self.widths, "seeds": self.seeds} | which
        return make_ensemble(make_student, self.task, self.recipe, axes=self.axes, key=key, **which)

    def addresses(self, student: str, members: Iterable[Member] | None = None) -> dict[Member, str]:
        common, addresses = self.common_sums[student], {}
        for member in self.members() if members is None else members:
            axes = [
                [axis, self.teacher_sums[int(value)] if axis == TEACHER_AXIS else value]
                for axis, value in member.axes
            ]
            addresses[member] = json_checksum([common, member.width, member.seed, axes])
        return addresses

    def all_addresses(self) -> set[str]:
        return {address for name in self.students for address in self.addresses(name).values()}

    @cached_property
    def common_sums(self) -> dict[str, str]:
        """A checksum per kind of all that its students share; it is sent with the study."""
        shared = self.description
        kinds = {name: describe(make_student) for name, make_student in self.students.items()}
        return {name: json_checksum(shared | {"student": kind}) for name, kind in kinds.items()}

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
    text = json.dumps(value, sort_keys=True, default=as_setting)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@cache
def code_version() -> str:
    """Return a checksum of the source files that decide what training gives."""
    sources = hashlib.sha256()
    for package in CODE:
        for path in source_files(Path(str(package.__file__)).parent):
            sources.update(path.name.encode())
            sources.update(path.read_bytes())
    return sources.hexdigest()[:16]


def describe_task(task: Task) -> tuple[PyTree, str]:
    tensors: dict[str, np.ndarray] = {}
    return take_apart(task, "task", tensors), tree_checksum(tensors)


def describe(value: PyTree, seen: tuple[int, ...] = ()) -> PyTree:
    """Return a function by what it does and what it holds, other values by their contents."""
    if id(value) in seen:
        # It is part of itself: it names itself, or one that names it.
        return "again"
    seen = (*seen, id(value))
    if isinstance(value, Task):
        return list(describe_task(value))
    if isinstance(value, jax.Array | np.ndarray):
        return tree_checksum([value])
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, Mapping):
        items = ([describe(name, seen), describe(held, seen)] for name, held in value.items())
        return sorted(items, key=repr)
    if isinstance(value, list | tuple | set | frozenset):
        parts = [describe(part, seen) for part in value]
        return parts if isinstance(value, list | tuple) else sorted(parts, key=repr)
    if isinstance(value, FunctionType):
        return describe_function(value, seen)
    return as_setting(value)


def describe_function(function: FunctionType, seen: tuple[int, ...]) -> list[PyTree]:
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    held += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    around, file = function.__globals__, function.__module__
    names = sorted(names_in(function.__code__) & around.keys())
    used = {name: describe_named(around[name], file, seen) for name in names}
    described = [as_setting(function), [describe_named(value, file, seen) for value in held]]
    return [*described, used] if used else described


def describe_named(value: PyTree, file: str, seen: tuple[int, ...]) -> PyTree:
    """Return what a function names or holds: described if it is of the same file or a value."""
    if isinstance(value, type | FunctionType) and value.__module__ != file:
        return f"{value.__module__}.{value.__qualname__}"
    if not isinstance(value, type):
        return describe(value, seen)
    if id(value) in seen:
        return "again"
    # A class of the same file: its bases, and what its methods do.
    seen = (*seen, id(value))
    members = {name: getattr(m, "__wrapped__", m) for name, m in sorted(vars(value).items())}
    methods = {name: m for name, m in members.items() if isinstance(m, FunctionType)}
    bases = [describe_named(base, file, seen) for base in value.__bases__]
    return [value.__qualname__, bases, {name: describe(m, seen) for name, m in methods.items()}]


def names_in(code: CodeType) -> set[str]:
    """Return the names that a function and the functions inside it look up."""
    inner = (names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return {*code.co_names}.union(*inner)


def load_study(path: Path) -> Study:
    """Run a study's file and take its `study`."""
    if not path.is_file():
        raise BadInput(f"There is no file {path}; a study is a Python file with study = Study(…).")
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise BadInput(f"{path} is not a Python file; its name must end with .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    try:
        spec.loader.exec_module(module)
    except BadInput:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [at.lineno for at in frames if Path(at.filename).resolve() == path.resolve()]
        lines += [error.lineno] if isinstance(error, SyntaxError) else []
        place = f"{path}, line {lines[-1]}" if lines else f"{path}"
        raise BadInput(f"{place}: {type(error).__name__}: {error}") from None
    study = getattr(module, "study", None)
    if not isinstance(study, Study):
        kind = "has no `study`" if study is None else f"has a study of kind {type(study).__name__}"
        raise BadInput(f"{path} {kind}; end it with study = Study(task, students, recipe, …).")
    return study
