"""GRU (Appendix B.4), one matrix per symbol, reset before the product.

r = σ(U_r x + V_r h + b_r)            reset gate
h̃ = tanh(U_h x + V_h (r⊙h) + b_h)    candidate
z = σ(U_z x + V_z h + b_z)            update gate
h' = (1 − z)⊙h + z⊙h̃

U [hidden, d_in], V [hidden, hidden], b [hidden]. Most libraries reset after the product,
r⊙(V_h h); the two agree when r is constant or V_h is diagonal.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Float, PRNGKeyArray

from underhood.common.arrays import Weight
from underhood.layers.base.layer import Layer, axis_size, random_gates, zeros
from underhood.layers.base.shapes import State, Token


class GRU(Layer):
    """One GRU layer; its output is its state h."""

    U_r: Float[Weight, "hidden d_in"]
    V_r: Float[Weight, "hidden hidden"]
    b_r: Float[Weight, " hidden"]
    U_h: Float[Weight, "hidden d_in"]
    V_h: Float[Weight, "hidden hidden"]
    b_h: Float[Weight, " hidden"]
    U_z: Float[Weight, "hidden d_in"]
    V_z: Float[Weight, "hidden hidden"]
    b_z: Float[Weight, " hidden"]

    d_in = axis_size("U_r", 1)
    d_out = neurons = gate_width = axis_size("U_r", 0)

    @classmethod
    def init(cls, *, d_in: int, hidden: int, key: PRNGKeyArray) -> "GRU":
        """Draw matrices from N(0, 1/fan-in); biases are zero."""
        return cls(**random_gates(key, "rhz", d_in=d_in, hidden=hidden))

    def initial_state(self) -> State:
        return zeros(self.neurons, like=self.U_r)

    def step(self, state: State, x: Token) -> tuple[State, State]:
        self.check_step(state, x)
        r = jax.nn.sigmoid(self.U_r @ x + self.V_r @ state + self.b_r)
        candidate = jnp.tanh(self.U_h @ x + self.V_h @ (r * state) + self.b_h)
        z = jax.nn.sigmoid(self.U_z @ x + self.V_z @ state + self.b_z)
        h = (1 - z) * state + z * candidate
        return h, h
