"""RWKV-7 (Peng et al. 2025): a generalised delta rule.

    x_c = x + μ_c ⊙ (x_{t−1} − x) for c = r, w, k, v, a, g: each projection reads a mix of tokens
    r = W_r x_r    v = W_v x_v    k̃ = W_k x_k    κ = k̃⊙k_k, of unit length in each head
    w = exp(−e^{−½} σ(w_0 + W_w2 tanh(W_w1 x_w)))    α = σ(a_0 + W_a2 W_a1 x_a)
    k = k̃ ⊙ (1 + (α − 1)⊙k_a)                         g = W_g2 σ(W_g1 x_g)
    S_t = diag(w_t) S_{t−1} − (κ_t⊙α_t)(κ_tᵀ S_{t−1}) + k_t v_tᵀ      o_t = S_tᵀ r_t
    y = W_out ((LayerNorm(o) + (r·(r_k⊙k)) v) ⊙ g), one LayerNorm per head

In the symbols of `core.py` a = −κ and b = κ⊙α. This is a first layer: later ones mix v with the
first layer's.
"""

import math
from typing import Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from underhood.common.arrays import Weight
from underhood.layers.base.layer import Size
from underhood.layers.modern.core import Mixed, Signals
from underhood.layers.modern.mixer import HeadSizes, Mixer, random_fields
from underhood.layers.modern.parts import layer_norm, normalise, project_heads, shift, unite

# The logarithm of the decay lies between −e^{−½} and 0.
STRONGEST = math.exp(-0.5)


class RWKV7(Mixer):
    """The time mixing of RWKV-7."""

    mu_r: Float[Weight, " d_in"]
    mu_w: Float[Weight, " d_in"]
    mu_k: Float[Weight, " d_in"]
    mu_v: Float[Weight, " d_in"]
    mu_a: Float[Weight, " d_in"]
    mu_g: Float[Weight, " d_in"]
    W_r: Float[Weight, "heads d_k d_in"]
    W_k: Float[Weight, "heads d_k d_in"]
    W_v: Float[Weight, "heads d_v d_in"]
    W_w1: Float[Weight, "rank d_in"]
    W_w2: Float[Weight, "heads d_k rank"]
    w_0: Float[Weight, "heads d_k"]
    W_a1: Float[Weight, "rank d_in"]
    W_a2: Float[Weight, "heads d_k rank"]
    a_0: Float[Weight, "heads d_k"]
    k_k: Float[Weight, "heads d_k"]
    k_a: Float[Weight, "heads d_k"]
    r_k: Float[Weight, "heads d_k"]
    W_g1: Float[Weight, "rank d_in"]
    W_g2: Float[Weight, "heads d_v rank"]
    norm: Float[Weight, "heads d_v"]
    b_norm: Float[Weight, "heads d_v"]
    W_out: Float[Weight, "d_out heads d_v"]
    eps: float = eqx.field(static=True, default=64e-5)

    may_be_infinite = ("w_0",)
    reach = Size(lambda self: 2)

    @classmethod
    def init(cls, *, key: PRNGKeyArray, rank: int = 16, **sizes: Unpack[HeadSizes]) -> "RWKV7":
        """Draw matrices from N(0, 1/fan-in); μ = ½, biases zero, and k_k = 0.85, k_a = 1.

        sizes  d_in, d_out, heads, d_k, d_v
        """
        given = {f"mu_{name}": 0.5 for name in "rwkvag"} | {"norm": 1.0, "b_norm": 0.0}
        given |= {"k_k": 0.85, "k_a": 1.0, "w_0": 0.0, "a_0": 0.0, "r_k": 0.0}
        return cls(**random_fields(cls, key, given, rank=rank, **sizes))

    def signals(self, xs: Float[Array, "time d_in"]) -> Signals:
        before = shift(xs) - xs
        r = project_heads(xs + self.mu_r * before, self.W_r)
        k = project_heads(xs + self.mu_k * before, self.W_k)
        v = project_heads(xs + self.mu_v * before, self.W_v)
        mixed = jnp.tanh((xs + self.mu_w * before) @ self.W_w1.T)
        decay = jnp.exp(-STRONGEST * jax.nn.sigmoid(project_heads(mixed, self.W_w2) + self.w_0))
        rate = jax.nn.sigmoid(
            project_heads((xs + self.mu_a * before) @ self.W_a1.T, self.W_a2) + self.a_0
        )
        erased = normalise(k * self.k_k)
        return Signals(r, k * (1 + (rate - 1) * self.k_a), v, decay, -erased, erased * rate)

    def leave(self, mixed: Mixed, signals: Signals, gate: Mixed) -> Float[Array, "time d_out"]:
        normed = layer_norm(mixed, self.norm, self.eps, self.b_norm)
        now = jnp.sum(signals.q * self.r_k * signals.k, axis=-1, keepdims=True)
        return unite((normed + now * signals.v) * gate, self.W_out)

    def gate(self, xs: Float[Array, "time d_in"]) -> Float[Array, "time heads d_v"]:
        """Return W_g2 σ(W_g1 x_g)."""
        shifted = xs + self.mu_g * (shift(xs) - xs)
        return project_heads(jax.nn.sigmoid(shifted @ self.W_g1.T), self.W_g2)
