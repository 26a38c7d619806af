"""What a function does, as JSON: equal for equal functions in every process, else different.

A function is described by its instructions, by what it holds (closure and defaults), and by what
it names among the globals of its own file: functions and classes by what they do, values by their
contents. What it names from other files is described by name alone; for underhood's own files, the
version of the code is part of every address.
"""

from collections.abc import Mapping
from types import CodeType, FunctionType, ModuleType

import jax
import numpy as np
from jaxtyping import PyTree

from underhood.layers.files.storage import take_apart
from underhood.tasks import Task
from underhood.training.storage.checksums import tree_checksum
from underhood.training.storage.settings import as_setting


def describe_task(task: Task) -> tuple[PyTree, str]:
    """Return a task's structure, and a checksum of its arrays."""
    tensors: dict[str, np.ndarray] = {}
    return take_apart(task, "task", tensors), tree_checksum(tensors)


def describe(value: PyTree, seen: tuple[int, ...] = ()) -> PyTree:
    """Return a function by what it does and what it holds, other values by their contents.

    seen  identities of the values that this one is part of
    """
    if id(value) in seen:
        # It names itself, or one that names it.
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
    """Return instructions, closure, defaults, and globals of the same file."""
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    held += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    around, file = function.__globals__, function.__module__
    used = {
        name: describe_named(around[name], file, seen)
        for name in sorted(names_in(function.__code__))
        if name in around
    }
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
    methods = {
        name: describe(member, seen)
        for name, member in members.items()
        if isinstance(member, FunctionType)
    }
    bases = [describe_named(base, file, seen) for base in value.__bases__]
    return [value.__qualname__, bases, methods]


def names_in(code: CodeType) -> set[str]:
    """Return the names that a function and the functions inside it look up."""
    inner = (names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return {*code.co_names}.union(*inner)
