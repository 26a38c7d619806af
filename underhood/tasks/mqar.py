"""Multi-query associative recall (MQAR), as Zoology defines it (arXiv:2312.04927, 2402.18668).

    token by token  k_1 v_1 … k_K v_K, then slots of two tokens; a query is a slot's first token
    stacked         [k_1, v_1], …, [k_K, v_K], then [q_1, 0], …, [q_K, 0]

Keys are distinct, values are distinct, and each key is asked exactly once. The answer is scored at
the token that asks. Token by token the vocabulary is 0 … V−1: keys are 1 … V/2 − 1, values are
V/2 … V−1, and 0 is neither. Slot i is drawn with probability p_i ∝ i^(a−1), a = power_a, without
replacement. With random_fill every token that is not a pair or a query is uniform over the whole
vocabulary, so it can look like a key or a value; otherwise it is 0. Stacked, there are V/2 keys,
V/2 values and no filler.

Tokens are one-hot in V numbers (stacked: V/2 for the key, then V/2 for the value). The outputs are
scores over V tokens (stacked: over V/2 values). The loss is the mean cross-entropy of the K
answers; `accuracy` is the share of answers whose score is the largest.
"""

import math
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from underhood.common.errors import BadInput, refuse
from underhood.common.numbers import number_problems, whole_problems
from underhood.layers import LinearAttention
from underhood.layers.base.layer import Size
from underhood.tasks.task import Batch, PerSequence, Task

# The label of a token that is not scored, and the symbol of an empty half of a stacked token.
NOT_SCORED, EMPTY = -100, -1

Symbols = Int[Array, "batch time"] | Int[Array, "batch time 2"]
ScoredLabels = Int[Array, "batch time"]
Noise = Float[Array, "batch count"]


class Published(NamedTuple):
    """One data set of a published figure."""

    pairs: int
    length: int
    sequences: int


# Zoology's recall–memory figure (Figure 2 of 2402.18668, and the README's newer version of it).
# Its metric is the mean over all test sequences, so the seven numbers of pairs weigh the same.
PUBLISHED_TRAINING = (
    Published(4, 64, 100_000),
    Published(8, 128, 20_000),
    *(Published(pairs, 256, 20_000) for pairs in (16, 32, 64)),
)
PUBLISHED_TEST = (
    *(Published(pairs, 64, 1000) for pairs in (4, 8, 16)),
    *(Published(pairs, 4 * pairs, 1000) for pairs in (32, 64, 128, 256)),
)


class Asked(NamedTuple):
    """Sequences as symbols: stacked ones are (key, value), EMPTY where there is none."""

    symbols: Symbols
    # The answer at a token that is scored, NOT_SCORED elsewhere.
    labels: ScoredLabels


