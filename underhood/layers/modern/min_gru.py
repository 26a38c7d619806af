"""minGRU (Feng et al. 2024): a GRU whose gates do not see the state.

    z = σ(W_z x)   h̃ = g(W_h x)   h_t = (1 − z_t)⊙h_{t−1} + z_t⊙h̃_t   y = W_out h
    g(x) = x + ½ for x ≥ 0, σ(x) for x < 0: always positive

Per channel A_ts = ∏_{s<r≤t}(1 − z_r) z_s, and the values are h̃.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from underhood.common.arrays import Weight
from underhood.layers.base.layer import axis_size, zeros
from underhood.layers.base.recurrence import linear_recurrence
from underhood.layers.base.shapes import Output, Outputs, State, Token, Tokens
from underhood.layers.modern.core import decay_products
from underhood.layers.modern.mixer import ModernLayer, random_fields


class MinGRU(ModernLayer):
    """A minGRU with a readout."""

    W_z: Float[Weight, "hidden d_in"]
    W_h: Float[Weight, "hidden d_in"]
    W_out: Float[Weight, "d_out hidden"]

    d_in, d_out = axis_size("W_z", 1), axis_size("W_out", 0)
    neurons = gate_width = axis_size("W_z", 0)

    @classmethod
    def init(cls, *, d_in: int, hidden: int, d_out: int, key: PRNGKeyArray) -> "MinGRU":
        """Draw matrices from N(0, 1/fan-in)."""
        return cls(**random_fields(cls, key, {}, d_in=d_in, hidden=hidden, d_out=d_out))

    def signals(self, xs: Float[Array, "*time d_in"]) -> tuple[Array, Array, Array]:
        """Return 1 − z, z and h̃."""
        gate, candidate = xs @ self.W_z.T, xs @ self.W_h.T
        # The unused branch must not overflow, or its gradient would be NaN.
        positive = jnp.maximum(candidate, 0) + 0.5
        values = jnp.where(candidate >= 0, positive, jax.nn.sigmoid(jnp.minimum(candidate, 0)))
        return jax.nn.sigmoid(-gate), jax.nn.sigmoid(gate), values

    def core_map(self, xs: Float[Array, "time d_in"]) -> Float[Array, "hidden time time2"]:
        """Return A with h = A h̃, per channel."""
        decay, write, _ = self.signals(xs)
        return jnp.einsum("tsn,sn->nts", decay_products(decay).after, write)

    def leave(self, states: Float[Array, "*time hidden"]) -> Float[Array, "*time d_out"]:
        return states @ self.W_out.T

    def __call__(self, xs: Tokens, *, backend: str | None = None) -> Outputs:
        self.check_sequence(xs)
        decay, write, values = self.signals(jnp.asarray(xs))
        return self.leave(linear_recurrence(decay, write * values, backend=backend))

    def initial_state(self) -> State:
        return zeros(self.neurons, like=self.W_z)

    def step(self, state: State, x: Token) -> tuple[State, Output]:
        self.check_step(state, x)
        decay, write, values = self.signals(jnp.asarray(x))
        state = decay * state + write * values
        return state, self.leave(state)
