"""RWKV-6 (Peng et al. 2024): a decay per channel and token, and a bonus for the current token.

    x_c = x + μ_c ⊙ (x_{t−1} − x) for c = r, k, v, w, g: each projection reads a mix of two tokens
    r = W_r x_r   k = W_k x_k   v = W_v x_v   w = exp(−exp(w_0 + W_w2 tanh(W_w1 x_w)))
    o_t = S_{t−1}ᵀ r_t + (r_t·(bonus⊙k_t)) v_t      S_t = diag(w_t) S_{t−1} + k_t v_tᵀ
    y = W_out (LayerNorm(o) ⊙ silu(W_g x_g)), one LayerNorm per head

A_ts = Σ_i r_ti k_si ∏_{s<r<t} w_ri for s < t, and A_tt = Σ_i r_ti bonus_i k_ti. The mixes μ are
plain numbers here, as in RWKV-7; the published layer adds a small network that changes them.
"""

from typing import Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from underhood.common.arrays import Weight
from underhood.layers.base.layer import Size
from underhood.layers.modern.core import Mixed, Signals
from underhood.layers.modern.mixer import Given, HeadSizes, Mixer, random_fields
from underhood.layers.modern.parts import layer_norm, project_heads, shift, unite


class RWKV6(Mixer):
    """The time mixing of RWKV-6."""

    mu_r: Float[Weight, " d_in"]
    mu_k: Float[Weight, " d_in"]
    mu_v: Float[Weight, " d_in"]
    mu_w: Float[Weight, " d_in"]
    mu_g: Float[Weight, " d_in"]
    W_r: Float[Weight, "heads d_k d_in"]
    W_k: Float[Weight, "heads d_k d_in"]
    W_v: Float[Weight, "heads d_v d_in"]
    W_w1: Float[Weight, "rank d_in"]
    W_w2: Float[Weight, "heads d_k rank"]
    w_0: Float[Weight, "heads d_k"]
    bonus: Float[Weight, "heads d_k"]
    W_g: Float[Weight, "heads d_v d_in"]
    norm: Float[Weight, "heads d_v"]
    b_norm: Float[Weight, "heads d_v"]
    W_out: Float[Weight, "d_out heads d_v"]
    eps: float = eqx.field(static=True, default=1e-5)

    may_be_infinite = ("w_0",)
    reach = Size(lambda self: 2)

    @classmethod
    def init(cls, *, key: PRNGKeyArray, rank: int = 16, **sizes: Unpack[HeadSizes]) -> "RWKV6":
        """Draw matrices from N(0, 1/fan-in); μ = ½, and decays spread over (0.37, 0.998).

        sizes  d_in, d_out, heads, d_k, d_v
        """
        given: dict[str, Given] = {"norm": 1.0, "b_norm": 0.0}
        given |= {f"mu_{name}": 0.5 for name in "rkvwg"}
        given["w_0"] = lambda heads, d_k: jnp.linspace(-6.0, 0.0, d_k)
        return cls(**random_fields(cls, key, given, rank=rank, **sizes))

    def signals(self, xs: Float[Array, "time d_in"]) -> Signals:
        before = shift(xs) - xs
        r = project_heads(xs + self.mu_r * before, self.W_r)
        k = project_heads(xs + self.mu_k * before, self.W_k)
        v = project_heads(xs + self.mu_v * before, self.W_v)
        mixed = jnp.tanh((xs + self.mu_w * before) @ self.W_w1.T)
        decay = jnp.exp(-jnp.exp(project_heads(mixed, self.W_w2) + self.w_0))
        return Signals(r, k, v, decay, bonus=jnp.broadcast_to(jnp.asarray(self.bonus), k.shape))

    def leave(self, mixed: Mixed, signals: Signals, gate: Mixed) -> Float[Array, "time d_out"]:
        normed = layer_norm(mixed, self.norm, self.eps, self.b_norm)
        return unite(normed * gate, self.W_out)

    def gate(self, xs: Float[Array, "time d_in"]) -> Float[Array, "time heads d_v"]:
        """Return silu(W_g x_g)."""
        return jax.nn.silu(project_heads(xs + self.mu_g * (shift(xs) - xs), self.W_g))
