"""What the walks of an LSTM and of a GRU through time share."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from underhood.layers.kernels.blocks import launch
from underhood.layers.kernels.products import ProductTiles, sum_of_products

# Where something stands along an axis.
Place = slice | pl.Slice


class WalkTiles(NamedTuple):
    """Sizes of blocks: sequences of a program, its warps; and those of the products around it."""

    sequences: int = 32
    warps: int = 8
    products: ProductTiles = ProductTiles()
    interpret: bool = False

    def places(self, width: int, gates: int) -> tuple[Place, list[Place]]:
        """Return where a program's sequences stand in an array, and where each of its gates."""
        sequences = pl.ds(pl.program_id(0) * self.sequences, self.sequences)
        return sequences, [pl.ds(gate * width, width) for gate in range(gates)]

    def launch(
        self,
        kernel: Callable[..., None],
        rows: int,
        shapes: jax.ShapeDtypeStruct | tuple[jax.ShapeDtypeStruct, ...],
    ) -> Callable[..., Any]:  # Any: one array or several, as `shapes` says
        """Return a function that runs a kernel over all rows of a batch."""
        return launch(
            partial(kernel, tiles=self),
            (rows // self.sequences,),
            shapes,
            warps=self.warps,
            interpret=self.interpret,
        )


def gate_sigmoid(a: Array) -> Array:
    return 1.0 / (1.0 + jnp.exp(-a))


def sum_over_time(
    slopes: Float[Array, "time batch rows"],
    states: Float[Array, "time batch columns"],
    tiles: ProductTiles,
    *,
    shifted: bool = True,
) -> Float[Array, "rows columns"]:
    """Return Σ slope_tᵀ h_{t−1} over times and sequences, h_0 = 0; of h_t if not shifted."""
    if shifted:
        slopes, states = slopes[1:], states[:-1]
    flat = slopes.reshape(-1, slopes.shape[-1]), states.reshape(-1, states.shape[-1])
    return sum_of_products(*flat, tiles)
