"""Linear self-attention (Eq. 1): y_t = (Σ_{s≤t} v_s k_sᵀ) q_t, no softmax.

W_V [d_v, d_in]  values  v = W_V x + b_V
W_K [d_k, d_in]  keys    k = W_K x + b_K
W_Q [d_k, d_in]  queries q = W_Q x + b_Q
decay [d_v]      row i of the memory fades by decay_i per token (Appendix B.5, 1 − γ)

With M = W_KᵀW_Q the layer is y_t = W_V (Σ x_s x_sᵀ) M x_t: W_V and M are all that matters.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from underhood.common.arrays import Weight
from underhood.common.decay import decay_from_nu, nu_from_decay
from underhood.common.errors import BadInput, kind_of
from underhood.layers.base import recurrence
from underhood.layers.base.layer import Layer, Size, axis_size, gaussian, zeros
from underhood.layers.base.shapes import Output, Outputs, Token, Tokens


class Augmented(NamedTuple):
    """[W_V|b_V], [W_K|b_K] and [W_Q|b_Q], which act on [x; 1]; float64, zeros where no bias is."""

    V: Float[np.ndarray, "d_v d_in_plus_1"]
    K: Float[np.ndarray, "d_k d_in_plus_1"]
    Q: Float[np.ndarray, "d_k d_in_plus_1"]


class LinearAttention(Layer):
    """One head of causal linear self-attention."""

    W_V: Float[Weight, "d_v d_in"]
    W_K: Float[Weight, "d_k d_in"]
    W_Q: Float[Weight, "d_k d_in"]
    b_V: Float[Weight, " d_v"] | None
    b_K: Float[Weight, " d_k"] | None
    b_Q: Float[Weight, " d_k"] | None
    nu: Float[Weight, " d_v"] | None

    def __init__(
        self,
        W_V: Weight,
        W_K: Weight,
        W_Q: Weight,
        *,
        b_V: Weight | None = None,
        b_K: Weight | None = None,
        b_Q: Weight | None = None,
        decay: Weight | None = None,
    ):
        self.W_V, self.W_K, self.W_Q = W_V, W_K, W_Q
        self.b_V, self.b_K, self.b_Q = b_V, b_K, b_Q
        self.nu = None if decay is None else nu_from_decay(decay, about="LinearAttention")

    d_in = axis_size("W_V", 1)
    d_out = axis_size("W_V", 0)
    neurons = gate_width = Size(lambda self: self.W_V.shape[0] * self.W_K.shape[0])

    def further_problems(self) -> list[str]:
        return [] if self.d_in else ["the weights have no columns, so there is no input"]

    @classmethod
    def init(
        cls, *, d_in: int, key: PRNGKeyArray, d_v: int | None = None, d_k: int | None = None
    ) -> "LinearAttention":
        """Draw weights from N(0, 1/d_in); d_v and d_k are d_in unless given."""
        sizes = (d_in if size is None else size for size in (d_v, d_k, d_k))
        keys = jax.random.split(key, 3)
        return cls(*(gaussian(keys[i], rows, d_in) for i, rows in enumerate(sizes)))

    @property
    def decay(self) -> Weight | None:
        return None if self.nu is None else decay_from_nu(self.nu)

    @property
    def decays(self) -> Float[np.ndarray, " d_v"]:
        """The decay of every value row in float64; ones where there is no decay."""
        decay = self.decay
        return np.ones(self.d_out) if decay is None else np.asarray(decay, np.float64)

    def augmented(self) -> Augmented:
        """Return the weights with their biases as a last column."""
        pairs = ((self.W_V, self.b_V), (self.W_K, self.b_K), (self.W_Q, self.b_Q))
        V, K, Q = (np.column_stack([W, np.zeros(len(W)) if b is None else b]) for W, b in pairs)
        return Augmented(*(np.asarray(W, np.float64) for W in (V, K, Q)))

    def __call__(self, xs: Tokens, *, backend: str | None = None) -> Outputs:
        self.check_sequence(xs)
        return causal_attention(*self.project(xs), self.decay, backend=backend)

    def project(self, xs: Float[Array, "*time d_in"]) -> tuple[Array, Array, Array]:
        pairs = ((self.W_V, self.b_V), (self.W_K, self.b_K), (self.W_Q, self.b_Q))
        values, keys, queries = (xs @ W.T if b is None else xs @ W.T + b for W, b in pairs)
        return values, keys, queries

    def initial_state(self) -> Float[Array, "d_v d_k"]:
        return zeros(self.W_V.shape[0], self.W_K.shape[0], like=self.W_V)

    def step(
        self, state: Float[Array, "d_v d_k"], x: Token
    ) -> tuple[Float[Array, "d_v d_k"], Output]:
        self.check_step(state, x)
        value, key, query = self.project(x)
        decay = self.decay
        kept = state if decay is None else jnp.asarray(decay)[:, None] * state
        state = kept + value[:, None] * key
        return state, state @ query


class MultiHead(Layer):
    """Heads side by side: their outputs concatenated, then mixed by W_O if there is one."""

    heads: tuple[LinearAttention, ...]
    W_O: Float[Weight, "d_out d_heads"] | None

    d_in = Size(lambda self: self.heads[0].d_in)
    # Numbers that all heads give together.
    d_heads = Size(lambda self: sum(head.d_out for head in self.heads))
    d_out = Size(lambda self: self.d_heads if self.W_O is None else self.W_O.shape[0])
    neurons = Size(lambda self: sum(head.neurons for head in self.heads))
    gate_width = Size(lambda self: sum(head.gate_width for head in self.heads))

    def __init__(self, heads: Sequence[LinearAttention], W_O: Weight | None = None):
        if isinstance(heads, Layer):
            raise BadInput("MultiHead: heads is a list of heads; write [head] for one.")
        self.heads, self.W_O = tuple(heads), W_O

    def further_problems(self) -> list[str]:
        problems = [] if self.heads else ["it needs at least one head"]
        problems += [
            f"head {number} is {kind_of(head)}, not a LinearAttention"
            for number, head in enumerate(self.heads)
            if not isinstance(head, LinearAttention)
        ]
        if problems:
            return problems
        widths = {head.d_in for head in self.heads}
        if len(widths) > 1:
            problems.append(f"the heads read inputs of different sizes {sorted(widths)}")
        if self.W_O is not None and self.W_O.shape[1] != self.d_heads:
            problems.append(
                f"W_O has shape {tuple(self.W_O.shape)} but the heads give {self.d_heads} numbers"
            )
        return problems

    @classmethod
    def init(
        cls,
        *,
        d_in: int,
        heads: int,
        key: PRNGKeyArray,
        d_v: int | None = None,
        d_k: int | None = None,
    ) -> "MultiHead":
        """Draw random heads and a random square W_O."""
        heads_key, mix_key = jax.random.split(key, 2)
        made = [
            LinearAttention.init(d_in=d_in, d_v=d_v, d_k=d_k, key=head_key)
            for head_key in jax.random.split(heads_key, heads)
        ]
        width = sum(head.d_out for head in made)
        return cls(made, gaussian(mix_key, width, width))

    def __call__(self, xs: Tokens, *, backend: str | None = None) -> Outputs:
        self.check_sequence(xs)
        if self.alike:
            outputs = jax.vmap(lambda head: head(xs, backend=backend), out_axes=1)(self.stacked())
            return self.mix(outputs.reshape(xs.shape[0], self.d_heads))
        outputs = jnp.concatenate([head(xs, backend=backend) for head in self.heads], axis=-1)
        return self.mix(outputs)

    @property
    def alike(self) -> bool:
        """Whether all heads have the same arrays with the same shapes."""
        first, *rest = (
            [jax.tree.structure(head), *(leaf.shape for leaf in jax.tree.leaves(head))]
            for head in self.heads
        )
        return all(shapes == first for shapes in rest)

    def stacked(self) -> LinearAttention:
        """Return heads that are alike as one stack, so that hundreds compile as fast as one."""
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *self.heads)

    def mix(self, outputs: Float[Array, "*time d_heads"]) -> Float[Array, "*time d_out"]:
        """Apply W_O to the concatenated heads."""
        return outputs if self.W_O is None else outputs @ self.W_O.T

    def initial_state(self) -> tuple[Array, ...]:
        return tuple(head.initial_state() for head in self.heads)

    def step(self, state: tuple[Array, ...], x: Token) -> tuple[tuple[Array, ...], Output]:
        self.check_step(state, x)
        if self.alike:
            states, outputs = jax.vmap(lambda head, memory: head.step(memory, x))(
                self.stacked(), jnp.stack(state)
            )
            return tuple(states), self.mix(outputs.ravel())
        pairs = [head.step(memory, x) for head, memory in zip(self.heads, state, strict=True)]
        states, outputs = zip(*pairs, strict=True)
        return tuple(states), self.mix(jnp.concatenate(outputs))


def causal_attention(
    values: Float[Array, "time d_v"],
    keys: Float[Array, "time d_k"],
    queries: Float[Array, "time d_k"],
    decay: Weight | None,
    *,
    chunk: int = recurrence.CHUNK,
    backend: str | None = None,
) -> Float[Array, "time d_v"]:
    """Compute Eq. 1 in O(T): quadratic inside chunks, the memory carried between them."""
    time, d_v = values.shape
    d_k = keys.shape[1]
    chunk = min(chunk, max(time, 1))
    values, keys, queries = (recurrence.in_chunks(part, chunk) for part in (values, keys, queries))
    blocks = len(values)
    scores = jnp.tril(jnp.einsum("btk,bsk->bts", queries, keys))
    if decay is None:
        local = jnp.einsum("bts,bsv->btv", scores, values)
        written = jnp.einsum("bsv,bsk->bvk", values, keys)
        fading, faded = jnp.ones((d_v,), values.dtype), jnp.ones((chunk, d_v), values.dtype)
    else:
        matrix, faded = recurrence.toeplitz(jnp.asarray(decay), chunk)
        local = jnp.einsum("bts,tsv,bsv->btv", scores, matrix, values)
        written = jnp.einsum("sv,bsv,bsk->bvk", matrix[-1], values, keys)
        fading = faded[-1]
    if blocks <= 1:
        return recurrence.out_of_chunks(local, time)
    memory = recurrence.linear_recurrence(
        jnp.repeat(fading, d_k), written.reshape(blocks, d_v * d_k), backend=backend
    )
    entering = jnp.pad(memory, ((1, 0), (0, 0)))[:-1].reshape(blocks, d_v, d_k)
    earlier = faded * jnp.einsum("bvk,btk->btv", entering, queries)
    return recurrence.out_of_chunks(local + earlier, time)
