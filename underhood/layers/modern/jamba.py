"""Jamba's Mamba block (Lieber et al. 2024): Mamba's, with a norm on each of δ, B and C.

    [u, z] = W_in x   u ← silu(conv(u) + b_conv)   [δ, B, C] = norms of W_x u
    Δ = softplus(W_dt δ + b_dt)    h_t = exp(−Δ e^{A_log})⊙h_{t−1} + (Δ⊙u) Bᵀ
    y = W_out((h C + D⊙u) ⊙ silu(z))

Per channel c: A_ts = Σ_n C_tn exp(−e^{A_log,cn} Σ_{s<r≤t} Δ_rc) Δ_sc B_sn, and the values are u.
The norms are RMSNorms. A_log = −inf is a decay of exactly 1.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from underhood.common.arrays import Weight
from underhood.layers.base.layer import Size, axis_size, zeros
from underhood.layers.base.recurrence import linear_recurrence
from underhood.layers.base.shapes import Output, Outputs, Token, Tokens
from underhood.layers.mamba import BlockState
from underhood.layers.modern.core import decay_products
from underhood.layers.modern.mixer import Given, ModernLayer, random_fields, random_steps
from underhood.layers.modern.parts import convolve, rms_norm


class JambaBlock(ModernLayer):
    """A Mamba block with norms inside."""

    W_in_u: Float[Weight, "inner d_in"]
    W_in_z: Float[Weight, "inner d_in"]
    conv: Float[Weight, "width inner"]
    b_conv: Float[Weight, " inner"]
    W_x_dt: Float[Weight, "rank inner"]
    W_x_B: Float[Weight, "state inner"]
    W_x_C: Float[Weight, "state inner"]
    norm_dt: Float[Weight, " rank"]
    norm_B: Float[Weight, " state"]
    norm_C: Float[Weight, " state"]
    W_dt: Float[Weight, "inner rank"]
    b_dt: Float[Weight, " inner"]
    A_log: Float[Weight, "inner state"]
    D: Float[Weight, " inner"]
    W_out: Float[Weight, "d_out inner"]
    eps: float = eqx.field(static=True, default=1e-6)

    may_be_infinite = ("A_log",)
    d_in, d_out = axis_size("W_in_u", 1), axis_size("W_out", 0)
    neurons = Size(lambda self: self.A_log.shape[0] * self.A_log.shape[1])
    gate_width = axis_size("W_in_z", 0)

    @classmethod
    def init(
        cls,
        *,
        d_in: int,
        d_out: int,
        inner: int,
        key: PRNGKeyArray,
        state: int = 16,
        width: int = 4,
        rank: int = 1,
    ) -> "JambaBlock":
        """Draw matrices from N(0, 1/fan-in); A_log and b_dt as Mamba has them."""
        weight_key, step_key = jax.random.split(key)
        given: dict[str, Given] = {
            **dict.fromkeys(("norm_dt", "norm_B", "norm_C", "D"), 1.0),
            "b_conv": 0.0,
            "b_dt": partial(random_steps, step_key),
            "A_log": jnp.log(jnp.arange(1.0, state + 1)),
        }
        sizes = {"inner": inner, "state": state, "width": width, "rank": rank}
        return cls(**random_fields(cls, weight_key, given, d_in=d_in, d_out=d_out, **sizes))

    def selection(self, us: Float[Array, "*time inner"]) -> tuple[Array, Array, Array]:
        """Return Δ, B and C."""
        step, B, C = (
            rms_norm(us @ W.T, norm, self.eps)
            for W, norm in (
                (self.W_x_dt, self.norm_dt),
                (self.W_x_B, self.norm_B),
                (self.W_x_C, self.norm_C),
            )
        )
        return jax.nn.softplus(step @ self.W_dt.T + self.b_dt), B, C

    def dynamics(self, us: Float[Array, "*time inner"]) -> tuple[Array, Array, Array]:
        """Return the decay, what is written, and C."""
        delta, B, C = self.selection(us)
        decay = jnp.exp(-delta[..., None] * jnp.exp(jnp.asarray(self.A_log)))
        return decay, (delta * us)[..., None] * B[..., None, :], C

    def values(self, xs: Float[Array, "time d_in"]) -> Float[Array, "time inner"]:
        """Return u."""
        return jax.nn.silu(convolve(xs @ self.W_in_u.T, self.conv) + self.b_conv)

    def core_map(self, xs: Float[Array, "time d_in"]) -> Float[Array, "inner time time2"]:
        """Return A with h C = A u, per channel."""
        us = self.values(xs)
        delta, B, C = self.selection(us)
        products = decay_products(self.dynamics(us)[0]).after
        return jnp.einsum("tn,tscn,sc,sn->cts", C, products, delta, B)

    def leave(
        self,
        mixed: Float[Array, "*time inner"],
        us: Float[Array, "*time inner"],
        xs: Float[Array, "*time d_in"],
    ) -> Float[Array, "*time d_out"]:
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
        return zeros(width - 1, inner, like=self.conv), zeros(*self.A_log.shape, like=self.conv)

    def step(self, state: BlockState, x: Token) -> tuple[BlockState, Output]:
        self.check_step(state, x)
        window, h = state
        x = jnp.asarray(x)
        window = jnp.concatenate([window, (x @ self.W_in_u.T)[None]])
        u = jax.nn.silu(jnp.sum(self.conv * window, axis=0) + self.b_conv)
        decay, written, C = self.dynamics(u)
        h = decay * h + written
        return (window[1:], h), self.leave(h @ C, u, x)
