"""Gated linear attention (Yang et al. 2024) and its kin: S_t = diag(w_t) S_{t−1} + k_t v_tᵀ.

GLA        w = σ(W_a2 W_a1 x + b_a)^{1/16}, q/√d_k        y = W_out (norm(o) ⊙ silu(W_z x))
RetNet     w = 1 − 2^{−5−h} in head h, q/√d_k             y as GLA; no rotation of q and k
Lightning  w = exp(−slope), q, k, v through silu           y = W_out (norm(o) ⊙ σ(W_z x))
HGRN2      w = f = σ(W_f x), k = 1 − f, q through silu, q/√d_k        y = W_out norm(o)

The map is A_ts = Σ_i q_ti k_si ∏_{s<r≤t} w_ri. The norm is an RMSNorm per head in GLA and RetNet,
and over all heads in Lightning and HGRN2. Lightning's slopes are 2^{−8(h+1)/H} times
1 − index/(depth − 1 + 1e-5) + 1e-5, which leaves 2e-5 of them in the last layer of a MiniMax.
"""

import math
from typing import Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from underhood.common.arrays import Weight
from underhood.layers.modern.core import Mixed, Signals
from underhood.layers.modern.mixer import HeadSizes, Mixer, random_fields
from underhood.layers.modern.parts import project_heads, rms_norm, rms_norm_heads, unite

# GLA divides the logarithm of its gate by this.
GATE_DIVISOR = 16.0


class GLA(Mixer):
    """Gated linear attention: a decay per channel and token."""

    W_q: Float[Weight, "heads d_k d_in"]
    W_k: Float[Weight, "heads d_k d_in"]
    W_v: Float[Weight, "heads d_v d_in"]
    W_a1: Float[Weight, "rank d_in"]
    W_a2: Float[Weight, "heads d_k rank"]
    b_a: Float[Weight, "heads d_k"]
    W_z: Float[Weight, "heads d_v d_in"]
    norm: Float[Weight, " d_v"] | None
    W_out: Float[Weight, "d_out heads d_v"]
    eps: float = eqx.field(static=True, default=1e-5)

    may_be_infinite = ("b_a",)

    @classmethod
    def init(cls, *, key: PRNGKeyArray, rank: int = 16, **sizes: Unpack[HeadSizes]) -> "GLA":
        """Draw matrices from N(0, 1/fan-in); biases are zero.

        sizes  d_in, d_out, heads, d_k, d_v
        """
        return cls(**random_fields(cls, key, {"norm": 1.0, "b_a": 0.0}, rank=rank, **sizes))

    def signals(self, xs: Float[Array, "time d_in"]) -> Signals:
        queries, keys, values = (project_heads(xs, W) for W in (self.W_q, self.W_k, self.W_v))
        gates = project_heads(xs @ self.W_a1.T, self.W_a2) + self.b_a
        decay = jnp.exp(jax.nn.log_sigmoid(gates) / GATE_DIVISOR)
        return Signals(queries / math.sqrt(self.d_k), keys, values, decay)

    def gate(self, xs: Float[Array, "time d_in"]) -> Float[Array, "time heads d_v"]:
        return jax.nn.silu(project_heads(xs, self.W_z))

    def leave(self, mixed: Mixed, signals: Signals, gate: Mixed) -> Float[Array, "time d_out"]:
        normed = mixed if self.norm is None else rms_norm(mixed, self.norm, self.eps)
        return unite(normed * gate, self.W_out)


class RetNet(Mixer):
    """Retention: the decays are fixed."""

    W_q: Float[Weight, "heads d_k d_in"]
    W_k: Float[Weight, "heads d_k d_in"]
    W_v: Float[Weight, "heads d_v d_in"]
    W_z: Float[Weight, "heads d_v d_in"]
    norm: Float[Weight, " d_v"]
    W_out: Float[Weight, "d_out heads d_v"]
    eps: float = eqx.field(static=True, default=1e-5)

    @classmethod
    def init(cls, *, key: PRNGKeyArray, **sizes: Unpack[HeadSizes]) -> "RetNet":
        """Draw matrices from N(0, 1/fan-in).

        sizes  d_in, d_out, heads, d_k, d_v
        """
        return cls(**random_fields(cls, key, {"norm": 1.0}, **sizes))

    def signals(self, xs: Float[Array, "time d_in"]) -> Signals:
        queries, keys, values = (project_heads(xs, W) for W in (self.W_q, self.W_k, self.W_v))
        decay = jnp.asarray(retention_decays(self.heads), keys.dtype)[:, None]
        queries = queries / math.sqrt(self.d_k)
        return Signals(queries, keys, values, jnp.broadcast_to(decay, keys.shape))

    def gate(self, xs: Float[Array, "time d_in"]) -> Float[Array, "time heads d_v"]:
        return jax.nn.silu(project_heads(xs, self.W_z))

    def leave(self, mixed: Mixed, signals: Signals, gate: Mixed) -> Float[Array, "time d_out"]:
        return unite(rms_norm(mixed, self.norm, self.eps) * gate, self.W_out)


