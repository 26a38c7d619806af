"""Mamba in the paper's simplified form (Appendix B.2), with affine Δ, A, B and C.

    x̃ = W_input x + b_input    Δ = W_delta·x̃ + b_delta    Ā = exp(Δ (W_A x̃ + b_A))
    h_t = Ā⊙h_{t−1} + Δ B(x̃) x̃            B(x̃) = W_B·x̃ + b_B
    y_t = (C(x̃) h_t) ⊙ σ(W_side x_t)      C(x̃) = W_C·x̃ + b_C

W_B and W_C contract their last index with x̃. The block that is used in practice (Gu and Dao 2023)
has a causal convolution per channel, conv [width, inner] from the oldest token to the current one,
SiLUs and a selective scan:

    [u, z] = W_in x   u ← silu(conv(u) + b_conv)   [δ, B, C] = W_x u   Δ = softplus(W_dt δ + b_dt)
    h_t = exp(Δ A)⊙h_{t−1} + (Δ⊙u) Bᵀ    y = W_out((h C + D⊙u) ⊙ silu(z))    A = −exp(A_log)
"""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from underhood.common.arrays import Weight
from underhood.layers.base.layer import Layer, Size, axis_size, gaussian, zeros
from underhood.layers.base.recurrence import linear_recurrence
from underhood.layers.base.shapes import Output, Outputs, State, Token, Tokens
from underhood.layers.modern.mixer import random_steps
from underhood.layers.modern.parts import convolve

Inner = Float[Array, "*time inner"]
Neurons = Float[Array, "*time hidden"]
BlockState = tuple[Float[Array, "width_minus_1 inner"], Float[Array, "inner state"]]


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

    d_in = axis_size("W_input", 1)
    d_out = axis_size("W_C", 0)
    neurons = axis_size("W_A", 0)
    gate_width = axis_size("W_side", 0)

    @classmethod
    def init(
        cls, *, d_in: int, hidden: int, d_out: int, key: PRNGKeyArray, inner: int | None = None
    ) -> "Mamba":
        """Draw weights from N(0, 1/fan-in); Δ starts at 1 and A at −1, so that states fade."""
        inner = d_in if inner is None else inner
        keys = jax.random.split(key, 6)
        return cls(
            W_input=gaussian(keys[0], inner, d_in),
            b_input=jnp.zeros(inner),
            W_delta=jnp.zeros(inner),
            b_delta=jnp.ones(()),
            W_A=0.1 * gaussian(keys[1], hidden, inner),
            b_A=-jnp.ones(hidden),
            W_B=gaussian(keys[2], hidden, inner, inner),
            b_B=jnp.zeros((hidden, inner)),
            W_C=gaussian(keys[3], d_out, hidden, inner),
            b_C=gaussian(keys[4], d_out, hidden),
            W_side=gaussian(keys[5], d_out, d_in),
        )

    def dynamics(self, inner: Inner) -> tuple[Neurons, Neurons]:
        """Return Ā and what is written, Δ B(x̃) x̃."""
        delta = (inner @ self.W_delta + self.b_delta)[..., None]
        decay = jnp.exp(delta * (inner @ self.W_A.T + self.b_A))
        gated = jnp.einsum("hij,...j,...i->...h", self.W_B, inner, inner)
        return decay, delta * (gated + inner @ self.b_B.T)

    def read(
        self, states: Neurons, inner: Inner, xs: Float[Array, "*time d_in"]
    ) -> Float[Array, "*time d_out"]:
        """Return (C(x̃) h) ⊙ σ(W_side x)."""
        queried = jnp.einsum("ohi,...i,...h->...o", self.W_C, inner, states)
        return (queried + states @ self.b_C.T) * jax.nn.sigmoid(xs @ self.W_side.T)

    def __call__(self, xs: Tokens, *, backend: str | None = None) -> Outputs:
        self.check_sequence(xs)
        inner = xs @ self.W_input.T + self.b_input
        decay, written = self.dynamics(inner)
        return self.read(linear_recurrence(decay, written, backend=backend), inner, xs)

    def initial_state(self) -> State:
        return zeros(self.neurons, like=self.W_A)

    def step(self, state: State, x: Token) -> tuple[State, Output]:
        self.check_step(state, x)
        inner = x @ self.W_input.T + self.b_input
        decay, written = self.dynamics(inner)
        state = decay * state + written
        return state, self.read(state, inner, x)


