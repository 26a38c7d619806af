"""The Mamba block as it is used in practice (Gu and Dao 2023): convolution, SiLU, selective scan.

[u, z] = W_in x                           [inner], [inner]
u      = silu(conv(u) + b_conv)           a causal convolution over `width` tokens per channel
[δ, B, C] = W_x u                         [rank], [state], [state]
Δ      = softplus(W_dt δ + b_dt)          [inner]
h_t    = exp(Δ A)⊙h_{t−1} + (Δ⊙u) Bᵀ      [inner, state], A = −exp(A_log)
y      = W_out((h C + D⊙u) ⊙ silu(z))

conv [width, inner] is listed from the oldest token to the current one.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from underhood.common.arrays import Weight
from underhood.layers.base.layer import Layer, Size, axis_size, gaussian, zeros
from underhood.layers.base.recurrence import linear_recurrence
from underhood.layers.base.shapes import Output, Outputs, Token, Tokens

BlockState = tuple[Float[Array, "width_minus_1 inner"], Float[Array, "inner state"]]


class MambaBlock(Layer):
    """One Mamba block, with all of its parts."""

    W_in_u: Float[Weight, "inner d_in"]
    W_in_z: Float[Weight, "inner d_in"]
    conv: Float[Weight, "width inner"]
    b_conv: Float[Weight, " inner"]
    W_x_dt: Float[Weight, "rank inner"]
    W_x_B: Float[Weight, "state inner"]
    W_x_C: Float[Weight, "state inner"]
    W_dt: Float[Weight, "inner rank"]
    b_dt: Float[Weight, " inner"]
    A_log: Float[Weight, "inner state"]
    D: Float[Weight, " inner"]
    W_out: Float[Weight, "d_out inner"]

    d_in = axis_size("W_in_u", 1)
    d_out = axis_size("W_out", 0)
    neurons = Size(lambda self: self.A_log.shape[0] * self.A_log.shape[1])
    gate_width = axis_size("W_in_z", 0)

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
        low, high = np.log(1e-3), np.log(1e-1)
        step = jnp.exp(jax.random.uniform(keys[8], (inner,), minval=low, maxval=high))
        return cls(
            W_in_u=gaussian(keys[0], inner, d_in),
            W_in_z=gaussian(keys[1], inner, d_in),
            conv=jax.random.normal(keys[2], (width, inner)) / np.sqrt(width),
            b_conv=jnp.zeros(inner),
            W_x_dt=gaussian(keys[3], rank, inner),
            W_x_B=gaussian(keys[4], state, inner),
            W_x_C=gaussian(keys[5], state, inner),
            W_dt=gaussian(keys[6], inner, rank),
            # softplus⁻¹, so that Δ starts log-uniform on [0.001, 0.1].
            b_dt=step + jnp.log(-jnp.expm1(-step)),
            A_log=jnp.broadcast_to(jnp.log(jnp.arange(1.0, state + 1)), (inner, state)),
            D=jnp.ones(inner),
            W_out=gaussian(keys[7], d_out, inner),
        )

    def dynamics(self, u: Float[Array, "*time inner"]) -> tuple[Array, Array, Array]:
        """Return exp(Δ A), what is written, and C."""
        delta = jax.nn.softplus((u @ self.W_x_dt.T) @ self.W_dt.T + self.b_dt)[..., None]
        decay = jnp.exp(-delta * jnp.exp(jnp.asarray(self.A_log)))
        written = delta * u[..., None] * (u @ self.W_x_B.T)[..., None, :]
        return decay, written, u @ self.W_x_C.T

    def read(self, states: Array, C: Array, u: Array, xs: Array) -> Array:
        """Return W_out((h C + D⊙u) ⊙ silu(z))."""
        queried = jnp.einsum("...is,...s->...i", states, C) + self.D * u
        return (queried * jax.nn.silu(xs @ self.W_in_z.T)) @ self.W_out.T

    def __call__(self, xs: Tokens, *, backend: str | None = None) -> Outputs:
        self.check_sequence(xs)
        width, time = self.conv.shape[0], xs.shape[0]
        padded = jnp.pad(xs @ self.W_in_u.T, ((width - 1, 0), (0, 0)))
        convolved = sum(self.conv[i] * padded[i : i + time] for i in range(width))
        u = jax.nn.silu(convolved + self.b_conv)
        decay, written, C = self.dynamics(u)
        flat = (array.reshape(time, self.neurons) for array in (decay, written))
        states = linear_recurrence(*flat, backend=backend)
        return self.read(states.reshape(written.shape), C, u, xs)

    def initial_state(self) -> BlockState:
        width, inner = self.conv.shape
        window = zeros(width - 1, inner, like=self.conv)
        return window, zeros(*self.A_log.shape, like=self.A_log)

    def step(self, state: BlockState, x: Token) -> tuple[BlockState, Output]:
        self.check_token(x)
        window, h = state
        window = jnp.concatenate([window, (x @ self.W_in_u.T)[None]])
        u = jax.nn.silu(jnp.sum(self.conv * window, axis=0) + self.b_conv)
        decay, written, C = self.dynamics(u)
        h = decay * h + written
        return (window[1:], h), self.read(h, C, u, x)
