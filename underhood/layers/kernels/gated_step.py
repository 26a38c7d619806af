"""The loss of gated RNNs on a batch and its gradient, by one CUDA kernel (`gated_step.cuh`).

The kernel is compiled for the sizes at hand when they are first needed, by the machine's nvcc, and
kept in the user's cache folder. Without nvcc, or at sizes that do not fit on the chip, the plain
path is used (`training/step.py`).
"""

import math
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import NamedTuple

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

KERNEL_SOURCE = HERE / "gated_step.cu"
# Threads of a program: with more, too few registers are left for each.
MOST_THREADS = 512
# Inputs and outputs that a thread can keep sums of in its registers.
WIDEST_TOKEN = 12
# Tokens of a chunk, larger first: fewer barriers a token.
CHUNKS = (64, 32)
# Numbers of the bounds that scales come from.
BOUNDS = 8
# Programs that may share a member, at most.
MOST_PARTS = 16


class GateWeights(NamedTuple):
    """A gated RNN's arrays, with λ instead of ν, in the order in which the kernel takes them."""

    W_in_m: Float[Array, "hidden d_in_plus_1"]
    W_in_x: Float[Array, "hidden d_in_plus_1"]
    decay: Float[Array, " hidden"]
    W_out_m: Float[Array, "gated hidden"]
    W_out_x: Float[Array, "gated hidden"]
    D: Float[Array, "d_out gated"]


