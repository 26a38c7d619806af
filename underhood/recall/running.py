"""Compiled networks run on MQAR: the layers themselves, read out where answers are scored."""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from underhood.layers import Layer
from underhood.layers.base.recurrent import RecurrentLayer
from underhood.recall.codes import Codes
from underhood.recall.sparse import runs_sparse, sparse_shares
from underhood.tasks.mqar import EMPTY, MQAR, NOT_SCORED, Symbols

# Tokens that run at once, in all sequences of a batch.
TOKENS_AT_ONCE = 2**13


@dataclass(frozen=True)
class Measured:
    """Accuracy of a network on one test set.

    error      standard error of the accuracy: over sequences, or binomial if that is larger
    predicted  by formula
    """

    pairs: int
    length: int
    sequences: int
    accuracy: float
    error: float
    predicted: float

    @property
    def answers(self) -> int:
        """How many answers were scored."""
        return self.sequences * self.pairs


def measure_accuracy(
    embeddings: np.ndarray,
    layers: tuple[Layer, ...],
    codes: Codes,
    task: MQAR,
    predicted: float,
    *,
    sequences: int,
    key: PRNGKeyArray,
    dtype: str,
    compiled: bool = True,
) -> Measured:
    """Run layers on fresh sequences of a task, and count right answers.

    compiled  False: run the attention that the layers compute, as products of matrices
    """
    # A batch depends on the task alone, so all networks share a sampler.
    at_once = min(max(1, TOKENS_AT_ONCE // task.length), 2 ** (sequences - 1).bit_length())
    keys = jax.random.split(key, -(-sequences // at_once))
    with jax.enable_x64(dtype == "float64"):
        batches = [draw_batch(task, round_key, at_once) for round_key in keys]
        if compiled and runs_sparse(layers):
            drawn = (np.concatenate(part)[:sequences] for part in zip(*batches, strict=True))
            each = sparse_shares(layers, embeddings, codes, task, *drawn, dtype=dtype)
        else:
            run = layers if compiled else AttentionOnly(codes.keys.shape[1], codes.values.shape[1])
            table, W, b = (jnp.asarray(array, dtype) for array in (embeddings, codes.W, codes.b))
            counts = [right_answers(run, table, W, b, task, *batch) for batch in batches]
            each = np.concatenate(counts)[:sequences] / task.pairs
    # A few sequences may agree by luck: independent answers have at least the binomial error.
    binomial = np.sqrt(predicted * (1 - predicted) / (sequences * task.pairs))
    spread = each.std(ddof=1) / np.sqrt(sequences) if sequences > 1 else 0.0
    error = float(max(binomial, spread))
    return Measured(task.pairs, task.length, sequences, float(each.mean()), error, predicted)


@eqx.filter_jit
def draw_batch(task: MQAR, key: PRNGKeyArray, batch: int) -> tuple[Array, Array]:
    symbols, labels = task.draw(key, batch)
    return symbols, labels


class AttentionOnly(eqx.Module):
    """The attention of the memory, with the last key read from the sequence itself."""

    keys: int = eqx.field(static=True)
    values: int = eqx.field(static=True)

    def outputs(
        self, xs: Float[Array, "time d"], places: Int[Array, " answers"], *, stacked: bool
    ) -> Float[Array, "answers dv"]:
        codes, values = xs[:, : self.keys], xs[:, self.keys : self.keys + self.values]
        # Token by token a value is stored at the key of the token before it.
        stored = codes if stacked else jnp.concatenate([0 * codes[:1], codes[:-1]])
        scores = codes[places] @ stored.T
        past = jnp.arange(len(xs)) <= places[:, None]
        return jnp.where(past, scores, 0) @ values


@eqx.filter_jit
def right_answers(
    layers: tuple[Layer, ...] | AttentionOnly,
    embeddings: Float[Array, "symbols d"],
    W: Float[Array, "all_values dv"],
    b: Float[Array, " all_values"],
    task: MQAR,
    symbols: Symbols,
    labels: Int[Array, "batch time"],
) -> Int[Array, " batch"]:
    """Return the number of right answers of each sequence."""
    # The places that are scored, in their order: each sequence has as many as pairs.
    places = jnp.argsort(labels == NOT_SCORED, axis=1, stable=True)[:, : task.pairs]
    answers = jnp.take_along_axis(labels, places, axis=1)
    answers = answers if task.stacked else answers - task.half

    def count(symbols: Array, places: Array, answers: Array) -> Array:
        xs = embed(embeddings, symbols, task)
        if isinstance(layers, AttentionOnly):
            outputs = layers.outputs(xs, places, stacked=task.stacked)
        else:
            outputs = scored_outputs(layers, xs, places)
        return jnp.sum(jnp.argmax(outputs @ W.T + b, axis=1) == answers)

    # TF32 would round the products on a GPU to ten bits.
    with jax.default_matmul_precision("highest"):
        return jax.vmap(count)(symbols, places, answers)


def embed(embeddings: Array, symbols: Array, task: MQAR) -> Float[Array, "time d"]:
    """Return the codes of a sequence; stacked, the sum of a key's and a value's."""
    if not task.stacked:
        return embeddings[symbols]
    value = jnp.where((symbols[:, 1] == EMPTY)[:, None], 0, embeddings[task.half + symbols[:, 1]])
    return embeddings[symbols[:, 0]] + value


def scored_outputs(
    layers: tuple[Layer, ...], xs: Float[Array, "time d"], places: Int[Array, " answers"]
) -> Float[Array, "answers d_out"]:
    """Return the outputs at some places; the last layer's are not computed anywhere else."""
    *before, last = layers
    for layer in before:
        xs = layer(xs)
    if not isinstance(last, RecurrentLayer):
        return last(xs)[places]
    us = last.enter(xs)
    states = last.states(last.write(us))
    return last.read(states[places], us[places])
