"""Students of recall_training: one network per layer and state, from three starts.

    random     every layer by its own `init`
    compiled   codes, attention and compiler of uh.recall.build: dense codes, decoder at the scale
               that is best for Gaussian noise
    noisy      compiled, and Gaussian noise of NOISE times the root mean square of each array

The task is stacked MQAR, so one layer of attention suffices. A student is a Stack: embedding,
recurrent layers, readout. The affine maps that the compiler puts around an LSTM or a GRU are part
of the embedding and the readout, so all starts of a layer and a state have the same shapes.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from underhood.constructions import compile
from underhood.layers import (
    GRU,
    LSTM,
    Affine,
    GatedRNN,
    Layer,
    LinearAttention,
    Mamba,
    Stack,
    batch_outputs,
)
from underhood.layers.base.layer import gaussian
from underhood.recall.building import block_diagonal, memory_attention
from underhood.recall.codes import DENSE_CODES, Codes, make_codes, welch_floor
from underhood.tasks import MQAR

RANDOM, COMPILED, NOISY_START = "random", "compiled", "noisy"
START_NAMES = (RANDOM, COMPILED, NOISY_START)
NOISE = 0.1
SEQUENCES_FOR_SIZE = 64
# Names of layers, and the targets they are compiled to; attention stays what it is.
ATTENTION_LAYER = "linear attention"
TARGET_OF = {
    ATTENTION_LAYER: None,
    "gated RNN": "gated_rnn",
    "Mamba": "mamba",
    "LSTM": "lstm",
    "GRU": "gru",
}
# Products of two signals by sigmoids or tanh with signals of size ε. Order 1 takes the fewest
# neurons: three per number of the memory.
LINEARISED_ORDER = {"LSTM": 1, "GRU": 1}
# A random start takes only the shapes, which do not depend on ε.
ANY_EPSILON = 0.3


@dataclass(frozen=True)
class StudentKind:
    """A layer with a memory of keys·values numbers, a start, and ε where it is linearised."""

    layer: str
    keys: int
    values: int
    start: str
    epsilon: float | None = None

    @property
    def state(self) -> int:
        """Numbers of the memory; an LSTM or a GRU carries more."""
        return self.keys * self.values

    @property
    def name(self) -> str:
        """Return the name of its run, as a part of a folder's."""
        parts = [self.layer.replace(" ", "_").lower(), str(self.state), self.start]
        return "_".join(parts + ([] if self.epsilon is None else [f"{self.epsilon:g}"]))

    def made(self, task: MQAR, *, key: PRNGKeyArray) -> Stack:
        """Return the student before its first step."""
        codes_key, start_key = jax.random.split(key)
        network = compiled_student(self, task, key=codes_key)
        if self.start == RANDOM:
            return random_student(network, task, key=start_key)
        return with_noise(network, key=start_key) if self.start == NOISY_START else network


def student_maker(kind: StudentKind, task: MQAR) -> Any:  # Any: make_student(width, *, key)
    """Return make_student for a kind of student; the width is the size of its memory."""

    def make(width: int, *, key: PRNGKeyArray) -> Stack:
        return kind.made(task, key=key)

    return make


def compiled_student(kind: StudentKind, task: MQAR, *, key: PRNGKeyArray) -> Stack:
    """Return the network without training, as one embedding, its layers and one readout."""
    codes = make_codes(
        DENSE_CODES,
        all_keys=task.all_keys,
        all_values=task.all_values,
        keys=kind.keys,
        values=kind.values,
        rng=np.random.default_rng(np.asarray(jax.random.key_data(key))),
    )
    inner = memory_layer(kind)
    scale = decoder_scale(codes, task)
    embed = Affine(block_diagonal(codes.keys, codes.values).T)
    readout = Affine(scale * codes.W, scale * codes.b)
    layers: tuple[Layer, ...] = (inner,)
    if isinstance(inner, Stack):
        embed, layers, readout = (
            composed(embed, inner.embed),
            inner.layers,
            composed(inner.readout, readout),
        )
    network = Stack(embed, layers, readout)
    return jax.tree.map(lambda array: jnp.asarray(array, "float32"), network)


