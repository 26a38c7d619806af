"""RG-LRU block (De et al. 2024), as in RecurrentGemma: a gated diagonal recurrence.

    u = conv(W_x x + b_x) + b_conv    i = σ(W_i u + b_i)    r = σ(W_r u + b_r)
    a = exp(−8 r softplus(Λ))         h_t = a_t⊙h_{t−1} + m_t⊙i_t⊙u_t,  m = √(1 − a²)
    y = W_out (h ⊙ gelu(W_y x + b_y)) + b_out, with the tanh form of gelu

Per channel A_ts = (∏_{s<r≤t} a_r) m_s i_s, and the values are u. RecurrentGemma writes the token
at position 0 with m = 1; whole_first=False writes it like the others, which RecurrentGemma does if
its positions begin at 1. RecurrentGemma's W_i and W_r are block-diagonal.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from underhood.common.arrays import Weight
from underhood.layers.base.layer import axis_size, zeros
from underhood.layers.base.recurrence import linear_recurrence
from underhood.layers.base.shapes import Output, Outputs, Token, Tokens
from underhood.layers.modern.core import decay_products
from underhood.layers.modern.mixer import ModernLayer, random_fields
from underhood.layers.modern.parts import convolve

# What is in the exponent of a beside the gate and softplus(Λ).
SHARPNESS = 8.0

# The last tokens W_x x + b_x, the state, and 0 before the first token and 1 after it.
BlockMemory = tuple[Float[Array, "earlier inner"], Float[Array, " inner"], Float[Array, ""]]


class RGLRU(ModernLayer):
    """The recurrent block of RecurrentGemma."""

    W_x: Float[Weight, "inner d_in"]
    b_x: Float[Weight, " inner"]
    W_y: Float[Weight, "inner d_in"]
    b_y: Float[Weight, " inner"]
    conv: Float[Weight, "width inner"]
    b_conv: Float[Weight, " inner"]
    W_i: Float[Weight, "inner inner"]
    b_i: Float[Weight, " inner"]
    W_r: Float[Weight, "inner inner"]
    b_r: Float[Weight, " inner"]
    Lambda: Float[Weight, " inner"]
    W_out: Float[Weight, "d_out inner"]
    b_out: Float[Weight, " d_out"]
    whole_first: bool = eqx.field(static=True, default=True)

    d_in, d_out = axis_size("W_x", 1), axis_size("W_out", 0)
    neurons = gate_width = axis_size("W_x", 0)

    @classmethod
    def init(
        cls, *, d_in: int, d_out: int, inner: int, key: PRNGKeyArray, width: int = 4
    ) -> "RGLRU":
        """Draw matrices from N(0, 1/fan-in); a² is uniform on (0.81, 0.998) where r = 1."""
        weight_key, decay_key = jax.random.split(key)
        squares = jax.random.uniform(decay_key, (inner,), minval=0.9**2, maxval=0.999**2)
        # softplus(Λ) = −log(a)/8.
        rates = jnp.log(jnp.expm1(-jnp.log(squares) / (2 * SHARPNESS)))
        biases = dict.fromkeys(("b_x", "b_y", "b_conv", "b_i", "b_r", "b_out"), 0.0)
        sizes = {"d_in": d_in, "d_out": d_out, "inner": inner, "width": width}
        return cls(**random_fields(cls, weight_key, {"Lambda": rates, **biases}, **sizes))

    def dynamics(
        self, us: Float[Array, "*time inner"], first: Float[Array, "*time 1"]
    ) -> tuple[Array, Array]:
        """Return a and m⊙i.

        first  1 at the first token, 0 at the others
        """
        rate = jax.nn.softplus(jnp.asarray(self.Lambda))
        log_a = -SHARPNESS * jax.nn.sigmoid(us @ self.W_r.T + self.b_r) * rate
        multiplier = jnp.sqrt(-jnp.expm1(2 * log_a))
        if self.whole_first:
            multiplier = first + (1 - first) * multiplier
        return jnp.exp(log_a), multiplier * jax.nn.sigmoid(us @ self.W_i.T + self.b_i)

    def signals(self, xs: Float[Array, "time d_in"]) -> tuple[Array, Array, Array]:
        """Return a, m⊙i and u at all times."""
        us = convolve(xs @ self.W_x.T + self.b_x, self.conv) + self.b_conv
        first = jnp.eye(len(us), 1, dtype=us.dtype)
        return (*self.dynamics(us, first), us)

    def core_map(self, xs: Float[Array, "time d_in"]) -> Float[Array, "inner time time2"]:
        """Return A with h = A u, per channel."""
        decay, write, _ = self.signals(xs)
        return jnp.einsum("tsn,sn->nts", decay_products(decay).after, write)

    def leave(
        self, states: Float[Array, "*time inner"], xs: Float[Array, "*time d_in"]
    ) -> Float[Array, "*time d_out"]:
        gate = jax.nn.gelu(xs @ self.W_y.T + self.b_y, approximate=True)
        return (states * gate) @ self.W_out.T + self.b_out

    def __call__(self, xs: Tokens, *, backend: str | None = None) -> Outputs:
        self.check_sequence(xs)
        xs = jnp.asarray(xs)
        decay, write, us = self.signals(xs)
        return self.leave(linear_recurrence(decay, write * us, backend=backend), xs)

    def initial_state(self) -> BlockMemory:
        width, inner = self.conv.shape
        window = zeros(width - 1, inner, like=self.conv)
        return window, zeros(inner, like=self.conv), zeros(like=self.conv)

    def step(self, state: BlockMemory, x: Token) -> tuple[BlockMemory, Output]:
        self.check_step(state, x)
        window, h, started = state
        window = jnp.concatenate([window, (x @ self.W_x.T + self.b_x)[None]])
        u = jnp.sum(self.conv * window, axis=0) + self.b_conv
        decay, write = self.dynamics(u, (1 - started)[None])
        h = decay * h + write * u
        return (window[1:], h, jnp.ones_like(started)), self.leave(h, jnp.asarray(x))