class SelectiveBlock(Layer):
    """A convolution and a selective scan; a block says what Δ, B and C are."""

    W_in_u: Float[Weight, "inner d_in"]
    W_in_z: Float[Weight, "inner d_in"]
    conv: Float[Weight, "width inner"]
    b_conv: Float[Weight, " inner"]
    W_x_dt: Float[Weight, "rank inner"]
    W_x_B: Float[Weight, "state inner"]
    W_x_C: Float[Weight, "state inner"]
    A_log: eqx.AbstractVar[Float[Weight, "inner state"]]
    D: eqx.AbstractVar[Float[Weight, " inner"]]
    W_out: eqx.AbstractVar[Float[Weight, "d_out inner"]]

    d_in = axis_size("W_in_u", 1)
    d_out = axis_size("W_out", 0)
    neurons = Size(lambda self: self.A_log.shape[0] * self.A_log.shape[1])
    gate_width = axis_size("W_in_z", 0)

    @abstractmethod
    def dynamics(self, us: Inner) -> tuple[Array, Array, Array]:
        """Return exp(Δ A), what is written, and C."""

    def values(self, xs: Float[Array, "time d_in"]) -> Float[Array, "time inner"]:
        """Return u."""
        return jax.nn.silu(convolve(xs @ self.W_in_u.T, self.conv) + self.b_conv)

    def leave(
        self, mixed: Inner, us: Inner, xs: Float[Array, "*time d_in"]
    ) -> Float[Array, "*time d_out"]:
        """Return W_out((mixed + D⊙u) ⊙ silu(z)), where mixed is h C."""
        return ((mixed + self.D * us) * jax.nn.silu(xs @ self.W_in_z.T)) @ self.W_out.T

    def __call__(self, xs: Tokens, *, backend: str | None = None) -> Outputs:
        self.check_sequence(xs)
        xs = jnp.asarray(xs)
        us = self.values(xs)
        decay, written, C = self.dynamics(us)
        flat = (array.reshape(len(xs), self.neurons) for array in (decay, written))
        states = linear_recurrence(*flat, backend=backend).reshape(written.shape)
        return self.leave(jnp.einsum("tcn,tn->tc", states, C), us, xs)

    def initial_state(self) -> BlockState:
        width, inner = self.conv.shape
        window = zeros(width - 1, inner, like=self.conv)
        return window, zeros(*self.A_log.shape, like=self.A_log)

    def step(self, state: BlockState, x: Token) -> tuple[BlockState, Output]:
        self.check_step(state, x)
        window, h = state
        x = jnp.asarray(x)
        window = jnp.concatenate([window, (x @ self.W_in_u.T)[None]])
        u = jax.nn.silu(jnp.sum(self.conv * window, axis=0) + self.b_conv)
        decay, written, C = self.dynamics(u)
        h = decay * h + written
        return (window[1:], h), self.leave(h @ C, u, x)


class MambaBlock(SelectiveBlock):
    """One Mamba block, with all of its parts."""

    W_dt: Float[Weight, "inner rank"]
    b_dt: Float[Weight, " inner"]
    A_log: Float[Weight, "inner state"]
    D: Float[Weight, " inner"]
    W_out: Float[Weight, "d_out inner"]

    @classmethod
    def init(
        cls,
        *,
        d_in: int,
        d_out: int,
        key: PRNGKeyArray,
        inner: int | None = None,
        state: int = 16,
        width: int = 4,
        rank: int = 1,
    ) -> "MambaBlock":
        """Draw weights from N(0, 1/fan-in); A_log and b_dt as in the reference implementation."""
        inner = 2 * d_in if inner is None else inner
        keys = jax.random.split(key, 9)
        return cls(
            W_in_u=gaussian(keys[0], inner, d_in),
            W_in_z=gaussian(keys[1], inner, d_in),
            conv=jax.random.normal(keys[2], (width, inner)) / np.sqrt(width),
            b_conv=jnp.zeros(inner),
            W_x_dt=gaussian(keys[3], rank, inner),
            W_x_B=gaussian(keys[4], state, inner),
            W_x_C=gaussian(keys[5], state, inner),
            W_dt=gaussian(keys[6], inner, rank),
            b_dt=random_steps(keys[8], inner),
            A_log=jnp.broadcast_to(jnp.log(jnp.arange(1.0, state + 1)), (inner, state)),
            D=jnp.ones(inner),
            W_out=gaussian(keys[7], d_out, inner),
        )

    def dynamics(self, us: Inner) -> tuple[Array, Array, Array]:
        delta = jax.nn.softplus((us @ self.W_x_dt.T) @ self.W_dt.T + self.b_dt)[..., None]
        decay = jnp.exp(-delta * jnp.exp(jnp.asarray(self.A_log)))
        written = delta * us[..., None] * (us @ self.W_x_B.T)[..., None, :]
        return decay, written, us @ self.W_x_C.T
