"""Whether kernels run an LSTM or a GRU: on NVIDIA GPUs, in float32, at sizes made for them.

A backend is named "cpu", "gpu", "tpu" or one of the two here. "gpu" is the plain path on a GPU: XLA
compiles the layer's equations. "nvidia" is the default on an NVIDIA GPU. "interpret" runs the same
kernels as JAX operations on any machine; the tests use it.
"""

from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from underhood.layers.base.layer import Layer
from underhood.layers.gru import GRU
from underhood.layers.kernels.gru import gru_states
from underhood.layers.kernels.lstm import lstm_states
from underhood.layers.kernels.lstm_walk import registered_walk, walk_sizes, walk_states
from underhood.layers.kernels.products import ProductTiles, rows_product
from underhood.layers.kernels.walks import WalkTiles
from underhood.layers.lstm import LSTM
from underhood.layers.stack import Affine

KERNELS, INTERPRETED = "nvidia", "interpret"
# With 128 neurons, recurrent matrices and states ask for 416 KiB of the 227 KiB of an H200's chip.
WIDEST_WALK = 64
# Gates in the order of the kernels, by the letters of their matrices.
GATES_OF: dict[type[Layer], str] = {LSTM: "fgoc", GRU: "rzh"}
# Tensor cores of the first kind that multiply TF32.
AMPERE = 8.0

Gated = TypeVar("Gated", bound=LSTM | GRU)
TimeFirst = Float[Array, "time batch d_in"]
HiddenStates = Float[Array, "time batch hidden"]


def default_backend() -> str:
    """Return "nvidia" on an NVIDIA GPU, else the name of the platform that JAX computes on."""
    chosen = getattr(jax.config, "jax_default_device", None) or jax.devices()[0]
    device = jax.devices(chosen)[0] if isinstance(chosen, str) else chosen
    if device.platform not in ("gpu", "cuda"):
        return str(device.platform)
    capability = getattr(device, "compute_capability", "0")
    cuda = "cuda" in device.client.platform_version.lower()
    return KERNELS if cuda and float(capability) >= AMPERE else "gpu"


def kernels_run(layer: LSTM | GRU, xs: Array, backend: str | None) -> bool:
    """Tell whether kernels compute this layer on these inputs."""
    if (backend or default_backend()) not in (KERNELS, INTERPRETED) or 0 in xs.shape:
        return False
    arrays = [leaf for leaf in jax.tree.leaves(layer) if hasattr(leaf, "dtype")]
    if any(leaf.dtype != jnp.float32 or 0 in leaf.shape for leaf in [*arrays, xs]):
        return False
    return layer.neurons <= WIDEST_WALK


def entering(xs: TimeFirst, U: Array, b: Array, backend: str | None) -> Array:
    """Return U x + b for the gates in U [gates, hidden, d_in], as [time, batch, gates, hidden]."""
    gates, hidden, d_in = U.shape
    # As a weight of the constant 1, b needs no pass over the sums, and its gradient none either.
    tokens = jnp.concatenate([xs, jnp.ones_like(xs[..., :1])], axis=-1).reshape(-1, d_in + 1)
    weights = jnp.concatenate([U, b[..., None]], axis=-1).reshape(-1, d_in + 1)
    rows = rows_product(tokens, weights, ProductTiles(interpret=interpreted(backend)))
    return rows.reshape(*xs.shape[:2], gates, hidden)


def after_embedding(layer: Gated, embed: Affine) -> Gated:
    """Return the layer that reads what the embedding reads: U (W x + w) + b = (U W) x + (U w + b).

    Tokens mostly have fewer numbers than embedded ones, so products with all tokens become smaller.
    """
    gates = GATES_OF[LSTM if isinstance(layer, LSTM) else GRU]
    U, b = ([getattr(layer, f"{symbol}_{gate}") for gate in gates] for symbol in "Ub")
    read = [matrix @ embed.W for matrix in U]
    if embed.b is not None:
        b = [bias + matrix @ embed.b for matrix, bias in zip(U, b, strict=True)]
    return eqx.tree_at(
        lambda layer: [getattr(layer, f"{symbol}_{gate}") for symbol in "Ub" for gate in gates],
        layer,
        [*read, *b],
    )


def walk_tiles(backend: str | None) -> WalkTiles:
    here = interpreted(backend)
    return WalkTiles(products=ProductTiles(interpret=here), interpret=here)


def interpreted(backend: str | None) -> bool:
    return backend == INTERPRETED


def lstm_by_kernels(layer: LSTM, xs: TimeFirst, backend: str | None) -> HiddenStates:
    U, V, b = (
        jnp.stack([getattr(layer, f"{symbol}_{gate}") for gate in GATES_OF[LSTM]])
        for symbol in "UVb"
    )
    return lstm_states(entering(xs, U, b, backend), V, walk_tiles(backend))


def walked_on_data(
    layer: LSTM, embed: Affine, xs: Float[Array, "batch time d_in"], backend: str | None
) -> HiddenStates | None:
    """Return h of an LSTM behind an embedding where no gradient by xs is asked for.

    None if no kernel does that.
    """
    if (backend or default_backend()) != KERNELS or not kernels_run(layer, xs, backend):
        return None
    layer = after_embedding(layer, embed)
    matrices = (
        [
            getattr(layer, f"V_{gate}"),
            getattr(layer, f"U_{gate}"),
            getattr(layer, f"b_{gate}")[:, None],
        ]
        for gate in GATES_OF[LSTM]
    )
    W = jnp.stack([jnp.concatenate(columns, axis=1) for columns in matrices])
    sizes = walk_sizes(W, xs)
    if sizes is None or registered_walk(sizes) is None:
        return None
    return walk_states(W, xs)


def gru_by_kernels(layer: GRU, xs: TimeFirst, backend: str | None) -> HiddenStates:
    U, V, b = (
        jnp.stack([getattr(layer, f"{symbol}_{gate}") for gate in GATES_OF[GRU]])
        for symbol in "UVb"
    )
    c_h = jnp.zeros_like(b[0]) if layer.c_h is None else jnp.asarray(layer.c_h)
    after = layer.reset == "after"
    return gru_states(entering(xs, U, b, backend), V, c_h, after, walk_tiles(backend))
