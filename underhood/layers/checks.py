"""Checks on what callers hand us: every problem is found before the first is reported.

A layer's fields say their shapes in their annotations, `W_V: Float[Weight, "d_v d_in"]`, and
`problems_of` reads those annotations, so that a shape is written down in one place only.
"""

import dataclasses
import inspect
import typing
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

Weight = jax.Array | np.ndarray


class BadInput(ValueError):
    """What the caller gave cannot be used; the message says what to change."""


def refuse(problems: list[str], *, about: str) -> None:
    """Raise one line that lists every problem, if there are any."""
    if problems:
        raise BadInput(f"{about}: {'; '.join(problems)}.")


def number_problem(name: str, value: Any) -> str | None:
    """What stops `value` from being an array of finite floating-point numbers, if anything."""
    if not isinstance(value, Weight):
        return f"{name} is a {type(value).__name__}; give a NumPy or JAX array"
    if value.dtype == object:
        return f"{name} holds Python objects; give float32 or float64 numbers"
    if not np.issubdtype(value.dtype, np.floating):
        return f"{name} holds {value.dtype} numbers; convert it with .astype(float)"
    if not isinstance(value, jax.core.Tracer) and not np.all(np.isfinite(value)):
        return f"{name} holds NaN or infinite entries"
    return None


def problems_of(module: Any) -> list[str]:
    """Everything that is wrong with the arrays of a module, judged by its own annotations."""
    problems = []
    sizes: dict[str, tuple[int, str]] = {}
    for field, dimensions, optional in annotated_arrays(type(module)):
        value = getattr(module, field)
        # Where the constructor takes λ and the layer keeps ν, people know it as decay.
        takes_decay = "decay" in inspect.signature(type(module)).parameters
        name = "decay" if field == "nu" and takes_decay else field
        if value is None and optional:
            continue
        if (problem := number_problem(name, value)) is not None:
            problems.append(problem)
            continue
        if len(value.shape) != len(dimensions):
            wanted = f"[{', '.join(dimensions)}]"
            problems.append(f"{name} has shape {tuple(value.shape)} but must be {wanted}")
            continue
        for dimension, size in zip(dimensions, value.shape, strict=True):
            expected, source = sizes.setdefault(dimension, (size, name))
            if size != expected:
                problems.append(
                    f"{name} has shape {tuple(value.shape)} but {dimension} is {expected} "
                    f"in {source}"
                )
    return problems


def annotated_arrays(kind: type) -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """The array fields of a class: name, names of the dimensions, and whether it may be None."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        choices = typing.get_args(hints[field.name])
        for hint in (hints[field.name], *choices):
            text = getattr(hint, "dim_str", None)
            if text is not None:
                yield field.name, tuple(text.split()), type(None) in choices
                break
