"""Layers around one recurrence: h_t = carry(h_{t−1}) + write(u_t), y_t = read(h_t, u_t).

u = enter(x) is x itself unless a layer says otherwise. All but the recurrence acts on each token
alone, so it can run on [time, d], on one token [d], or on many sequences at once (`batches.py`).
"""

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact

from underhood.common.arrays import Weight
from underhood.common.decay import decay_from_nu
from underhood.layers.base.layer import Layer, axis_size, zeros
from underhood.layers.base.recurrence import linear_recurrence
from underhood.layers.base.shapes import Output, Outputs, Token, Tokens

Written = Inexact[Array, "*time hidden"]


class RecurrentLayer(Layer):
    """A layer whose state is one vector that each token adds to."""

    D: eqx.AbstractVar[Float[Weight, "rows columns"]]

    def enter(self, xs: Float[Array, "*time d_in"]) -> Float[Array, "*time u"]:
        """Return u."""
        return xs

    @abstractmethod
    def write(self, us: Float[Array, "*time u"]) -> Written:
        """Return what u adds to the state."""

    @abstractmethod
    def carry(self, state: Inexact[Array, "*batch hidden"]) -> Inexact[Array, "*batch hidden"]:
        """Return what one step of time leaves of the state."""

    @abstractmethod
    def states(self, written: Written, *, backend: str | None = None) -> Written:
        """Return the states at all times, given what is written."""

    @abstractmethod
    def read(self, states: Written, us: Float[Array, "*time u"]) -> Float[Array, "*time d_out"]:
        """Return the outputs."""

    def __call__(self, xs: Tokens) -> Outputs:
        self.check_sequence(xs)
        us = self.enter(xs)
        return self.read(self.states(self.write(us)), us)

    def initial_state(self) -> Inexact[Array, " hidden"]:
        return zeros(self.neurons, like=self.D)

    def step(
        self, state: Inexact[Array, " hidden"], x: Token
    ) -> tuple[Inexact[Array, " hidden"], Output]:
        self.check_step(state, x)
        u = self.enter(x)
        state = self.carry(state) + self.write(u)
        return state, self.read(state, u)


class DiagonalLayer(RecurrentLayer):
    """A recurrent layer with one λ per neuron: h_t = λ⊙h_{t−1} + write(u_t)."""

    nu: eqx.AbstractVar[Float[Weight, " hidden"]]

    neurons = axis_size("nu", 0)

    @property
    def decay(self) -> Weight:
        """|λ|."""
        return decay_from_nu(self.nu)

    @property
    def eigenvalues(self) -> Inexact[Array, " hidden"]:
        """λ; real unless a layer says otherwise."""
        return jnp.asarray(self.decay)

    def carry(self, state: Inexact[Array, "*batch hidden"]) -> Inexact[Array, "*batch hidden"]:
        return self.eigenvalues * state

    def states(self, written: Written, *, backend: str | None = None) -> Written:
        return linear_recurrence(self.eigenvalues, written, backend=backend)
