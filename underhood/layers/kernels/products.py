"""Products of many tokens with one matrix, y = x Wᵀ, and their gradients, on tensor cores.

Students are small and their batches long: [2048, 64]·[64, 256]. For such shapes XLA's float32
products reach a fifth of the rate that three TF32 products reach (`benchmarks/gpu/kernels.py`).
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from underhood.layers.kernels.blocks import (
    Ref,
    block_product,
    launch,
    like,
    pad_to,
    rounded_up,
    segments,
)


class ProductTiles(NamedTuple):
    """Sizes of blocks: tokens, outputs, programs that share a sum over tokens, warps."""

    tokens: int = 64
    outputs: int = 64
    shares: int = 4
    warps: int = 4
    interpret: bool = False


def rows_kernel(xs: Ref, W: Ref, ys: Ref, *, tiles: ProductTiles) -> None:
    rows = pl.ds(pl.program_id(0) * tiles.tokens, tiles.tokens)
    columns = pl.ds(pl.program_id(1) * tiles.outputs, tiles.outputs)
    ys[rows, columns] = sum(
        block_product(xs[rows, pl.ds(*cut)], W[columns, pl.ds(*cut)].T, tiles.interpret)
        for cut in segments(xs.shape[1])
    )


def sums_kernel(slopes: Ref, xs: Ref, sums: Ref, *, tiles: ProductTiles, shares: int) -> None:
    share, columns = pl.program_id(0), pl.ds(pl.program_id(1) * tiles.outputs, tiles.outputs)
    blocks = xs.shape[0] // (tiles.tokens * shares)
    inner = segments(xs.shape[1])

    def add(number: Array, totals: tuple[Array, ...]) -> tuple[Array, ...]:
        rows = pl.ds((share * blocks + number) * tiles.tokens, tiles.tokens)
        turned = slopes[rows, columns].T
        return tuple(
            total + block_product(turned, xs[rows, pl.ds(*cut)], tiles.interpret)
            for total, cut in zip(totals, inner, strict=True)
        )

    first = tuple(jnp.zeros((tiles.outputs, width), jnp.float32) for _, width in inner)
    totals = jax.lax.fori_loop(0, blocks, add, first)
    for total, cut in zip(totals, inner, strict=True):
        sums[share, columns, pl.ds(*cut)] = total


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def rows_product(
    xs: Float[Array, "tokens d_in"], W: Float[Array, "d_out d_in"], tiles: ProductTiles
) -> Float[Array, "tokens d_out"]:
    """Return xs Wᵀ."""
    (tokens, d_in), d_out = xs.shape, W.shape[0]
    rows, columns = rounded_up(tokens, tiles.tokens), rounded_up(d_out, tiles.outputs)
    inner = rounded_up(d_in)
    ys = launch(
        partial(rows_kernel, tiles=tiles),
        (rows // tiles.tokens, columns // tiles.outputs),
        like(rows, columns),
        warps=tiles.warps,
        interpret=tiles.interpret,
    )(pad_to(xs, rows, inner), pad_to(W, columns, inner))
    return ys[:tokens, :d_out]


def sum_of_products(
    slopes: Float[Array, "tokens d_out"], xs: Float[Array, "tokens d_in"], tiles: ProductTiles
) -> Float[Array, "d_out d_in"]:
    """Return Σ slopeᵀ x over the tokens."""
    (tokens, d_in), d_out = xs.shape, slopes.shape[1]
    if tokens == 0:
        return jnp.zeros((d_out, d_in), jnp.float32)
    columns, inner = rounded_up(d_out, tiles.outputs), rounded_up(d_in)
    shares = max(1, min(tiles.shares, tokens // tiles.tokens))
    rows = rounded_up(tokens, tiles.tokens * shares)
    sums = launch(
        partial(sums_kernel, tiles=tiles, shares=shares),
        (shares, columns // tiles.outputs),
        like(shares, columns, inner),
        warps=tiles.warps,
        interpret=tiles.interpret,
    )(pad_to(slopes, rows, columns), pad_to(xs, rows, inner))
    return sums.sum(0)[:d_out, :d_in]


def rows_forward(xs: Array, W: Array, tiles: ProductTiles) -> tuple[Array, tuple[Array, Array]]:
    return rows_product(xs, W, tiles), (xs, W)


def rows_backward(
    tiles: ProductTiles, kept: tuple[Array, Array], slopes: Array
) -> tuple[Array, Array]:
    xs, W = kept
    return rows_product(slopes, W.T, tiles), sum_of_products(slopes, xs, tiles)


rows_product.defvjp(rows_forward, rows_backward)
