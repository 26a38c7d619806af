"""What a function does, as JSON: equal for equal functions in every process, else different.

Its instructions, what it holds (closure and defaults), and what it names among the globals of its
own file: functions and classes there by what they do, values by their contents. What it names from
other files is followed by name alone; for underhood's own, the code's version is in every address.
"""

from collections.abc import Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

import jax
import numpy as np

from underhood.layers.files.storage import take_apart
from underhood.tasks import Task
from underhood.training.training import digest, named


def described(value: Any, seen: tuple[int, ...] = ()) -> Any:
    """A function by what it does and what it holds; other values by their contents."""
    if id(value) in seen:
        # It names itself, or one that names it.
        return "again"
    seen = (*seen, id(value))
    if isinstance(value, Task):
        tensors: dict[str, np.ndarray] = {}
        return [take_apart(value, "task", tensors), digest(tensors)]
    if isinstance(value, jax.Array | np.ndarray):
        return digest([value])
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, Mapping):
        items = ([described(name, seen), described(one, seen)] for name, one in value.items())
        return sorted(items, key=repr)
    if isinstance(value, list | tuple):
        return [described(one, seen) for one in value]
    if isinstance(value, set | frozenset):
        return sorted((described(one, seen) for one in value), key=repr)
    if isinstance(value, FunctionType):
        return of_function(value, seen)
    return named(value)


def of_function(function: FunctionType, seen: tuple[int, ...]) -> Any:
    """Instructions, closure, defaults, and globals of the same file."""
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    held += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    around, file = function.__globals__, function.__module__
    found = [named(function), [of_global(one, file, seen) for one in held]]
    used = {
        name: of_global(around[name], file, seen)
        for name in sorted(names_in(function.__code__))
        if name in around
    }
    return [*found, used] if used else found


def of_global(value: Any, file: str, seen: tuple[int, ...]) -> Any:
    """What a function names or holds: followed if it is of the same file, or a plain value."""
    if isinstance(value, type | FunctionType) and value.__module__ != file:
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, type):
        return of_class(value, file, seen)
    return described(value, seen)


def of_class(kind: type, file: str, seen: tuple[int, ...]) -> Any:
    """A class of the same file: its bases, and what its methods do."""
    if id(kind) in seen:
        return "again"
    seen = (*seen, id(kind))
    methods = {
        name: described(getattr(one, "__wrapped__", one), seen)
        for name, one in sorted(vars(kind).items())
        if isinstance(getattr(one, "__wrapped__", one), FunctionType)
    }
    return [kind.__qualname__, [of_global(one, file, seen) for one in kind.__bases__], methods]


def names_in(code: CodeType) -> set[str]:
    """Names that a function and the functions inside it look up."""
    inner = (names_in(one) for one in code.co_consts if isinstance(one, CodeType))
    return {*code.co_names}.union(*inner)