class Lightning(Mixer):
    """MiniMax's lightning attention: fixed decays that depend on the layer's place in the model."""

    W_q: Float[Weight, "heads d_k d_in"]
    W_k: Float[Weight, "heads d_k d_in"]
    W_v: Float[Weight, "heads d_v d_in"]
    W_z: Float[Weight, "heads d_v d_in"]
    norm: Float[Weight, "heads d_v"]
    W_out: Float[Weight, "d_out heads d_v"]
    index: int = eqx.field(static=True, default=79)
    depth: int = eqx.field(static=True, default=80)
    eps: float = eqx.field(static=True, default=1e-6)

    def further_problems(self) -> list[str]:
        if 0 <= self.index < self.depth:
            return []
        return [f"index is {self.index} of {self.depth}; give a number from 0 to depth − 1"]

    @classmethod
    def init(
        cls, *, key: PRNGKeyArray, index: int = 79, depth: int = 80, **sizes: Unpack[HeadSizes]
    ) -> "Lightning":
        """Draw matrices from N(0, 1/fan-in).

        sizes  d_in, d_out, heads, d_k, d_v
        """
        weights = random_fields(cls, key, {"norm": 1.0}, **sizes)
        return cls(**weights, index=index, depth=depth)

    def signals(self, xs: Float[Array, "time d_in"]) -> Signals:
        queries, keys, values = (
            jax.nn.silu(project_heads(xs, W)) for W in (self.W_q, self.W_k, self.W_v)
        )
        decays = lightning_decays(self.heads, self.index, self.depth)
        decay = jnp.asarray(decays, keys.dtype)[:, None]
        return Signals(queries, keys, values, jnp.broadcast_to(decay, keys.shape))

    def gate(self, xs: Float[Array, "time d_in"]) -> Float[Array, "time heads d_v"]:
        return jax.nn.sigmoid(project_heads(xs, self.W_z))

    def leave(self, mixed: Mixed, signals: Signals, gate: Mixed) -> Float[Array, "time d_out"]:
        return unite(rms_norm_heads(mixed, self.norm, self.eps) * gate, self.W_out)


class HGRN2(Mixer):
    """HGRN2: what a channel forgets is what it writes, k = 1 − f."""

    W_q: Float[Weight, "heads d_k d_in"]
    W_f: Float[Weight, "heads d_k d_in"]
    W_v: Float[Weight, "heads d_v d_in"]
    norm: Float[Weight, "heads d_v"]
    W_out: Float[Weight, "d_out heads d_v"]
    eps: float = eqx.field(static=True, default=1e-5)

    key_field = "W_f"

    @classmethod
    def init(cls, *, key: PRNGKeyArray, **sizes: Unpack[HeadSizes]) -> "HGRN2":
        """Draw matrices from N(0, 1/fan-in).

        sizes  d_in, d_out, heads, d_k, d_v
        """
        return cls(**random_fields(cls, key, {"norm": 1.0}, **sizes))

    def signals(self, xs: Float[Array, "time d_in"]) -> Signals:
        queries = jax.nn.silu(project_heads(xs, self.W_q)) / math.sqrt(self.d_k)
        forget = project_heads(xs, self.W_f)
        # 1 − σ(z) = σ(−z), without the difference that would round.
        keys = jax.nn.sigmoid(-forget)
        return Signals(queries, keys, project_heads(xs, self.W_v), jax.nn.sigmoid(forget))

    def leave(self, mixed: Mixed, signals: Signals, gate: Mixed) -> Float[Array, "time d_out"]:
        return unite(rms_norm_heads(mixed, self.norm, self.eps), self.W_out)


def retention_decays(heads: int) -> Float[np.ndarray, " heads"]:
    """Return RetNet's 1 − 2^{−5−h}."""
    return 1 - 2.0 ** (-5.0 - np.arange(heads))


def lightning_decays(heads: int, index: int, depth: int) -> Float[np.ndarray, " heads"]:
    """Return the decays of the layer at an index in a MiniMax of a given depth."""
    slopes = 2.0 ** (-8.0 * np.arange(1, heads + 1) / heads)
    return np.exp(-slopes * (1 - index / (depth - 1 + 1e-5) + 1e-5))
