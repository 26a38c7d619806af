"""Stack: embedding (with a bias) → one or more layers → linear readout; nothing in between.

The paper's LSTM, GRU and LRU networks have this form: no norm, no dropout, no skip connection.
"""

import itertools
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from underhood.common.arrays import Weight
from underhood.common.errors import BadInput, kind_of, refuse
from underhood.layers.base.layer import Layer, Size, axis_size, gaussian
from underhood.layers.base.shapes import Output, Outputs, Token, Tokens, problems_of


class Affine(eqx.Module):
    """W x + b; W x if b is None."""

    W: Float[Weight, "d_out d_in"]
    b: Float[Weight, " d_out"] | None = None

    d_in = axis_size("W", 1)
    d_out = axis_size("W", 0)

    def __check_init__(self) -> None:
        refuse(problems_of(self), about="Affine")

    def __call__(self, xs: Float[Array, "*time d_in"]) -> Float[Array, "*time d_out"]:
        mapped = xs @ self.W.T
        return mapped if self.b is None else mapped + self.b


@runtime_checkable
class MakeLayer(Protocol):
    """A function that makes one layer of a stack."""

    def __call__(self, width: int, /, *, key: PRNGKeyArray) -> Layer: ...


class Stack(Layer):
    """Layers one after the other between an embedding and a readout; either may be None.

    needs_x64  the weights were linearised for float64 and would give noise in float32, so the
               stack refuses to run there
    """

    embed: Affine | None
    layers: tuple[Layer, ...]
    readout: Affine | None
    needs_x64: bool = eqx.field(static=True)

    d_in = Size(lambda self: (self.embed or self.layers[0]).d_in)
    d_out = Size(lambda self: (self.readout or self.layers[-1]).d_out)
    neurons = Size(lambda self: sum(layer.neurons for layer in self.layers))
    gate_width = Size(lambda self: sum(layer.gate_width for layer in self.layers))

    def __init__(
        self,
        embed: Affine | None,
        layers: Sequence[Layer],
        readout: Affine | None,
        *,
        needs_x64: bool = False,
    ):
        if isinstance(layers, Layer):
            raise BadInput("Stack: layers is a list of layers; write [layer] for one.")
        self.embed, self.layers, self.readout = embed, tuple(layers), readout
        self.needs_x64 = needs_x64

    def further_problems(self) -> list[str]:
        problems = [] if self.layers else ["it needs at least one layer"]
        if not isinstance(self.needs_x64, bool):
            problems.append(f"needs_x64 is {self.needs_x64!r}; give True or False")
        problems += [
            f"{name} is {kind_of(end)}, not an Affine or None"
            for name, end in (("embed", self.embed), ("readout", self.readout))
            if not isinstance(end, Affine | None)
        ]
        problems += [
            f"layer {number} is {kind_of(layer)}, not a Layer"
            for number, layer in enumerate(self.layers)
            if not isinstance(layer, Layer)
        ]
        if problems:
            return problems
        layers = [(f"layer {i}", layer) for i, layer in enumerate(self.layers)]
        parts = [("embed", self.embed), *layers, ("readout", self.readout)]
        there = [(name, part) for name, part in parts if part is not None]
        return [
            f"{giver} gives {gives.d_out} numbers but {taker} takes {takes.d_in}"
            for (giver, gives), (taker, takes) in itertools.pairwise(there)
            if gives.d_out != takes.d_in
        ]

    @classmethod
    def init(
        cls,
        make_layer: MakeLayer,
        *,
        d_in: int,
        hidden: int,
        d_out: int,
        key: PRNGKeyArray,
        depth: int = 1,
    ) -> "Stack":
        """Make `depth` random layers, each by `make_layer(hidden, key=…)`."""
        embed_key, readout_key, *keys = jax.random.split(key, depth + 2)
        return cls(
            Affine(gaussian(embed_key, hidden, d_in), jnp.zeros(hidden)),
            [make_layer(hidden, key=layer_key) for layer_key in keys],
            Affine(gaussian(readout_key, d_out, hidden)),
        )

    def check_precision(self) -> None:
        """Refuse to run weights that need float64 in anything less."""
        if not self.needs_x64:
            return
        leaves = [leaf for leaf in jax.tree.leaves(self) if eqx.is_inexact_array(leaf)]
        # Outside x64 new numbers are float32, even where the weights are float64 JAX arrays.
        narrow = jnp.result_type(float) != jnp.float64
        if narrow or any(jnp.asarray(leaf).dtype != jnp.float64 for leaf in leaves):
            raise BadInput(
                "This network was linearised for float64 and would return noise in float32: "
                "call it inside `with jax.enable_x64(True):`, or compile with dtype='float32'."
            )

    def __call__(self, xs: Tokens) -> Outputs:
        self.check_precision()
        self.check_sequence(xs)
        xs = xs if self.embed is None else self.embed(xs)
        for layer in self.layers:
            xs = layer(xs)
        return xs if self.readout is None else self.readout(xs)

    def initial_state(self) -> tuple[PyTree, ...]:
        self.check_precision()
        return tuple(layer.initial_state() for layer in self.layers)

    def step(self, state: tuple[PyTree, ...], x: Token) -> tuple[tuple[PyTree, ...], Output]:
        self.check_precision()
        self.check_step(state, x)
        x = x if self.embed is None else self.embed(x)
        states = []
        for layer, before in zip(self.layers, state, strict=True):
            after, x = layer.step(before, x)
            states.append(after)
        return tuple(states), x if self.readout is None else self.readout(x)