@dataclass(frozen=True)
class StepSizes:
    """Sizes that the kernel is compiled for."""

    time: int
    d_in: int
    hidden: int
    gated: int
    d_out: int
    tokens: int

    @property
    def neuron_tiles(self) -> int:
        return -(-self.hidden // 8)

    @property
    def gate_tiles(self) -> int:
        return -(-self.gated // 8)

    @property
    def places(self) -> int:
        """Sequences of a chunk."""
        return self.tokens // self.time

    @property
    def program_threads(self) -> int:
        """A warp per tile of gate outputs, and a thread per neuron and sequence of a chunk."""
        return 32 * max(self.gate_tiles, -(-self.places * self.neuron_tiles // 4))

    @property
    def row_length(self) -> int:
        """Numbers from a row of states to the next: an odd number of tiles."""
        return 8 * (self.neuron_tiles | 1)

    @property
    def bytes(self) -> int:
        """Shared memory of a program, as gated_step.cuh lays it out."""
        states, gates = self.row_length, 8 * self.gate_tiles
        per_token = 2 * states + 2 * gates + 8 + self.d_in + self.d_out
        input_slopes = self.places * self.hidden * (2 * self.d_in + 3)
        once = 2 * gates * states + self.d_out * gates + BOUNDS + input_slopes
        return 4 * (once + self.tokens * per_token)

    @property
    def fits(self) -> bool:
        # At its end a program sums its threads' losses in the memory of a chunk's states.
        return (
            self.bytes <= most_bytes()
            and self.program_threads <= MOST_THREADS
            and max(self.d_in, self.d_out) <= WIDEST_TOKEN
            and self.program_threads <= self.tokens * self.row_length
        )

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """What the kernel writes of a member, in order; "loss" is the loss itself."""
        return {
            "W_out_m": (self.gated, self.hidden),
            "W_out_x": (self.gated, self.hidden),
            "D": (self.d_out, self.gated),
            "W_in_m": (self.hidden, self.d_in + 1),
            "W_in_x": (self.hidden, self.d_in + 1),
            "decay": (self.hidden,),
            "loss": (),
        }

    @property
    def numbers(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes.values())

    def flags(self) -> list[str]:
        """Return the sizes as definitions for a compiler."""
        sizes = asdict(self) | {
            name: getattr(self, name)
            for name in ("neuron_tiles", "gate_tiles", "program_threads", "bytes", "numbers")
        }
        sizes["most_parts"] = MOST_PARTS
        return [f"-D{name.upper()}={size}" for name, size in sizes.items()]


def step_sizes(weights: GateWeights, xs: Float[Array, "batch time d_in"]) -> StepSizes | None:
    """Return the kernel's sizes for a gated RNN on a batch; None if it is not made for them."""
    (batch, time, d_in), (gated, hidden) = xs.shape, weights.W_out_m.shape
    if 0 in (batch, time, d_in, gated, hidden) or weights.D.shape[0] == 0:
        return None
    for tokens in CHUNKS:
        if tokens % time == 0 and batch % (tokens // time) == 0:
            sizes = StepSizes(time, d_in, hidden, gated, weights.D.shape[0], tokens)
            if sizes.fits:
                return sizes
    return None


def unpacked(sizes: StepSizes, numbers: Float[Array, " numbers"]) -> dict[str, Array]:
    """Return the kernel's numbers by name."""
    arrays, start = {}, 0
    for name, shape in sizes.shapes.items():
        end = start + math.prod(shape)
        arrays[name], start = numbers[start:end].reshape(shape), end
    return arrays


@cache
def registered_target(sizes: StepSizes) -> str | None:
    """Compile the kernel for these sizes and register it with JAX; None if that fails.

    It is tried on this machine first, on a chunk of random sequences.
    """
    target = registered(KERNEL_SOURCE, ("GatedStep",), tuple(sizes.flags()))
    if target is None or not agrees_here(KERNEL_SOURCE, partial(error_of_step, target, sizes)):
        return None
    return target


def error_of_step(target: str, sizes: StepSizes) -> float:
    """Return the largest relative error of the kernel's loss and gradients on random numbers."""
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> Array:
        return jnp.asarray(rng.normal(size=shape) / np.sqrt(shape[-1]), jnp.float32)

    weights = GateWeights(**{name: draw(*sizes.shapes[name]) for name in GateWeights._fields})
    weights = weights._replace(decay=jnp.asarray(rng.uniform(size=sizes.hidden), jnp.float32))
    xs = draw(sizes.places, sizes.time, sizes.d_in)
    targets = draw(sizes.places, sizes.time, sizes.d_out)
    numbers = unpacked(sizes, call_step(target, sizes, weights, xs, targets))
    loss, slopes = jax.value_and_grad(plain_loss)(weights, xs, targets)
    expected = slopes._asdict() | {"loss": loss}
    return relative_error((numbers[name], expected[name]) for name in expected)


def plain_loss(weights: GateWeights, xs: Array, targets: Array) -> Float[Array, ""]:
    """Return the loss by the equations."""
    tokens = jnp.concatenate([xs, jnp.ones_like(xs[..., :1])], axis=-1)

    def product(left: Array, right: Array) -> Array:
        return jnp.matmul(left, right.T, precision="highest")

    written = product(tokens, weights.W_in_m) * product(tokens, weights.W_in_x)

    def step(state: Array, now: Array) -> tuple[Array, Array]:
        state = weights.decay * state + now
        return state, state

    states = jax.lax.scan(step, jnp.zeros_like(written[:, 0]), jnp.swapaxes(written, 0, 1))[1]
    gates = product(states, weights.W_out_m) * product(states, weights.W_out_x)
    outputs = jnp.swapaxes(product(gates, weights.D), 0, 1)
    return 0.5 * jnp.mean((outputs - targets) ** 2)


def call_step(
    target: str, sizes: StepSizes, weights: GateWeights, xs: Array, targets: Array
) -> Float[Array, " numbers"]:
    """Return what the kernel writes."""
    shapes = [
        jax.ShapeDtypeStruct((sizes.numbers,), jnp.float32),
        jax.ShapeDtypeStruct((MOST_PARTS, sizes.numbers), jnp.float32),
    ]
    call = jax.ffi.ffi_call(target, shapes, vmap_method="broadcast_all")
    numbers: Array = call(*weights, xs, targets)[0]
    return numbers


@jax.custom_vjp
def step_loss(
    weights: GateWeights,
    xs: Float[Array, "batch time d_in"],
    targets: Float[Array, "batch time d_out"],
) -> Float[Array, ""]:
    """Return ½·mean (y − target)² of a gated RNN's outputs y.

    Only gradients by the weights exist: sequences and targets count as constants.
    """
    return step_forward(weights, xs, targets)[0]


def step_forward(weights: GateWeights, xs: Array, targets: Array) -> tuple[Array, GateWeights]:
    sizes = step_sizes(weights, xs)
    assert sizes is not None, "the caller asks `step_sizes` first"
    target = registered_target(sizes)
    assert target is not None, "the caller asks `registered_target` first"
    by_name = unpacked(sizes, call_step(target, sizes, weights, xs, targets))
    return by_name.pop("loss"), GateWeights(**by_name)


def step_backward(slopes: GateWeights, slope: Float[Array, ""]) -> tuple[GateWeights, None, None]:
    return jax.tree.map(lambda leaf: slope * leaf, slopes), None, None


step_loss.defvjp(step_forward, step_backward)
