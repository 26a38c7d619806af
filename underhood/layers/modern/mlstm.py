"""mLSTM (Beck et al. 2024), as in xLSTM 7B: a matrix memory that is divided by a normaliser.

    q = W_q x/√d_k   k = W_k x   v = W_v x   ĩ = cap(W_i x + b_i)   f̃ = cap(W_f x + b_f)
    S_t = σ(f̃) S_{t−1} + e^ĩ k vᵀ    n_t = σ(f̃) n_{t−1} + e^ĩ k    h_t = S_tᵀq/max(|n_t·q|, 1)
    y = W_out (σ(W_o x) ⊙ LayerNorm(h)), one LayerNorm per head      cap(z) = c tanh(z/c)

It is computed with S and n divided by e^m, m_t = max(log σ(f̃_t) + m_{t−1}, ĩ_t), m_0 = 0, so that
e^ĩ cannot overflow; 1e-6 is then added to the divisor, as the published code does. With log D_ts =
Σ_{s<r≤t} log σ(f̃_r) + ĩ_s and P = QKᵀ ⊙ e^{log D − m} the map is
A_ts = P_ts/(max(|Σ_s P_ts|, e^{−m_t}) + 1e-6).
"""

import math
from functools import partial
from typing import NamedTuple, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from underhood.common.arrays import Weight
from underhood.layers.base.layer import Size, axis_size, zeros
from underhood.layers.base.shapes import Output, Outputs, Token, Tokens
from underhood.layers.modern.core import Mixed, Signals, memory_map, run_memory, step_memory
from underhood.layers.modern.mixer import Given, HeadSizes, ModernLayer, random_fields
from underhood.layers.modern.parts import layer_norm, project_heads, unite

# What the published code adds to the divisor.
DIVISOR_EPS = 1e-6


class MLSTMState(NamedTuple):
    """S with n as a last column, both divided by e^m, and m."""

    memory: Float[Array, "heads d_k d_v_plus_1"]
    m: Float[Array, " heads"]


class MLSTM(ModernLayer):
    """The mLSTM layer of xLSTM 7B; cap=None leaves the gates without a soft cap."""

    W_q: Float[Weight, "heads d_k d_in"]
    W_k: Float[Weight, "heads d_k d_in"]
    W_v: Float[Weight, "heads d_v d_in"]
    W_i: Float[Weight, "heads d_in"]
    b_i: Float[Weight, " heads"]
    W_f: Float[Weight, "heads d_in"]
    b_f: Float[Weight, " heads"]
    W_o: Float[Weight, "heads d_v d_in"]
    norm: Float[Weight, "heads d_v"]
    W_out: Float[Weight, "d_out heads d_v"]
    cap: float | None = eqx.field(static=True, default=15.0)
    eps: float = eqx.field(static=True, default=1e-6)

    may_be_infinite = ("b_f",)
    heads, d_k, d_v = axis_size("W_k", 0), axis_size("W_k", 1), axis_size("W_v", 1)
    d_in, d_out = axis_size("W_k", 2), axis_size("W_out", 0)
    neurons = Size(lambda self: self.heads * self.d_k * self.d_v)
    gate_width = Size(lambda self: self.heads * self.d_v)

    @classmethod
    def init(cls, *, key: PRNGKeyArray, **sizes: Unpack[HeadSizes]) -> "MLSTM":
        """Draw matrices from N(0, 1/fan-in); b_i = −10 and b_f from 3 to 6, as xLSTM 7B has.

        sizes  d_in, d_out, heads, d_k, d_v
        """
        given: dict[str, Given] = {"b_i": -10.0, "norm": 1.0}
        given["b_f"] = partial(jnp.linspace, 3.0, 6.0)
        return cls(**random_fields(cls, key, given, **sizes))

    def capped(self, z: Float[Array, "time heads"]) -> Float[Array, "time heads"]:
        """Return cap(z)."""
        return z if self.cap is None else self.cap * jnp.tanh(z / self.cap)

    def gates(self, xs: Float[Array, "time d_in"]) -> tuple[Array, Array]:
        """Return log σ(f̃) and ĩ."""
        forget = jax.nn.log_sigmoid(self.capped(xs @ self.W_f.T + self.b_f))
        return forget, self.capped(xs @ self.W_i.T + self.b_i)

    def signals(
        self,
        xs: Float[Array, "time d_in"],
        m_before: Float[Array, "time heads"],
        m: Float[Array, "time heads"],
    ) -> Signals:
        """Return what the tokens do to S and n divided by e^m; the last value is the 1 of n."""
        forget, enter = self.gates(xs)
        keys = project_heads(xs, self.W_k)
        values = project_heads(xs, self.W_v)
        decay = jnp.exp(forget + m_before - m)[..., None]
        return Signals(
            project_heads(xs, self.W_q) / math.sqrt(self.d_k),
            jnp.exp(enter - m)[..., None] * keys,
            jnp.concatenate([values, jnp.ones_like(values[..., :1])], axis=-1),
            jnp.broadcast_to(decay, keys.shape),
        )

    def stabilisers(self, xs: Float[Array, "time d_in"]) -> tuple[Array, Array]:
        """Return m at the token before, and at the token."""
        forget, enter = self.gates(xs)

        def advance(m: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
            m = jnp.maximum(now[0] + m, now[1])
            return m, m

        start = jnp.zeros(self.heads, forget.dtype)
        m = jax.lax.scan(advance, start, (forget, enter))[1]
        return jnp.concatenate([start[None], m])[: len(xs)], m

    def divisor(
        self, normaliser: Float[Array, "*time heads"], m: Float[Array, "*time heads"]
    ) -> Float[Array, "*time heads"]:
        """Return max(|n·q|, e^{−m}) + 1e-6."""
        return jnp.maximum(jnp.abs(normaliser), jnp.exp(-m)) + DIVISOR_EPS

    def core_map(self, xs: Float[Array, "time d_in"]) -> Float[Array, "heads time time2"]:
        """Return A with h = A v."""
        m_before, m = self.stabilisers(xs)
        scores = memory_map(self.signals(xs, m_before, m))
        return scores / self.divisor(jnp.sum(scores, axis=-1).T, m).T[..., None]

    def leave(self, mixed: Mixed, xs: Float[Array, "time d_in"]) -> Float[Array, "time d_out"]:
        gate = jax.nn.sigmoid(project_heads(xs, self.W_o))
        return unite(gate * layer_norm(mixed, self.norm, self.eps), self.W_out)

    def __call__(self, xs: Tokens) -> Outputs:
        self.check_sequence(xs)
        xs = jnp.asarray(xs)
        m_before, m = self.stabilisers(xs)
        read = run_memory(self.signals(xs, m_before, m))
        return self.leave(read[..., :-1] / self.divisor(read[..., -1], m)[..., None], xs)

    def initial_state(self) -> MLSTMState:
        memory = zeros(self.heads, self.d_k, self.d_v + 1, like=self.W_out)
        return MLSTMState(memory, zeros(self.heads, like=self.W_out))

    def step(self, state: MLSTMState, x: Token) -> tuple[MLSTMState, Output]:
        self.check_step(state, x)
        xs = jnp.asarray(x)[None]
        forget, enter = self.gates(xs)
        m = jnp.maximum(forget[0] + state.m, enter[0])
        signals = self.signals(xs, state.m[None], m[None])
        memory, read = step_memory(state.memory, jax.tree.map(lambda part: part[0], signals))
        mixed = read[:, :-1] / self.divisor(read[:, -1], m)[:, None]
        return MLSTMState(memory, m), self.leave(mixed[None], xs)[0]
