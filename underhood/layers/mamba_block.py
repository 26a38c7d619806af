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
from underhood.layers.base.layer import Layer, SizeOf, normal, zeros
from underhood.layers.base.recurrence import linear_recurrence

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

    d_in = SizeOf("W_in_u", 1)
    d_out = SizeOf("W_out", 0)
    gate_width = SizeOf("W_in_z", 0)

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
        step = jnp.exp(
            jax.random.uniform(keys[8], (inner,), minval=np.log(1e-3), maxval=np.log(1e-1))
        )
        return cls(
            W_in_u=normal(keys[0], inner, d_in),
            W_in_z=normal(keys[1], inner, d_in),
            conv=jax.random.normal(keys[2], (width, inner)) / np.sqrt(width),
            b_conv=jnp.zeros(inner),
            W_x_dt=normal(keys[3], rank, inner),
            W_x_B=normal(keys[4], state, inner),
            W_x_C=normal(keys[5], state, inner),
            W_dt=normal(keys[6], inner, rank),
            # softplus⁻¹, so that Δ starts log-uniform on [0.001, 0.1].
            b_dt=step + jnp.log(-jnp.expm1(-step)),
            A_log=jnp.broadcast_to(jnp.log(jnp.arange(1.0, state + 1)), (inner, state)),
            D=jnp.ones(inner),
            W_out=normal(keys[7], d_out, inner),
        )

    @property
    def neurons(self) -> int:
        return self.A_log.shape[0] * self.A_log.shape[1]

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

    def __call__(
        self, xs: Float[Array, "time d_in"], *, backend: str | None = None
    ) -> Float[Array, "time d_out"]:
        self.check_sequence(xs)
        width, time = self.conv.shape[0], xs.shape[0]
        padded = jnp.pad(xs @ self.W_in_u.T, ((width - 1, 0), (0, 0)))
        convolved = sum(self.conv[i] * padded[i : i + time] for i in range(width))
        u = jax.nn.silu(convolved + self.b_conv)
        decay, written, C = self.dynamics(u)
        states = linear_recurrence(
            decay.reshape(time, self.neurons),
            written.reshape(time, self.neurons),
            backend=backend,
        )
        return self.read(states.reshape(written.shape), C, u, xs)

    def initial_state(self) -> BlockState:
        width, inner = self.conv.shape
        window = zeros(width - 1, inner, like=self.conv)
        return window, zeros(*self.A_log.shape, like=self.A_log)

    def step(
        self, state: BlockState, x: Float[Array, " d_in"]
    ) -> tuple[BlockState, Float[Array, " d_out"]]:
        self.check_token(x)
        window, h = state
        window = jnp.concatenate([window, (x @ self.W_in_u.T)[None]])
        u = jax.nn.silu(jnp.sum(self.conv * window, axis=0) + self.b_conv)
        decay, written, C = self.dynamics(u)
        h = decay * h + written
        return (window[1:], h), self.read(h, C, u, x)
