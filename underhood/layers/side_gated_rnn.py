"""Gated RNN with side gating (Appendix A.2): y_t = D((W_side x_t) ⊙ h_t).

W_in_m, W_in_x  input gate  [hidden, d_in]   g_in(x) = (W_in_m x) ⊙ (W_in_x x), no constant
decay           λ           [hidden]         stored as ν, λ = exp(−exp ν)
W_side          side gate   [hidden, d_in]
D               readout     [d_out, hidden]

The query reaches the output through the side gate, so no neuron is spent on passing it on.
"""

import jax
from jaxtyping import Array, Float, PRNGKeyArray

from underhood.common.arrays import Weight
from underhood.common.decay import nu_from_decay
from underhood.layers.base.layer import axis_size, bilinear, gaussian
from underhood.layers.base.recurrent import DiagonalLayer, Written


class SideGatedRNN(DiagonalLayer):
    """A diagonal linear recurrence between an input gate and a gate on the side."""

    W_in_m: Float[Weight, "hidden d_in"]
    W_in_x: Float[Weight, "hidden d_in"]
    nu: Float[Weight, " hidden"]
    W_side: Float[Weight, "hidden d_in"]
    D: Float[Weight, "d_out hidden"]

    d_in = axis_size("W_in_m", 1)
    d_out = axis_size("D", 0)
    gate_width = axis_size("W_side", 0)

    def __init__(self, *, W_in_m: Weight, W_in_x: Weight, decay: Weight, W_side: Weight, D: Weight):
        self.W_in_m, self.W_in_x = W_in_m, W_in_x
        self.nu = nu_from_decay(decay, about="SideGatedRNN")
        self.W_side, self.D = W_side, D

    @classmethod
    def init(cls, *, d_in: int, hidden: int, d_out: int, key: PRNGKeyArray) -> "SideGatedRNN":
        """Draw weights from N(0, 1/fan-in) and λ uniformly from (0, 1)."""
        decay_key, *keys = jax.random.split(key, 5)
        return cls(
            W_in_m=gaussian(keys[0], hidden, d_in),
            W_in_x=gaussian(keys[1], hidden, d_in),
            decay=jax.random.uniform(decay_key, (hidden,)),
            W_side=gaussian(keys[2], hidden, d_in),
            D=gaussian(keys[3], d_out, hidden),
        )

    def gate_in(self, us: Float[Array, "*time d_in"]) -> Written:
        """Return g_in."""
        return bilinear(self.W_in_m, self.W_in_x, us)

    write = gate_in

    def read(self, states: Written, us: Float[Array, "*time d_in"]) -> Float[Array, "*time d_out"]:
        return ((us @ self.W_side.T) * states) @ self.D.T
