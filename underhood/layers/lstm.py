"""LSTM (Appendix B.3), one matrix per symbol.

f = σ(U_f x + V_f h + b_f)      forget gate
c̃ = tanh(U_c x + V_c h + b_c)   candidate
g = σ(U_g x + V_g h + b_g)      input gate (often called i)
o = σ(U_o x + V_o h + b_o)      output gate
c' = f⊙c + g⊙c̃,  h' = o⊙tanh(c')

U [hidden, d_in], V [hidden, hidden], b [hidden]; h and c on the right are the previous ones.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Float, PRNGKeyArray

from underhood.common.arrays import Weight
from underhood.layers.base.layer import Layer, axis_size, random_gates, zeros
from underhood.layers.base.shapes import Output, State, Token

LSTMState = tuple[State, State]


class LSTM(Layer):
    """One LSTM layer; its output is h."""

    U_f: Float[Weight, "hidden d_in"]
    V_f: Float[Weight, "hidden hidden"]
    b_f: Float[Weight, " hidden"]
    U_c: Float[Weight, "hidden d_in"]
    V_c: Float[Weight, "hidden hidden"]
    b_c: Float[Weight, " hidden"]
    U_g: Float[Weight, "hidden d_in"]
    V_g: Float[Weight, "hidden hidden"]
    b_g: Float[Weight, " hidden"]
    U_o: Float[Weight, "hidden d_in"]
    V_o: Float[Weight, "hidden hidden"]
    b_o: Float[Weight, " hidden"]

    d_in = axis_size("U_f", 1)
    d_out = neurons = gate_width = axis_size("U_f", 0)

    @classmethod
    def init(cls, *, d_in: int, hidden: int, key: PRNGKeyArray) -> "LSTM":
        """Draw matrices from N(0, 1/fan-in); biases are zero."""
        return cls(**random_gates(key, "fcgo", d_in=d_in, hidden=hidden))

    def initial_state(self) -> LSTMState:
        return (zeros(self.neurons, like=self.U_f),) * 2

    def step(self, state: LSTMState, x: Token) -> tuple[LSTMState, Output]:
        self.check_step(state, x)
        h, c = state
        f = jax.nn.sigmoid(self.U_f @ x + self.V_f @ h + self.b_f)
        candidate = jnp.tanh(self.U_c @ x + self.V_c @ h + self.b_c)
        g = jax.nn.sigmoid(self.U_g @ x + self.V_g @ h + self.b_g)
        o = jax.nn.sigmoid(self.U_o @ x + self.V_o @ h + self.b_o)
        c = f * c + g * candidate
        h = o * jnp.tanh(c)
        return (h, c), h
