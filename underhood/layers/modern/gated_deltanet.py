"""Delta rules: gated DeltaNet (Yang et al. 2025), DeltaNet (2024) and Kimi's KDA (2025).

    [q, k, v] = silu(conv(W_q x, W_k x, W_v x)), then q and k get unit length    β = σ(W_b x)
    S ← diag(α_t) S_{t−1},  S_t = S + β_t k_t (v_t − Sᵀk_t)ᵀ,  o_t = S_tᵀ q_t/√d_k

DeltaNet       α = 1                                        y = W_out norm(o)
GatedDeltaNet  α = exp(−e^{A_log} softplus(W_a x + dt_bias)), one per head
                                                            y = W_out (norm(o) ⊙ silu(W_z x))
KDA            the same per channel, from W_f2 W_f1 x       y = W_out (norm(o) ⊙ σ(W_g2 W_g1 x))

With P = Γ⊙QKᵀ/√d_k and N = Γ⊙KKᵀ the map is A = tril(P)(I + tril(diag(β)N, −1))⁻¹ diag(β); in the
symbols of `core.py` a = −α⊙k and b = βk, and what is written is βk vᵀ. The norm is an RMSNorm per
head. Heads that share q and k are heads with equal W_q and W_k.
"""

import math
from abc import abstractmethod
from typing import Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from underhood.common.arrays import Weight
from underhood.layers.base.layer import axis_size
from underhood.layers.modern.core import Mixed, Signals
from underhood.layers.modern.mixer import HeadSizes, Mixer, random_decays, random_fields
from underhood.layers.modern.parts import convolve, project_heads, rms_norm, unit_norm, unite


class DeltaRule(Mixer):
    """The delta rule between a convolution and a norm."""

    W_q: Float[Weight, "heads d_k d_in"]
    W_k: Float[Weight, "heads d_k d_in"]
    W_v: Float[Weight, "heads d_v d_in"]
    W_b: Float[Weight, "heads d_in"]
    conv_q: Float[Weight, "width heads d_k"]
    conv_k: Float[Weight, "width heads d_k"]
    conv_v: Float[Weight, "width heads d_v"]
    norm: Float[Weight, " d_v"]
    W_out: Float[Weight, "d_out heads d_v"]
    eps: float = eqx.field(static=True)

    reach = axis_size("conv_k", 0)

    @abstractmethod
    def decay(self, xs: Float[Array, "time d_in"]) -> Float[Array, "time heads d_k"]:
        """Return α."""

    def signals(self, xs: Float[Array, "time d_in"]) -> Signals:
        projections = ((self.W_q, self.conv_q), (self.W_k, self.conv_k), (self.W_v, self.conv_v))
        queries, keys, values = (
            jax.nn.silu(convolve(project_heads(xs, W), kernel)) for W, kernel in projections
        )
        queries, keys = unit_norm(queries) / math.sqrt(self.d_k), unit_norm(keys)
        beta = jax.nn.sigmoid(xs @ self.W_b.T)[..., None]
        decay = self.decay(xs)
        return Signals(queries, beta * keys, values, decay, -decay * keys, beta * keys)

    def leave(self, mixed: Mixed, signals: Signals, gate: Mixed) -> Float[Array, "time d_out"]:
        return unite(rms_norm(mixed, self.norm, self.eps) * gate, self.W_out)


class DeltaNet(DeltaRule):
    """The delta rule without decay and without output gate."""

    @classmethod
    def init(cls, *, key: PRNGKeyArray, width: int = 4, **sizes: Unpack[HeadSizes]) -> "DeltaNet":
        """Draw matrices from N(0, 1/fan-in).

        sizes  d_in, d_out, heads, d_k, d_v
        """
        return cls(**random_fields(cls, key, {"norm": 1.0}, width=width, **sizes), eps=1e-5)

    def decay(self, xs: Float[Array, "time d_in"]) -> Float[Array, "time heads d_k"]:
        return jnp.ones((len(xs), self.heads, self.d_k), jnp.result_type(xs, self.W_k))


class GatedDeltaNet(DeltaRule):
    """The delta rule with one decay per head and token, as in Qwen3-Next."""

    W_a: Float[Weight, "heads d_in"]
    A_log: Float[Weight, " heads"]
    dt_bias: Float[Weight, " heads"]
    W_z: Float[Weight, "heads d_v d_in"]

    may_be_infinite = ("A_log",)

    @classmethod
    def init(
        cls, *, key: PRNGKeyArray, width: int = 4, **sizes: Unpack[HeadSizes]
    ) -> "GatedDeltaNet":
        """Draw matrices from N(0, 1/fan-in); decays as in Mamba-2.

        sizes  d_in, d_out, heads, d_k, d_v
        """
        key, given = random_decays(key)
        return cls(**random_fields(cls, key, given | {"norm": 1.0}, width=width, **sizes), eps=1e-6)

    def decay(self, xs: Float[Array, "time d_in"]) -> Float[Array, "time heads d_k"]:
        step = jax.nn.softplus(xs @ self.W_a.T + self.dt_bias)
        decay = jnp.exp(-jnp.exp(jnp.asarray(self.A_log)) * step)
        return jnp.broadcast_to(decay[..., None], (len(xs), self.heads, self.d_k))

    def gate(self, xs: Float[Array, "time d_in"]) -> Float[Array, "time heads d_v"]:
        return jax.nn.silu(project_heads(xs, self.W_z))


class KDA(DeltaRule):
    """Kimi Delta Attention: a decay per channel and token."""

    W_f1: Float[Weight, "rank d_in"]
    W_f2: Float[Weight, "heads d_k rank"]
    A_log: Float[Weight, " heads"]
    dt_bias: Float[Weight, "heads d_k"]
    W_g1: Float[Weight, "rank d_in"]
    W_g2: Float[Weight, "heads d_v rank"]

    may_be_infinite = ("A_log",)

    @classmethod
    def init(
        cls, *, key: PRNGKeyArray, rank: int = 1, width: int = 4, **sizes: Unpack[HeadSizes]
    ) -> "KDA":
        """Draw matrices from N(0, 1/fan-in); decays as in Mamba-2.

        sizes  d_in, d_out, heads, d_k, d_v
        """
        key, given = random_decays(key)
        weights = random_fields(cls, key, given | {"norm": 1.0}, width=width, rank=rank, **sizes)
        return cls(**weights, eps=1e-5)

    def decay(self, xs: Float[Array, "time d_in"]) -> Float[Array, "time heads d_k"]:
        step = jax.nn.softplus(project_heads(xs @ self.W_f1.T, self.W_f2) + self.dt_bias)
        return jnp.exp(-jnp.exp(jnp.asarray(self.A_log))[:, None] * step)

    def gate(self, xs: Float[Array, "time d_in"]) -> Float[Array, "time heads d_v"]:
        return jax.nn.sigmoid(project_heads(xs @ self.W_g1.T, self.W_g2))