class MQAR(Task):
    """Recall the values of `pairs` keys, each asked once in a sequence of `length` tokens."""

    pairs: int = eqx.field(static=True)
    length: int = eqx.field(static=True)
    vocab: int = eqx.field(static=True)
    power_a: float = eqx.field(static=True)
    random_fill: bool = eqx.field(static=True)
    stacked: bool = eqx.field(static=True)

    reads_last: ClassVar[bool] = False

    # V/2, also the first value token.
    half = Size(lambda self: self.vocab // 2)
    # Keys and values that there are.
    all_keys = Size(lambda self: self.half if self.stacked else self.half - 1)
    all_values = Size(lambda self: self.vocab - self.half)
    # How often a stacked sequence shows the pairs; two-token slots after the pairs.
    passes = Size(lambda self: self.length // self.pairs - 1 if self.stacked else 1)
    slots = Size(lambda self: self.length // 2 - self.pairs)
    d_in = Size(lambda self: self.vocab)
    d_out = Size(lambda self: self.all_values if self.stacked else self.vocab)
    time = Size(lambda self: self.length)

    def __init__(
        self,
        pairs: int,
        length: int,
        vocab: int = 8192,
        power_a: float = 0.01,
        random_fill: bool = True,
        stacked: bool = False,
    ):
        """Set the sizes.

        length   tokens: even and at least 4·pairs; stacked: a multiple of `pairs`, which shows
                 the pairs length/pairs − 1 times
        vocab    keys and values together, an even number
        power_a  of the slots' law; 1 draws them uniformly, small numbers prefer early ones
        """
        problems = whole_problems(pairs=pairs, length=length) + whole_problems(least=4, vocab=vocab)
        problems += number_problems(above=True, power_a=power_a)
        problems += [
            f"{name} is {value!r}; give True or False"
            for name, value in (("random_fill", random_fill), ("stacked", stacked))
            if not isinstance(value, bool)
        ]
        if not problems:
            problems += size_problems(pairs, length, vocab, stacked)
        refuse(problems, about="MQAR")
        self.pairs, self.length, self.vocab = int(pairs), int(length), int(vocab)
        self.power_a, self.random_fill, self.stacked = float(power_a), random_fill, stacked

    @property
    def zero_loss(self) -> float:
        return math.log(self.d_out)

    @property
    def best_loss(self) -> float:
        """Stacked: one score of p = `passes` among zeros; token by token `zero_loss`."""
        if not self.stacked:
            return self.zero_loss
        return math.log(math.exp(self.passes) + self.all_values - 1) - self.passes

    def best_attention(self) -> LinearAttention:
        """Return, stacked, the attention that is always right; token by token the zero attention.

        Token by token no attention of one layer recalls: its outputs are sums of functions of two
        tokens (docs/recall.md, the parity lemma). `uh.recall.build` makes two layers that do.
        """
        if not self.stacked:
            nothing = np.zeros((1, self.d_in))
            return LinearAttention(np.zeros((self.d_out, self.d_in)), nothing, nothing)
        read = np.eye(self.d_in)
        reads_key, reads_value = read[: self.half], read[self.half :]
        return LinearAttention(reads_value, reads_key, reads_key)

    def draw(self, key: PRNGKeyArray, batch: int) -> Asked:
        """Draw `batch` sequences as symbols, which take far less memory than one-hot tokens."""
        rest = self.length if self.stacked else self.slots + self.length - 2 * self.pairs
        # One call draws all noise: compiling several takes seconds.
        noise = jax.random.uniform(key, (batch, self.all_keys + self.all_values + rest))
        places = (self.all_keys, self.all_keys + self.all_values)
        key_noise, value_noise, order_noise = jnp.split(noise, places, axis=1)
        keys, values = (smallest(side, self.pairs) for side in (key_noise, value_noise))
        order = self.order_pairs if self.stacked else self.order_tokens
        return order(order_noise, keys, values)

    def order_tokens(self, noise: Noise, keys: Array, values: Array) -> Asked:
        """Put pairs first, ask each key in a slot of its own, and fill the rest."""
        batch = len(keys)
        keys, values = keys + 1, values + self.half
        context = jnp.stack([keys, values], axis=2).reshape(batch, 2 * self.pairs)
        slot_noise, filler_noise = noise[:, : self.slots], noise[:, self.slots :]
        # The first arrivals of clocks with rates p are a draw without replacement, in its order.
        arrivals = jnp.log(-jnp.log1p(-slot_noise)) - self.slot_logits()
        places = 2 * (self.pairs + smallest(arrivals, self.pairs))
        filler = jnp.zeros(filler_noise.shape, keys.dtype)
        if self.random_fill:
            filler = jnp.floor(filler_noise * self.vocab).astype(keys.dtype)
        rows = jnp.arange(batch)[:, None]
        tokens = jnp.concatenate([context, filler], axis=1).at[rows, places].set(keys)
        labels = jnp.full(tokens.shape, NOT_SCORED, keys.dtype).at[rows, places].set(values)
        return Asked(tokens, labels)

    def order_pairs(self, noise: Noise, keys: Array, values: Array) -> Asked:
        """Show the pairs in a fresh order for each pass, and once more as queries."""
        passes = jnp.split(noise, self.passes + 1, axis=1)
        shown = jnp.concatenate([smallest(part, self.pairs) for part in passes], axis=1)
        keys, values = (jnp.take_along_axis(side, shown, axis=1) for side in (keys, values))
        asks = jnp.arange(self.length) >= self.length - self.pairs
        symbols = jnp.stack([keys, jnp.where(asks, EMPTY, values)], axis=2)
        return Asked(symbols, jnp.where(asks, values, NOT_SCORED))

    def slot_logits(self) -> Float[Array, " slots"]:
        """Return log p_i up to a constant."""
        return (self.power_a - 1) * jnp.log(jnp.arange(1, self.slots + 1))

    def sample(self, key: PRNGKeyArray, batch: int) -> Batch:
        symbols, labels = self.draw(key, batch)
        if not self.stacked:
            return Batch(jax.nn.one_hot(symbols, self.vocab), labels)
        sizes = (self.half, self.all_values)
        halves = [jax.nn.one_hot(symbols[..., side], size) for side, size in enumerate(sizes)]
        return Batch(jnp.concatenate(halves, axis=-1), labels)

    def losses(
        self, outputs: Float[Array, "batch time d_out"], targets: ScoredLabels
    ) -> PerSequence:
        """Return the mean cross-entropy of each sequence's answers in nats."""
        self.check_outputs(outputs, targets)
        answers = jnp.maximum(targets, 0)[..., None]
        chosen = jnp.take_along_axis(jax.nn.log_softmax(outputs), answers, axis=-1)[..., 0]
        return -self.mean_over_answers(chosen, targets)

    def scores(
        self, outputs: Float[Array, "batch time d_out"], targets: ScoredLabels
    ) -> dict[str, PerSequence]:
        """Return the loss, and the accuracy: the share of answers with the highest score."""
        right = (jnp.argmax(outputs, axis=-1) == targets).astype(outputs.dtype)
        loss = super().scores(outputs, targets)
        return loss | {"accuracy": self.mean_over_answers(right, targets)}

    def mean_over_answers(self, values: Array, targets: ScoredLabels) -> PerSequence:
        scored = targets != NOT_SCORED
        return jnp.sum(jnp.where(scored, values, 0), axis=1) / jnp.sum(scored, axis=1)

    def check_outputs(self, outputs: Array, targets: ScoredLabels) -> None:
        if outputs.shape != (*targets.shape, self.d_out):
            raise BadInput(
                f"The outputs have shape {tuple(outputs.shape)}; give scores over {self.d_out} "
                f"answers at every token, [{targets.shape[0]}, {targets.shape[1]}, {self.d_out}]."
            )

    def with_length(self, length: int) -> "MQAR":
        """Return the same task on `length` tokens."""
        settings = (self.vocab, self.power_a, self.random_fill, self.stacked)
        return MQAR(self.pairs, length, *settings)


def size_problems(pairs: int, length: int, vocab: int, stacked: bool) -> list[str]:
    """List which sizes do not fit together."""
    problems = []
    if vocab % 2:
        problems.append(f"vocab is {vocab}; give an even number, half of it are the values")
    if stacked and (length % pairs or length < 2 * pairs):
        problems.append(
            f"length is {length}; stacked, give a multiple of pairs = {pairs} from {2 * pairs} on"
        )
    if not stacked and (length % 2 or length < 4 * pairs):
        problems.append(
            f"length is {length}; give an even number of at least 4·pairs = {4 * pairs}"
        )
    keys = vocab // 2 if stacked else vocab // 2 - 1
    if pairs > keys:
        problems.append(f"pairs is {pairs} but there are {keys} keys; give a larger vocab")
    return problems


def smallest(noise: Noise, count: int) -> Int[Array, "batch chosen"]:
    """Return the places of the `count` smallest numbers of each row, the smallest first."""
    return jax.lax.top_k(-noise, count)[1]
