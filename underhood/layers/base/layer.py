"""What every layer can do: run over one sequence at once, or stream it token by token."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from underhood.common.arrays import Weight
from underhood.common.errors import BadInput, refuse
from underhood.layers.base.shapes import problems_of


class Layer(eqx.Module):
    """A function from one sequence [time, d_in] to one sequence [time, d_out].

    Batches, seeds and learning rates are the caller's `jax.vmap`.
    """

    @abstractmethod
    def __call__(self, xs: Float[Array, "time d_in"]) -> Float[Array, "time d_out"]:
        """The outputs at all times."""

    @abstractmethod
    def initial_state(self) -> Any:
        """The state before the first token."""

    @abstractmethod
    def step(self, state: Any, x: Float[Array, " d_in"]) -> tuple[Any, Float[Array, " d_out"]]:
        """The state after one more token, and the output there."""

    @property
    @abstractmethod
    def d_in(self) -> int:
        """Numbers per input token."""

    @property
    @abstractmethod
    def d_out(self) -> int:
        """Numbers per output token."""

    @property
    @abstractmethod
    def neurons(self) -> int:
        """Recurrent units: numbers (complex ones count once) that the state carries on."""

    @property
    @abstractmethod
    def gate_width(self) -> int:
        """Products that the layer's gates hand on to a readout or to the next layer."""

    def __check_init__(self) -> None:
        refuse(problems_of(self), about=type(self).__name__)

    def check_sequence(self, xs: Weight) -> None:
        """Refuse anything but one sequence of tokens of the right size."""
        if not isinstance(xs, Weight):
            kind = type(xs).__name__
            raise BadInput(f"{type(self).__name__} takes a NumPy or JAX array, not a {kind}.")
        if xs.ndim != 2 or xs.shape[1] != self.d_in:
            raise BadInput(
                f"{type(self).__name__} takes one sequence [time, {self.d_in}] but got shape "
                f"{tuple(xs.shape)}; for a batch call jax.vmap(layer)."
            )


def stream(layer: Layer, xs: Float[Array, "time d_in"]) -> Float[Array, "time d_out"]:
    """Run a layer token by token; the same function as `layer(xs)`, in constant memory."""
    layer.check_sequence(xs)
    return scan_steps(layer, xs)


def scan_steps(layer: Layer, xs: Float[Array, "time d_in"]) -> Float[Array, "time d_out"]:
    """`layer.step` over time, the state in the wider of the layer's and the inputs' precision."""
    state = jax.tree.map(
        lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf, xs)), layer.initial_state()
    )
    # A lambda, because JAX would hash a bound method together with the layer's arrays.
    return jax.lax.scan(lambda state, x: layer.step(state, x), state, xs)[1]


def zeros(*shape: int, like: Weight) -> Float[Array, "..."]:
    """Zeros in the precision that `like` has once JAX computes with it."""
    return jnp.zeros(shape, jnp.asarray(like).dtype)


def normal(key: PRNGKeyArray, *shape: int) -> Float[Array, "..."]:
    """Random weights [..., fan_in] from N(0, 1/fan_in)."""
    return jax.random.normal(key, shape) / np.sqrt(max(shape[-1], 1))


def append_one(xs: Float[Array, "*time d"]) -> Float[Array, "*time d_plus_1"]:
    """[x; 1], so that a weight's last column is a bias."""
    return jnp.concatenate([xs, jnp.ones_like(xs[..., :1])], axis=-1)


def bilinear(W_m: Weight, W_x: Weight, xs: Float[Array, "*time d"]) -> Float[Array, "*time gated"]:
    """(W_m x) ⊙ (W_x x), as one product with both matrices stacked: x is read once."""
    both = xs @ jnp.concatenate([W_m, W_x]).T
    return both[..., : W_m.shape[0]] * both[..., W_m.shape[0] :]


def parameter_count(module: Any) -> int:
    """Numbers stored in a module's arrays."""
    return sum(int(leaf.size) for leaf in jax.tree.leaves(module) if eqx.is_array(leaf))
