"""Mamba in the paper's simplified form (Appendix B.2), with affine Δ, A, B and C.

x̃_t = W_input x_t + b_input                                          [inner]
Δ_t = W_delta·x̃_t + b_delta                                          a scalar
Ā_t = exp(Δ_t (W_A x̃_t + b_A))                                       [hidden], diagonal
h_t = Ā_t⊙h_{t−1} + Δ_t B(x̃_t) x̃_t,  B(x̃) = W_B·x̃ + b_B              [hidden, inner]
y_t = (C(x̃_t) h_t) ⊙ σ(W_side x_t),  C(x̃) = W_C·x̃ + b_C              [d_out, hidden]

W_B [hidden, inner, inner] and W_C [d_out, hidden, inner] contract their last index with x̃.
The block that is used in practice, with a convolution and SiLU, is in `mamba_block.py`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from underhood.common.arrays import Weight
from underhood.layers.base.layer import Layer, SizeOf, normal, zeros
from underhood.layers.base.recurrence import linear_recurrence


class Mamba(Layer):
    """A selective recurrence: every map from the input to the dynamics is affine."""

    W_input: Float[Weight, "inner d_in"]
    b_input: Float[Weight, " inner"]
    W_delta: Float[Weight, " inner"]
    b_delta: Float[Weight, ""]
    W_A: Float[Weight, "hidden inner"]
    b_A: Float[Weight, " hidden"]
    W_B: Float[Weight, "hidden inner inner"]
    b_B: Float[Weight, "hidden inner"]
    W_C: Float[Weight, "d_out hidden inner"]
    b_C: Float[Weight, "d_out hidden"]
    W_side: Float[Weight, "d_out d_in"]

    d_in = SizeOf("W_input", 1)
    d_out = SizeOf("W_C", 0)
    neurons = SizeOf("W_A", 0)
    gate_width = SizeOf("W_side", 0)

    @classmethod
    def init(
        cls, *, d_in: int, hidden: int, d_out: int, key: PRNGKeyArray, inner: int | None = None
    ) -> "Mamba":
        """Draw weights from N(0, 1/fan-in); Δ starts at 1 and A at −1, so that states fade."""
        inner = d_in if inner is None else inner
        keys = jax.random.split(key, 6)
        return cls(
            W_input=normal(keys[0], inner, d_in),
            b_input=jnp.zeros(inner),
            W_delta=jnp.zeros(inner),
            b_delta=jnp.ones(()),
            W_A=0.1 * normal(keys[1], hidden, inner),
            b_A=-jnp.ones(hidden),
            W_B=normal(keys[2], hidden, inner, inner),
            b_B=jnp.zeros((hidden, inner)),
            W_C=normal(keys[3], d_out, hidden, inner),
            b_C=normal(keys[4], d_out, hidden),
            W_side=normal(keys[5], d_out, d_in),
        )

    def dynamics(
        self, inner: Float[Array, "*time inner"]
    ) -> tuple[Float[Array, "*time hidden"], Float[Array, "*time hidden"]]:
        """Return Ā and what is written, Δ B(x̃) x̃."""
        delta = (inner @ self.W_delta + self.b_delta)[..., None]
        decay = jnp.exp(delta * (inner @ self.W_A.T + self.b_A))
        gated = jnp.einsum("hij,...j,...i->...h", self.W_B, inner, inner)
        return decay, delta * (gated + inner @ self.b_B.T)

    def read(
        self,
        states: Float[Array, "*time hidden"],
        inner: Float[Array, "*time inner"],
        xs: Float[Array, "*time d_in"],
    ) -> Float[Array, "*time d_out"]:
        """Return (C(x̃) h) ⊙ σ(W_side x)."""
        queried = jnp.einsum("ohi,...i,...h->...o", self.W_C, inner, states)
        return (queried + states @ self.b_C.T) * jax.nn.sigmoid(xs @ self.W_side.T)

    def __call__(
        self, xs: Float[Array, "time d_in"], *, backend: str | None = None
    ) -> Float[Array, "time d_out"]:
        self.check_sequence(xs)
        inner = xs @ self.W_input.T + self.b_input
        decay, written = self.dynamics(inner)
        return self.read(linear_recurrence(decay, written, backend=backend), inner, xs)

    def initial_state(self) -> Float[Array, " hidden"]:
        return zeros(self.neurons, like=self.W_A)

    def step(
        self, state: Float[Array, " hidden"], x: Float[Array, " d_in"]
    ) -> tuple[Float[Array, " hidden"], Float[Array, " d_out"]]:
        self.check_token(x)
        inner = x @ self.W_input.T + self.b_input
        decay, written = self.dynamics(inner)
        state = decay * state + written
        return state, self.read(state, inner, x)
