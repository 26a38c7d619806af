"""An LSTM's states on data, by two CUDA kernels: through time, and back (`lstm_walk.cuh`).

Data has no gradient, so the kernels return none for it. They read the tokens themselves, and only
states, gates and slopes pass through the GPU's memory. An LSTM that reads another layer runs by
`lstm.py`.
"""

from dataclasses import asdict, dataclass
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from underhood.layers.kernels.compiling import (
    HERE,
    agrees_here,
    most_bytes,
    registered,
    relative_error,
)
from underhood.layers.kernels.lstm import LSTM_GATES

# With more, a thread's share of the gradient does not fit into its registers.
WIDEST_LSTM = 64
# Inputs and the constant fill one block of 16.
WIDEST_INPUT = 15
# Sequences of a program, and numbers that a thread keeps of a step: 5 of each of 4 neurons.
WALKED_AT_ONCE, SLOTS, EACH = 16, 5, 4
# Numbers of the bounds that scales come from.
BOUNDS_OF_WALK = 4
WALK_SOURCE = HERE / "lstm_walk.cu"


@dataclass(frozen=True)
class WalkSizes:
    """Sizes that the kernels are compiled for."""

    time: int
    d_in: int
    hidden: int

    @property
    def neuron_tiles(self) -> int:
        return -(-self.hidden // 8)

    @property
    def program_threads(self) -> int:
        """A warp per tile of neurons."""
        return 32 * self.neuron_tiles

    @property
    def fit(self) -> bool:
        sizes = self.time, self.d_in, self.hidden
        narrow = self.hidden <= WIDEST_LSTM and self.d_in <= WIDEST_INPUT
        return min(sizes) > 0 and narrow and self.bytes <= most_bytes()

    @property
    def bytes(self) -> int:
        """Shared memory of a program, as lstm_walk.cuh lays it out, whichever way needs more."""
        rows, of_states = 32 * self.neuron_tiles, 16 * -(-self.neuron_tiles // 2)
        columns = of_states + 16 * -(-(self.d_in + 1) // 16)
        forward = (rows + 2 * WALKED_AT_ONCE) * (columns + 8)
        backward = rows * (of_states + 8) + WALKED_AT_ONCE * (rows + 8 + columns + 8)
        return 4 * (max(forward, backward) + BOUNDS_OF_WALK)

    @property
    def columns(self) -> int:
        """Columns of W: those for h, for x and for the constant 1."""
        return self.hidden + self.d_in + 1

    def flags(self) -> list[str]:
        """Return the sizes as definitions for a compiler."""
        sizes = asdict(self)
        derived = "neuron_tiles", "program_threads", "bytes"
        sizes |= {name: getattr(self, name) for name in derived}
        return [f"-D{name.upper()}={size}" for name, size in sizes.items()]


def walk_sizes(
    W: Float[Array, "gates hidden columns"], xs: Float[Array, "batch time d_in"]
) -> WalkSizes | None:
    """Return the kernels' sizes for an LSTM on a batch; None if they are not made for them."""
    sizes = WalkSizes(time=xs.shape[1], d_in=xs.shape[2], hidden=W.shape[1])
    return sizes if sizes.fit and xs.shape[0] > 0 else None


@cache
def registered_walk(sizes: WalkSizes) -> str | None:
    """Compile the kernels for these sizes and register them; None if that fails.

    They are tried on this machine first, on a few sequences. If they disagree with the equations,
    they are not used.
    """
    handlers = "LstmForward", "LstmBackward"
    target = registered(WALK_SOURCE, handlers, tuple(sizes.flags()))
    if target is None:
        return None
    return target if agrees_here(WALK_SOURCE, partial(error_here, target, sizes)) else None


def error_here(target: str, sizes: WalkSizes) -> float:
    """Return the largest relative error of the kernels' states and gradient on random numbers."""
    rng = np.random.default_rng(0)
    batch = WALKED_AT_ONCE + 1
    shapes = {
        "W": (LSTM_GATES, sizes.hidden, sizes.columns),
        "xs": (batch, sizes.time, sizes.d_in),
        "slopes": (sizes.time, batch, sizes.hidden),
    }
    W, xs, slopes = (
        jnp.asarray(rng.normal(size=shape) / np.sqrt(shape[-1]), jnp.float32)
        for shape in shapes.values()
    )
    states, saved = call_forward(target, sizes, W, xs)
    by_W = call_backward(target, sizes, W, xs, saved, slopes)
    expected, back = jax.vjp(partial(plain_states, xs=xs), W)
    return relative_error([(states, expected), (by_W, back(slopes)[0])])


def plain_states(
    W: Float[Array, "gates hidden columns"], xs: Float[Array, "batch time d_in"]
) -> Float[Array, "time batch hidden"]:
    """Return h at all times by the equations."""
    hidden = W.shape[1]

    def step(state: tuple[Array, Array], x: Array) -> tuple[tuple[Array, Array], Array]:
        h, c = state
        read = jnp.concatenate([h, x, jnp.ones_like(x[:, :1])], axis=1)
        f, g, o, candidate = jnp.einsum("bk,ghk->gbh", read, W, precision="highest")
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(g) * jnp.tanh(candidate)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    nothing = jnp.zeros((xs.shape[0], hidden), xs.dtype)
    return jax.lax.scan(step, (nothing, nothing), jnp.swapaxes(xs, 0, 1))[1]


def call_forward(target: str, sizes: WalkSizes, W: Array, xs: Array) -> tuple[Array, Array]:
    """Return the states, and what a program keeps for the way back."""
    batch = xs.shape[0]
    parts = -(-batch // WALKED_AT_ONCE)
    kept = parts, sizes.time, SLOTS, sizes.program_threads, EACH
    shapes = [
        jax.ShapeDtypeStruct((sizes.time, batch, sizes.hidden), jnp.float32),
        jax.ShapeDtypeStruct(kept, jnp.float32),
    ]
    call = jax.ffi.ffi_call(f"{target}.LstmForward", shapes, vmap_method="broadcast_all")
    states, saved = call(W, xs)
    return states, saved


def call_backward(
    target: str, sizes: WalkSizes, W: Array, xs: Array, saved: Array, slopes: Array
) -> Array:
    """Return the gradient by W."""
    shape = jax.ShapeDtypeStruct((saved.shape[0], *W.shape), jnp.float32)
    call = jax.ffi.ffi_call(f"{target}.LstmBackward", shape, vmap_method="broadcast_all")
    return call(W, xs, saved, slopes).sum(0)


@jax.custom_vjp
def walk_states(
    W: Float[Array, "gates hidden columns"], xs: Float[Array, "batch time d_in"]
) -> Float[Array, "time batch hidden"]:
    """Return h at all times. Only the gradient by W exists: sequences count as constants.

    W is [V, U, b] of the gates f, g, o and of the candidate.
    """
    return walk_forward(W, xs)[0]


def walk_forward(W: Array, xs: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    target, sizes = target_of(W, xs)
    states, saved = call_forward(target, sizes, W, xs)
    return states, (W, xs, saved)


def walk_backward(kept: tuple[Array, Array, Array], slopes: Array) -> tuple[Array, None]:
    W, xs, saved = kept
    return call_backward(*target_of(W, xs), W, xs, saved, slopes), None


def target_of(W: Array, xs: Array) -> tuple[str, WalkSizes]:
    sizes = walk_sizes(W, xs)
    assert sizes is not None, "the caller asks `walk_sizes` first"
    target = registered_walk(sizes)
    assert target is not None, "the caller asks `registered_walk` first"
    return target, sizes


walk_states.defvjp(walk_forward, walk_backward)
