"""How arrays are cut for a kernel: blocks whose sides are powers of two, and padding to them.

A kernel computes on blocks, and Triton wants their sides to be powers of two. A side of 100 padded
to 128 would do 1.64 times the products of a matrix. So a side is padded to a multiple of 16, and
cut into blocks of falling size: 100 → 112 = 64 + 32 + 16.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

# A block of a kernel: JAX has no public type for it.
Ref = Any
# The smallest side that a product on tensor cores can have.
SMALLEST_SIDE = 16
# Products of float32 numbers, each split into two of 11 bits: relative errors of about 1e-6, as
# those of float32 itself, at a third of the speed of TF32.
IN_THREE_PARTS = lax.DotAlgorithmPreset.TF32_TF32_F32_X3


def rounded_up(size: int, multiple: int = SMALLEST_SIDE) -> int:
    return -(-size // multiple) * multiple


def power_above(size: int) -> int:
    """Return the smallest power of two that is at least `size`, and at least 16."""
    return max(SMALLEST_SIDE, 1 << (size - 1).bit_length())


def segments(size: int) -> list[tuple[int, int]]:
    """Return (start, width) of blocks of falling powers of two that fill a multiple of 16."""
    blocks, start = [], 0
    while start < size:
        width = 1 << ((size - start).bit_length() - 1)
        blocks.append((start, width))
        start += width
    return blocks


def pad_to(array: Float[Array, "..."], *shape: int) -> Float[Array, "..."]:
    """Add zeros at the end of every axis."""
    return jnp.pad(array, [(0, to - now) for now, to in zip(array.shape, shape, strict=True)])


def block_product(
    left: Float[Array, "rows inner"], right: Float[Array, "inner columns"], interpret: bool
) -> Float[Array, "rows columns"]:
    """Multiply two blocks with the accuracy of float32."""
    precision = lax.Precision.HIGHEST if interpret else IN_THREE_PARTS
    return jax.lax.dot_general(left, right, (((1,), (0,)), ((), ())), precision=precision)


def like(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def launch(
    kernel: Callable[..., None],
    grid: tuple[int, ...],
    shapes: jax.ShapeDtypeStruct | tuple[jax.ShapeDtypeStruct, ...],
    *,
    warps: int,
    interpret: bool,
) -> Callable[..., Any]:  # Any: one array or several, as `shapes` says
    """Return a function that runs a kernel over whole arrays."""
    return pl.pallas_call(
        kernel,
        grid=grid,
        out_shape=shapes,
        interpret=interpret,
        compiler_params=triton.CompilerParams(num_warps=warps, num_stages=1),
    )
