"""Students of different widths in one program: zeros are added at the end of every axis.

A neuron with zero weights outputs what nobody reads, so the padded student is the same function.
It stays so because gradients are masked: the mask is 1 on a student's own weights and 0 on the
rest, and an optimiser that sees zero gradients on zero weights leaves them zero.

This holds for our own layers (`tests/test_training.py` tries each of them). A foreign layer may
normalise over its width, say, so it is never padded: it shares programs with its equals only.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from underhood.layers.files.storage import KINDS

Shapes = tuple[tuple[int, ...], ...]


def is_own(value: Any) -> bool:
    """Whether a student is made of our own layers throughout."""
    if isinstance(value, eqx.Module):
        fields = (getattr(value, field.name) for field in dataclasses.fields(value))
        return KINDS.get(type(value).__name__) is type(value) and all(map(is_own, fields))
    return all(map(is_own, value)) if isinstance(value, tuple) else True


def shapes_of(weights: Any) -> Shapes:
    """The shape of every array."""
    return tuple(tuple(leaf.shape) for leaf in jax.tree.leaves(weights))


def common_shapes(many: Sequence[Shapes]) -> Shapes:
    """The smallest shapes that hold all of them."""
    return tuple(tuple(map(max, zip(*shapes, strict=True))) for shapes in zip(*many, strict=True))


def numbers_in(shapes: Shapes) -> int:
    """How many numbers arrays of these shapes hold."""
    return sum(int(np.prod(shape)) for shape in shapes)


def pad(weights: Any, shapes: Shapes) -> Any:
    """The weights with zeros at the end of every axis."""
    leaves, structure = jax.tree.flatten(weights)
    padded = [
        # jnp.pad refuses numbers without axes.
        jnp.pad(leaf, [(0, to - now) for now, to in zip(leaf.shape, shape, strict=True)])
        if shape
        else leaf
        for leaf, shape in zip(leaves, shapes, strict=True)
    ]
    return jax.tree.unflatten(structure, padded)


def cut(weights: Any, shapes: Shapes) -> Any:
    """The inverse of `pad`."""
    leaves, structure = jax.tree.flatten(weights)
    parts = [leaf[tuple(map(slice, shape))] for leaf, shape in zip(leaves, shapes, strict=True)]
    return jax.tree.unflatten(structure, parts)


def mask_of(weights: Any, shapes: Shapes) -> Any:
    """1 where a student has weights of its own, 0 where it is padded."""
    return pad(jax.tree.map(jnp.ones_like, weights), shapes)
