"""GRU (Appendix B.4), one matrix per symbol, reset before the product or after it.

r = σ(U_r x + V_r h + b_r)            reset gate
h̃ = tanh(U_h x + V_h (r⊙h) + b_h)    candidate, reset="before" (the paper's)
h̃ = tanh(U_h x + b_h + r⊙(V_h h + c_h))         reset="after" (PyTorch's, Flax's)
z = σ(U_z x + V_z h + b_z)            update gate
h' = (1 − z)⊙h + z⊙h̃

U [hidden, d_in], V [hidden, hidden], b and c_h [hidden]; c_h=None is zero. The two agree when
r = 1, or when V_h is diagonal and c_h is zero.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from underhood.common.arrays import Weight
from underhood.layers.base.layer import Layer, axis_size, random_gates, zeros
from underhood.layers.base.shapes import State, Token

RESETS = ("before", "after")


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
    c_h: Float[Weight, " hidden"] | None = None
    reset: str = eqx.field(static=True, default="before")

    d_in = axis_size("U_r", 1)
    d_out = neurons = gate_width = axis_size("U_r", 0)

    def further_problems(self) -> list[str]:
        if self.reset not in RESETS:
            return [f"unknown reset {self.reset!r}; use {' or '.join(RESETS)}"]
        if self.c_h is not None and self.reset == "before":
            return ["c_h belongs to reset='after'; add it to b_h or leave it out"]
        return []

    @classmethod
    def init(cls, *, d_in: int, hidden: int, key: PRNGKeyArray, reset: str = "before") -> "GRU":
        """Draw matrices from N(0, 1/fan-in); biases are zero, and c_h is left out."""
        return cls(**random_gates(key, "rhz", d_in=d_in, hidden=hidden), reset=reset)

    def recalled(
        self, r: Float[Array, "*batch hidden"], h: Float[Array, "*batch hidden"]
    ) -> Float[Array, "*batch hidden"]:
        """Return what the candidate reads of the state: V_h (r⊙h), or r⊙(V_h h + c_h)."""
        if self.reset == "before":
            return (r * h) @ self.V_h.T
        read = h @ self.V_h.T
        return r * (read if self.c_h is None else read + self.c_h)

    def initial_state(self) -> State:
        return zeros(self.neurons, like=self.U_r)

    def step(self, state: State, x: Token) -> tuple[State, State]:
        self.check_step(state, x)
        r = jax.nn.sigmoid(self.U_r @ x + self.V_r @ state + self.b_r)
        candidate = jnp.tanh(self.U_h @ x + self.recalled(r, state) + self.b_h)
        z = jax.nn.sigmoid(self.U_z @ x + self.V_z @ state + self.b_z)
        h = (1 - z) * state + z * candidate
        return h, h
