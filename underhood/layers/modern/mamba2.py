"""Mamba-2 (Dao and Gu 2024): one decay per head and token, chosen by Δ.

    [x, B, C] = silu(conv(W_x u, W_B u, W_C u))     Δ = softplus(W_dt u + dt_bias)
    S_t = exp(−Δ_t e^{A_log}) S_{t−1} + Δ_t B_t x_tᵀ     o_t = S_tᵀ C_t + D x_t
    y = W_out RMSNorm(o ⊙ silu(W_z u)), one norm for each of `norm_groups` runs of heads, which is
    one over all heads unless given; none if `norm` is None (Falcon-H1)

A_ts = (C_t·B_s) exp(−e^{A_log} Σ_{s<r≤t} Δ_r) Δ_s, and the values are x. A group of heads that
share B and C is heads with equal W_B and W_C. A_log = −inf is a decay of exactly 1.
"""

from typing import Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from underhood.common.arrays import Weight
from underhood.common.numbers import whole_problems
from underhood.layers.base.layer import axis_size
from underhood.layers.modern.core import Mixed, Signals
from underhood.layers.modern.mixer import HeadSizes, Mixer, random_decays, random_fields
from underhood.layers.modern.parts import convolve, project_heads, rms_norm_heads, unite


class Mamba2(Mixer):
    """A Mamba-2 mixer; with norm=None, Falcon-H1's."""

    W_z: Float[Weight, "heads d_v d_in"]
    W_x: Float[Weight, "heads d_v d_in"]
    W_B: Float[Weight, "heads d_k d_in"]
    W_C: Float[Weight, "heads d_k d_in"]
    W_dt: Float[Weight, "heads d_in"]
    conv_x: Float[Weight, "width heads d_v"]
    conv_B: Float[Weight, "width heads d_k"]
    conv_C: Float[Weight, "width heads d_k"]
    b_x: Float[Weight, "heads d_v"]
    b_B: Float[Weight, "heads d_k"]
    b_C: Float[Weight, "heads d_k"]
    dt_bias: Float[Weight, " heads"]
    A_log: Float[Weight, " heads"]
    D: Float[Weight, " heads"]
    norm: Float[Weight, "heads d_v"] | None
    W_out: Float[Weight, "d_out heads d_v"]
    eps: float = eqx.field(static=True, default=1e-5)
    norm_groups: int = eqx.field(static=True, default=1)

    key_field = "W_B"
    may_be_infinite = ("A_log",)
    reach = axis_size("conv_x", 0)

    def further_problems(self) -> list[str]:
        problems = whole_problems(norm_groups=self.norm_groups)
        if not problems and self.heads % self.norm_groups:
            problems = [f"norm_groups is {self.norm_groups} and does not divide {self.heads} heads"]
        return problems

    @classmethod
    def init(
        cls, *, key: PRNGKeyArray, width: int = 4, normed: bool = True, **sizes: Unpack[HeadSizes]
    ) -> "Mamba2":
        """Draw matrices from N(0, 1/fan-in); Δ and A as in the reference implementation.

        sizes  d_in, d_out, heads, d_k, d_v
        """
        key, given = random_decays(key)
        given |= {"b_x": 0.0, "b_B": 0.0, "b_C": 0.0, "D": 1.0, "norm": 1.0}
        weights = random_fields(cls, key, given, width=width, **sizes)
        return cls(**weights if normed else {**weights, "norm": None})

    def signals(self, xs: Float[Array, "time d_in"]) -> Signals:
        values, B, C = (
            jax.nn.silu(convolve(project_heads(xs, W), kernel) + bias)
            for W, kernel, bias in (
                (self.W_x, self.conv_x, self.b_x),
                (self.W_B, self.conv_B, self.b_B),
                (self.W_C, self.conv_C, self.b_C),
            )
        )
        delta = jax.nn.softplus(xs @ self.W_dt.T + self.dt_bias)[..., None]
        decay = jnp.exp(-delta * jnp.exp(jnp.asarray(self.A_log))[:, None])
        return Signals(C, delta * B, values, jnp.broadcast_to(decay, B.shape))

    def gate(self, xs: Float[Array, "time d_in"]) -> Float[Array, "time heads d_v"]:
        return jax.nn.silu(project_heads(xs, self.W_z))

    def leave(self, mixed: Mixed, signals: Signals, gate: Mixed) -> Float[Array, "time d_out"]:
        skipped = mixed + jnp.asarray(self.D)[:, None] * signals.v
        gated = skipped * gate
        if self.norm is not None:
            runs = [
                rms_norm_heads(run, weight, self.eps)
                for run, weight in zip(
                    jnp.split(gated, self.norm_groups, axis=1),
                    jnp.split(jnp.asarray(self.norm), self.norm_groups),
                    strict=True,
                )
            ]
            gated = jnp.concatenate(runs, axis=1)
        return unite(gated, self.W_out)
