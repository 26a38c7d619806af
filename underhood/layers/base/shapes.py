"""Checks of a module's arrays against its annotations.

A layer's fields say their shapes in their annotations, `W_V: Float[Weight, "d_v d_in"]`.
`problems_of` reads those annotations, so that a shape is written down in one place only.
"""

import dataclasses
import inspect
import typing
from functools import cache
from typing import NamedTuple

import equinox as eqx
from jaxtyping import Array, Float

from underhood.common.arrays import array_problem

# What goes into a layer and comes out of it, a sequence or one token; and what most layers keep.
Tokens = Float[Array, "time d_in"]
Outputs = Float[Array, "time d_out"]
Token = Float[Array, " d_in"]
Output = Float[Array, " d_out"]
State = Float[Array, " hidden"]


def problems_of(module: eqx.Module) -> list[str]:
    """List everything that is wrong with the arrays of a module."""
    problems = []
    sizes: dict[str, tuple[int, str]] = {}
    may_be_infinite = getattr(module, "may_be_infinite", ())
    for field, name, dimensions, optional in annotated_arrays(module.__class__):
        value = getattr(module, field)
        if value is None and optional:
            continue
        problem = array_problem(name, value, infinite=field in may_be_infinite)
        if problem is not None:
            problems.append(problem)
            continue
        if len(value.shape) != len(dimensions):
            wanted = f"[{', '.join(dimensions)}]"
            problems.append(f"{name} has shape {tuple(value.shape)} but must be {wanted}")
            continue
        for dimension, size in zip(dimensions, value.shape, strict=True):
            expected, source = sizes.setdefault(dimension, (size, name))
            if size != expected:
                given = f"{name} has shape {tuple(value.shape)}"
                problems.append(f"{given} but {dimension} is {expected} in {source}")
    return problems


class AnnotatedArray(NamedTuple):
    """An array field of a class, and the name that error messages give it."""

    field: str
    name: str
    dimensions: tuple[str, ...]
    optional: bool


# Reading annotations takes longer than the checks themselves.
@cache
def annotated_arrays(kind: type) -> tuple[AnnotatedArray, ...]:
    hints = typing.get_type_hints(kind)
    # Where the constructor takes λ and the layer stores ν, callers know the field as decay.
    takes_decay = "decay" in inspect.signature(kind).parameters
    arrays = []
    for field in dataclasses.fields(kind):
        choices = typing.get_args(hints[field.name])
        for hint in (hints[field.name], *choices):
            text = getattr(hint, "dim_str", None)
            if text is not None:
                name = "decay" if field.name == "nu" and takes_decay else field.name
                shape = tuple(text.split())
                arrays.append(AnnotatedArray(field.name, name, shape, type(None) in choices))
                break
    return tuple(arrays)
