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
from underhood.layers.mamba import SelectiveBlock
from underhood.layers.modern.core import decay_products
from underhood.layers.modern.mixer import Given, ModernLayer, random_fields, random_steps
from underhood.layers.modern.parts import rms_norm


class JambaBlock(SelectiveBlock, ModernLayer):
    """A Mamba block with norms inside."""

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
        delta, B, C = self.selection(us)
        decay = jnp.exp(-delta[..., None] * jnp.exp(jnp.asarray(self.A_log)))
        return decay, (delta * us)[..., None] * B[..., None, :], C

    def core_map(self, xs: Float[Array, "time d_in"]) -> Float[Array, "inner time time2"]:
        """Return A with h C = A u, per channel."""
        us = self.values(xs)
        delta, B, C = self.selection(us)
        products = decay_products(self.dynamics(us)[0]).after
        return jnp.einsum("tn,tscn,sc,sn->cts", C, products, delta, B)
