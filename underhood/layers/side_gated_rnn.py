"""Gated RNN with side gating (Appendix A.2): y_t = D((W_side x_t) ⊙ h_t).

W_in_m, W_in_x  input gate  [hidden, d_in]   g_in(x) = (W_in_m x) ⊙ (W_in_x x), no constant
decay           λ           [hidden]         stored as ν, λ = exp(−exp ν)
W_side          side gate   [hidden, d_in]
D               readout     [d_out, hidden]

The query reaches the output through the side gate, so no neuron is spent on passing it on.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from underhood.common.arrays import Weight
from underhood.common.decay import decay_from_nu, nu_from_decay
from underhood.layers.base.layer import Layer, SizeOf, bilinear, normal, zeros
from underhood.layers.base.recurrence import linear_recurrence


class SideGatedRNN(Layer):
    """A diagonal linear recurrence between an input gate and a gate on the side."""

    W_in_m: Float[Weight, "hidden d_in"]
    W_in_x: Float[Weight, "hidden d_in"]
    nu: Float[Weight, " hidden"]
    W_side: Float[Weight, "hidden d_in"]
    D: Float[Weight, "d_out hidden"]

    d_in = SizeOf("W_in_m", 1)
    d_out = SizeOf("D", 0)
    neurons = SizeOf("W_in_m", 0)
    gate_width = SizeOf("W_side", 0)

    def __init__(self, *, W_in_m: Weight, W_in_x: Weight, decay: Weight, W_side: Weight, D: Weight):
        self.W_in_m, self.W_in_x = W_in_m, W_in_x
        self.nu = nu_from_decay(decay, about="SideGatedRNN")
        self.W_side, self.D = W_side, D

    @classmethod
    def init(cls, *, d_in: int, hidden: int, d_out: int, key: PRNGKeyArray) -> "SideGatedRNN":
        """Draw weights from N(0, 1/fan-in) and λ uniformly from (0, 1)."""
        decay_key, *keys = jax.random.split(key, 5)
        return cls(
            W_in_m=normal(keys[0], hidden, d_in),
            W_in_x=normal(keys[1], hidden, d_in),
            decay=jax.random.uniform(decay_key, (hidden,)),
            W_side=normal(keys[2], hidden, d_in),
            D=normal(keys[3], d_out, hidden),
        )

    @property
    def decay(self) -> Weight:
        return decay_from_nu(self.nu)

    def gate_in(self, xs: Float[Array, "*time d_in"]) -> Float[Array, "*time hidden"]:
        """Return g_in."""
        return bilinear(self.W_in_m, self.W_in_x, xs)

    def __call__(self, xs: Float[Array, "time d_in"]) -> Float[Array, "time d_out"]:
        self.check_sequence(xs)
        states = linear_recurrence(jnp.asarray(self.decay), self.gate_in(xs))
        return ((xs @ self.W_side.T) * states) @ self.D.T

    def initial_state(self) -> Float[Array, " hidden"]:
        return zeros(self.neurons, like=self.W_in_m)

    def step(
        self, state: Float[Array, " hidden"], x: Float[Array, " d_in"]
    ) -> tuple[Float[Array, " hidden"], Float[Array, " d_out"]]:
        self.check_token(x)
        state = jnp.asarray(self.decay) * state + self.gate_in(x)
        return state, ((x @ self.W_side.T) * state) @ self.D.T
