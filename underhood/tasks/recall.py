"""Associative recall (Appendix D.3): having seen pairs (x, y), answer the query x with its y.

    pair tokens (default)  [x_1, y_1], …, [x_T, y_T], [x_q, 0]
    with in-between tokens [x_1, y_1], [y_1, x_2], [x_2, y_2], …, [x_T, y_T], [x_q, 0]

x and y are one of S symbols each, one-hot; each x and each y appears at most once in a sequence,
and x_q is one of the x shown. Pair tokens have 2S inputs, a slot of S for each. In-between
tokens put an x where others have a y, so both slots run over 2S symbols (x first): 4S inputs.
The outputs are scores over the S possible y at the last token; the loss is their cross-entropy.
"""

import math
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from underhood.common.errors import BadInput, refuse
from underhood.common.numbers import whole_problems
from underhood.layers import LinearAttention
from underhood.layers.base.layer import Size
from underhood.tasks.task import Batch, PerSequence, Task

Labels = Int[Array, " batch"]


class AssociativeRecall(Task):
    """Recall which of `symbols` y came with the queried x, after `pairs` pairs."""

    symbols: int = eqx.field(static=True)
    between_tokens: bool = eqx.field(static=True)
    pairs: int = eqx.field(static=True)

    reads_last: ClassVar[bool] = True

    # Inputs per slot; a token has two.
    slot = Size(lambda self: 2 * self.symbols if self.between_tokens else self.symbols)
    d_in = Size(lambda self: 2 * self.slot)
    d_out = Size(lambda self: self.symbols)
    time = Size(lambda self: 2 * self.pairs if self.between_tokens else self.pairs + 1)

    def __init__(self, symbols: int = 8, between_tokens: bool = False, pairs: int | None = None):
        """Set the sizes; `pairs` is `symbols` unless given."""
        problems = whole_problems(symbols=symbols)
        problems += [] if pairs is None else whole_problems(pairs=pairs)
        pairs = symbols if pairs is None else pairs
        if not problems and pairs > symbols:
            problems.append(
                f"pairs is {pairs} but each x appears once; give {symbols} or less, or more symbols"
            )
        if not isinstance(between_tokens, bool):
            problems.append(f"between_tokens is {between_tokens!r}; give True or False")
        refuse(problems, about="AssociativeRecall")
        self.symbols, self.between_tokens, self.pairs = int(symbols), between_tokens, int(pairs)

    @property
    def zero_loss(self) -> float:
        return math.log(self.symbols)

    @property
    def best_loss(self) -> float:
        """log(e + S − 1) − 1, at one score of 1 among zeros.

        No attention attains the infimum, 0; multiplying W_V by c gives log(1 + (S − 1)e⁻ᶜ).
        """
        return math.log(math.e + self.symbols - 1) - 1

    def best_attention(self) -> LinearAttention:
        """Return the paper's: keys and queries read x, values read y; right on every sequence."""
        read = np.eye(self.d_in)
        # y comes at the end of a slot: after the x, where the slots hold both.
        reads_x, reads_y = read[: self.symbols], read[-self.symbols :]
        return LinearAttention(reads_y, reads_x, reads_x)

    def sample(self, key: PRNGKeyArray, batch: int) -> Batch:
        x_key, y_key, query_key = jax.random.split(key, 3)
        ordered = jnp.broadcast_to(jnp.arange(self.symbols), (batch, self.symbols))
        xs, labels = (
            jax.random.permutation(side_key, ordered, axis=1, independent=True)[:, : self.pairs]
            for side_key in (x_key, y_key)
        )
        asked = jax.random.randint(query_key, (batch, 1), 0, self.pairs)
        query, target = (jnp.take_along_axis(drawn, asked, axis=1) for drawn in (xs, labels))
        # −1 is no symbol: its one-hot code is zero.
        nothing = jnp.full_like(query, -1)
        left, right = xs, labels
        if self.between_tokens:
            # x_1 y_1 x_2 y_2 …: every symbol but the last is followed by its right neighbour.
            ys = labels + self.symbols
            line = jnp.stack([xs, ys], axis=2).reshape(batch, 2 * self.pairs)
            left, right = line[:, :-1], line[:, 1:]
        slots = (jnp.concatenate([left, query], axis=1), jnp.concatenate([right, nothing], axis=1))
        tokens = jnp.concatenate([jax.nn.one_hot(slot, self.slot) for slot in slots], axis=-1)
        return Batch(tokens, target[:, 0])

    def losses(self, outputs: Float[Array, "batch symbols"], targets: Labels) -> PerSequence:
        """Return the cross-entropy of each sequence in nats."""
        if outputs.shape != (*targets.shape, self.symbols):
            raise BadInput(
                f"The outputs have shape {tuple(outputs.shape)}; give scores over the "
                f"{self.symbols} symbols at the last token, [{targets.shape[0]}, {self.symbols}]."
            )
        chosen = jnp.take_along_axis(jax.nn.log_softmax(outputs), targets[:, None], axis=1)
        return -chosen[:, 0]

    def scores(
        self, outputs: Float[Array, "batch symbols"], targets: Labels
    ) -> dict[str, PerSequence]:
        """Return the loss, and the accuracy: 1 where the right y has the highest score, else 0."""
        right = jnp.argmax(outputs, axis=1) == targets
        return super().scores(outputs, targets) | {"accuracy": right.astype(outputs.dtype)}

    def with_length(self, length: int) -> "AssociativeRecall":
        """Return the same task with `length` pairs before the query."""
        return AssociativeRecall(self.symbols, self.between_tokens, length)