def composed(first: Affine | None, second: Affine | None) -> Affine:
    """Return one map that applies the first and then the second; None is the identity."""
    if first is None or second is None:
        present = second if first is None else first
        assert present is not None
        return present
    W, b = np.asarray(second.W, np.float64), biases_of(second)
    return Affine(W @ np.asarray(first.W, np.float64), W @ biases_of(first) + b)


def memory_layer(kind: StudentKind) -> Layer:
    """Return the attention of the memory, compiled to the layer in float32."""
    attention = memory_attention(kind.keys, kind.values, stacked=True)
    target = TARGET_OF[kind.layer]
    if target is None:
        return attention
    if kind.layer in LINEARISED_ORDER:
        order = LINEARISED_ORDER[kind.layer]
        epsilon = ANY_EPSILON if kind.epsilon is None else kind.epsilon
        return compile(attention, target, order=order, epsilon=epsilon, dtype="float32").layer
    form = "full" if target == "gated_rnn" else None
    return compile(attention, target, form=form, dtype="float32").layer


def decoder_scale(codes: Codes, task: MQAR) -> float:
    """Return 1/s², which makes the scores log-likelihoods: s² is the noise per number of a value.

    It changes no answer. With codes of length 1 alone the softmax would be almost uniform.
    """
    floor = welch_floor(*codes.keys.shape)
    noise = (task.pairs - 1) * floor / codes.values.shape[1]
    # Without crosstalk any large number serves.
    return 1 / max(noise, 0.01)


def biases_of(part: Affine) -> np.ndarray:
    return np.zeros(part.d_out) if part.b is None else np.asarray(part.b, np.float64)


def random_student(network: Stack, task: MQAR, *, key: PRNGKeyArray) -> Stack:
    """Return a network of the same shapes with random weights.

    A token is two one-hot vectors, so the embedding is drawn from N(0, 1/2): what enters a layer is
    of size 1. The readout is divided by the size of the scores, which depends on the layer: scores
    are of size 1 too.
    """
    assert network.embed is not None and network.readout is not None
    embed_key, readout_key, tokens_key, *keys = jax.random.split(key, len(network.layers) + 3)
    embedding = jax.random.normal(embed_key, network.embed.W.shape) / np.sqrt(2)
    readout = gaussian(readout_key, *network.readout.W.shape)
    zeros = partial(jax.tree.map, jnp.zeros_like)
    layers = [
        random_layer(layer, key=layer_key)
        for layer, layer_key in zip(network.layers, keys, strict=True)
    ]
    student = Stack(
        Affine(embedding, zeros(network.embed.b)), layers, Affine(readout, zeros(network.readout.b))
    )
    size = score_size(student, task.sample(tokens_key, SEQUENCES_FOR_SIZE).inputs)
    return eqx.tree_at(lambda made: made.readout.W, student, readout / jnp.maximum(size, 1e-6))


@eqx.filter_jit
def score_size(student: Stack, inputs: Float[Array, "batch time d_in"]) -> Float[Array, ""]:
    return jnp.std(batch_outputs(student, inputs))


def random_layer(layer: Layer, *, key: PRNGKeyArray) -> Layer:
    """Return a layer of the same kind and sizes by its own `init`."""
    if isinstance(layer, LinearAttention):
        keys, values = layer.W_K.shape[0], layer.W_V.shape[0]
        return LinearAttention.init(d_in=layer.d_in, d_k=keys, d_v=values, key=key)
    if isinstance(layer, LSTM | GRU):
        return type(layer).init(d_in=layer.d_in, hidden=layer.neurons, key=key)
    sizes = {"d_in": layer.d_in, "hidden": layer.neurons, "d_out": layer.d_out}
    if isinstance(layer, Mamba):
        return Mamba.init(**sizes, inner=layer.W_input.shape[0], key=key)
    assert isinstance(layer, GatedRNN)
    return GatedRNN.init(**sizes, gated=layer.gate_width, key=key)


def with_noise(network: PyTree, *, key: PRNGKeyArray) -> PyTree:
    """Return a network with noise in every array, of NOISE times its root mean square."""
    leaves, structure = jax.tree.flatten(network)
    keys = jax.random.split(key, len(leaves))
    noisy = [
        leaf + NOISE * jnp.sqrt(jnp.mean(leaf**2)) * jax.random.normal(noise_key, leaf.shape)
        for leaf, noise_key in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(structure, noisy)
