"""Teacher-student with several heads: imitate y_t = Σ_h W_V^h S_t M^h x_t on x_t ~ N(0, I).

S_t = Σ_{s≤t} x_s x_sᵀ. An output is a table T [d, d, d], symmetric in its first two indices:

    y = Σ_{s≤t} Σ_abc T_abc x_sa x_sb x_tc.

With k = t − 1 earlier tokens, T_c the matrix of T for query c, τ_c its trace, U the symmetric part
of T in all three indices and u_c = Σ_a U_aac,

    E[y²] = Σ_c (2k|T_c|² + k²τ_c²) + 6k Σ_c τ_c u_c + 6|U|² + 9|u|²,

by Wick's theorem. The mean is zero, because y is odd in the tokens.
"""

from itertools import permutations
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from underhood.common.errors import BadInput, refuse, with_article
from underhood.common.linear_algebra import symmetric_part
from underhood.common.numbers import whole_problems
from underhood.layers import LinearAttention, MultiHead
from underhood.layers.base.layer import Size
from underhood.tasks.task import Batch, Task
from underhood.tasks.teacher_student import TeacherStudent

# W_V and M = W_KᵀW_Q of every head, [heads, d_out, d] and [heads, d, d].
ValuesAndScores = tuple[np.ndarray, np.ndarray]


class MultiHeadTeacher(Task):
    """Imitate several heads without biases and decays on sequences of `length` normal tokens."""

    attention: MultiHead
    length: int = eqx.field(static=True)

    reads_last: ClassVar[bool] = False

    d_in = Size(lambda self: self.attention.d_in)
    d_out = Size(lambda self: self.attention.d_out)
    time = Size(lambda self: self.length)

    def __init__(self, attention: MultiHead, length: int = 32):
        refuse(whole_problems(length=length), about="MultiHeadTeacher")
        if not isinstance(attention, MultiHead):
            kind = type(attention).__name__
            raise BadInput(
                f"MultiHeadTeacher: the teacher is {with_article(kind)}; give a MultiHead."
            )
        if any(extra is not None for head in attention.heads for extra in extras(head)):
            raise BadInput("MultiHeadTeacher: give heads without biases and decays.")
        self.attention, self.length = attention, int(length)

    @classmethod
    def random(
        cls, d: int, heads: int, rank: int | None = None, *, length: int = 32, key: PRNGKeyArray
    ) -> "MultiHeadTeacher":
        """Draw heads as `TeacherStudent.random` draws one; their outputs are added."""
        refuse(whole_problems(heads=heads), about="MultiHeadTeacher.random")
        keys = jax.random.split(key, heads)
        drawn = [TeacherStudent.random(d, rank, length=length, key=each).attention for each in keys]
        return cls(MultiHead(drawn, jnp.tile(jnp.eye(d), (1, heads))), length)

    @property
    def zero_loss(self) -> float:
        return self.scale / 2

    @property
    def scale(self) -> float:
        values, scores = values_and_scores(self.attention)
        # T [d_out, query, memory, memory].
        T = symmetric_part(np.einsum("hia,hbc->icab", values, scores))
        U = np.mean([np.transpose(T, (0, *order)) for order in permutations((1, 2, 3))], axis=0)
        traces, u = np.einsum("icaa->ic", T), np.einsum("icaa->ic", U)
        k = np.arange(self.length)[:, None]
        axes = (1, 2, 3)
        earlier = 2 * k * np.sum(T**2, axis=axes) + k**2 * np.sum(traces**2, axis=1)
        mixed = 6 * k * np.sum(traces * u, axis=1)
        now = 6 * np.sum(U**2, axis=axes) + 9 * np.sum(u**2, axis=1)
        return float(np.mean(earlier + mixed + now))

    @property
    def best_loss(self) -> float:
        return 0.0

    def best_attention(self) -> MultiHead:
        """Return the teacher."""
        return self.attention

    def sample(self, key: PRNGKeyArray, batch: int) -> Batch:
        inputs = jax.random.normal(key, (batch, self.length, self.d_in))
        with jax.default_matmul_precision("highest"):
            return Batch(inputs, jax.vmap(self.attention)(inputs))

    def with_length(self, length: int) -> "MultiHeadTeacher":
        """Return the same teacher on `length` tokens."""
        return MultiHeadTeacher(self.attention, length)


def extras(head: LinearAttention) -> tuple[object, ...]:
    """Return the biases and decays of a head; None where it has none."""
    return head.b_V, head.b_K, head.b_Q, head.decay


def values_and_scores(attention: LinearAttention | MultiHead) -> ValuesAndScores:
    """Return W_V, mixed by W_O if there is one, and M = W_KᵀW_Q of every head in float64."""
    heads = attention.heads if isinstance(attention, MultiHead) else (attention,)
    mix = np.eye(attention.d_out)
    if isinstance(attention, MultiHead) and attention.W_O is not None:
        mix = np.asarray(attention.W_O, float)
    blocks = np.split(mix, np.cumsum([head.d_out for head in heads])[:-1], axis=1)
    values = [
        block @ np.asarray(head.W_V, float) for block, head in zip(blocks, heads, strict=True)
    ]
    scores = [np.asarray(head.W_K, float).T @ np.asarray(head.W_Q, float) for head in heads]
    return np.stack(values), np.stack(scores)
