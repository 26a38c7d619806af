"""Mixers: signals of the tokens → a matrix memory per head → a norm, a gate and a readout.

A mixer says in `signals` what its tokens do to the memory (`core.py`), and in `leave` what happens
to what was read. `signals` may look back over `reach` tokens: a convolution, or a shift by one.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Set
from functools import partial
from typing import Any, ClassVar, TypedDict

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from underhood.common.arrays import Weight
from underhood.layers.base.layer import Layer, Size, axis_size, gaussian, zeros
from underhood.layers.base.shapes import Output, Outputs, Token, Tokens, annotated_arrays
from underhood.layers.modern.core import Memory, Mixed, Signals, run_memory, step_memory

MixerState = tuple[Float[Array, "earlier d_in"], Memory]


class ModernLayer(Layer):
    """A layer with norms or gates that zero neurons would change, so ensembles do not pad it."""

    # Fields whose entries may be ±inf: logarithms of a decay that is exactly 0 or 1.
    may_be_infinite: ClassVar[tuple[str, ...]] = ()


class Mixer(ModernLayer):
    """A layer around a matrix memory per head."""

    W_out: eqx.AbstractVar[Float[Weight, "d_out heads d_v"]]

    # The matrix [heads, d_k, d_in] that makes the keys.
    key_field: ClassVar[str] = "W_k"

    heads = axis_size("W_out", 1)
    d_v = axis_size("W_out", 2)
    d_k = Size(lambda self: getattr(self, self.key_field).shape[1])
    d_in = Size(lambda self: getattr(self, self.key_field).shape[2])
    d_out = axis_size("W_out", 0)
    neurons = Size(lambda self: self.heads * self.d_k * self.d_v)
    gate_width = Size(lambda self: self.heads * self.d_v)
    # How many tokens `signals` looks at, the current one included.
    reach = Size(lambda self: 1)

    @abstractmethod
    def signals(self, xs: Float[Array, "time d_in"]) -> Signals:
        """Return what the tokens do to the memory."""

    def gate(self, xs: Float[Array, "time d_in"]) -> Float[Array, "time heads d_v"]:
        """Return what multiplies what was read; 1 unless a mixer says otherwise."""
        return jnp.ones((len(xs), self.heads, self.d_v), jnp.result_type(xs, self.W_out))

    @abstractmethod
    def leave(self, mixed: Mixed, signals: Signals, gate: Mixed) -> Float[Array, "time d_out"]:
        """Return the outputs, given what was read from the memory and the gate."""

    def __call__(self, xs: Tokens) -> Outputs:
        self.check_sequence(xs)
        xs = jnp.asarray(xs)
        signals = self.signals(xs)
        return self.leave(run_memory(signals), signals, self.gate(xs))

    def initial_state(self) -> MixerState:
        window = zeros(self.reach - 1, self.d_in, like=self.W_out)
        return window, zeros(self.heads, self.d_k, self.d_v, like=self.W_out)

    def step(self, state: MixerState, x: Token) -> tuple[MixerState, Output]:
        self.check_step(state, x)
        window, memory = state
        # Before the first token there are zeros, which projections without biases keep zero.
        window = jnp.concatenate([window, jnp.asarray(x)[None]])
        signals = jax.tree.map(lambda part: part[-1], self.signals(window))
        memory, mixed = step_memory(memory, signals)
        now = jax.tree.map(lambda part: part[None], signals)
        return (window[1:], memory), self.leave(mixed[None], now, self.gate(window)[-1:])[0]


class HeadSizes(TypedDict):
    """The sizes that `init` of every layer with heads takes."""

    d_in: int
    """Numbers per input token."""
    d_out: int
    """Numbers per output."""
    heads: int
    """Memories side by side."""
    d_k: int
    """Numbers per key and query of a head."""
    d_v: int
    """Numbers per value of a head."""


# A number or an array fills a field; a function makes it from the field's shape.
Given = float | Float[Array, "..."] | Callable[..., Float[Array, "..."]]


def random_fields(
    kind: type[Layer], key: PRNGKeyArray, given: Mapping[str, Given], **sizes: int
) -> dict[str, Any]:  # Any: arrays, for constructors that take settings too
    """Draw every array of a layer that is not given from N(0, 1/fan-in).

    sizes  of the axes that the annotations name
    """
    arrays = annotated_arrays(kind)
    refuse_sizes(kind, sizes, {axis for array in arrays for axis in array.dimensions})
    keys = iter(jax.random.split(key, len(arrays) - len(given)))
    weights = {}
    for field, _, dimensions, _ in arrays:
        shape = tuple(sizes[axis] for axis in dimensions)
        if field in given:
            value = given[field]
            value = value(*shape) if callable(value) else jnp.asarray(value, float)
            weights[field] = jnp.broadcast_to(value, shape)
            continue
        drawn = gaussian(next(keys), *shape)
        # Fan-in is the last axis, but for a kernel its width, and for a readout all heads.
        if field.startswith("conv"):
            drawn = drawn * math.sqrt(shape[-1] / shape[0])
        elif field == "W_out":
            drawn = drawn / math.sqrt(math.prod(shape[1:-1]))
        weights[field] = drawn
    return weights


def refuse_sizes(kind: type[Layer], sizes: Mapping[str, int], axes: Set[str]) -> None:
    """Refuse a size that a layer does not have, or a missing one, as Python refuses arguments."""
    for name in sorted(sizes.keys() - axes):
        raise TypeError(f"{kind.__name__}.init() got an unexpected keyword argument {name!r}")
    for name in sorted(axes - sizes.keys()):
        raise TypeError(f"{kind.__name__}.init() is missing the keyword argument {name!r}")


def random_steps(key: PRNGKeyArray, *shape: int) -> Float[Array, "..."]:
    """Draw biases for which softplus(bias) is log-uniform on [0.001, 0.1], as Mamba has them."""
    low, high = math.log(1e-3), math.log(1e-1)
    step = jnp.exp(jax.random.uniform(key, shape, minval=low, maxval=high))
    return step + jnp.log(-jnp.expm1(-step))


def random_rates(key: PRNGKeyArray, *shape: int) -> Float[Array, "..."]:
    """Draw log A for A uniform on [1, 16], as Mamba-2 has it."""
    return jnp.log(jax.random.uniform(key, shape, minval=1.0, maxval=16.0))


def random_decays(key: PRNGKeyArray) -> tuple[PRNGKeyArray, dict[str, Given]]:
    """Return a key for other weights, and how Mamba-2 and its kin draw A_log and dt_bias."""
    key, step_key, rate_key = jax.random.split(key, 3)
    steps, rates = partial(random_steps, step_key), partial(random_rates, rate_key)
    return key, {"A_log": rates, "dt_bias": steps}
