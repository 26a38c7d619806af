"""Layers whose weights try to refute a theorem: random ones, fitted to the source by Adam.

The token [x;1] enters, so that biases and constant gates are possible everywhere.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from underhood.common.arrays import in_float64
from underhood.constructions.atlas.facts import FACTS, TWO_MIN_GRUS
from underhood.constructions.atlas.sources import AnySource, example_of, quick_jit, run_source
from underhood.constructions.atlas.witnesses import Combination
from underhood.constructions.sources.gated_rnn import append_constant
from underhood.layers import (
    GRU,
    LSTM,
    RGLRU,
    Affine,
    GatedRNN,
    Layer,
    LRUInOut,
    MinGRU,
    MultiHead,
    SideGatedRNN,
    Stack,
)

FIT_STEPS, FIT_RATE, FIT_BATCH, FIT_LENGTH = 120, 0.03, 16, 6
# Steps of the fit to a witness's own sequences, and how sharply it looks at the worst of them.
CLOSEST_STEPS, SHARPNESS_OF_WORST = 3000, 50.0
HEADS = {"heads": 2, "d_k": 3, "d_v": 3}
Make = Callable[[int, int, PRNGKeyArray], Layer]


def mixer(target: str, **extra: int) -> Make:
    kind: Any = FACTS[target].kind  # Any: layers with `heads`, d_k and d_v
    return lambda d_in, d_out, key: kind.init(d_in=d_in, d_out=d_out, **HEADS, **extra, key=key)


def two_layers(make: Make) -> Make:
    def stacked(d_in: int, d_out: int, key: PRNGKeyArray) -> Layer:
        below, above = jax.random.split(key)
        return Stack(None, [make(d_in, 8, below), make(8, d_out, above)], None)

    return stacked


def with_readout(make_layer: Callable[[int, PRNGKeyArray], Layer]) -> Make:
    def stacked(d_in: int, d_out: int, key: PRNGKeyArray) -> Layer:
        return Stack.init(
            lambda width, *, key: make_layer(width, key),
            d_in=d_in,
            hidden=12,
            d_out=d_out,
            key=key,
        )

    return stacked


def make_min_gru(d_in: int, d_out: int, key: PRNGKeyArray) -> Layer:
    return MinGRU.init(d_in=d_in, hidden=16, d_out=d_out, key=key)


def make_two_attentions(d_in: int, d_out: int, key: PRNGKeyArray) -> Layer:
    below, above = jax.random.split(key)
    first = MultiHead.init(d_in=d_in, heads=2, d_v=3, d_k=2, key=below)
    second = MultiHead.init(d_in=first.d_out, heads=1, d_v=d_out, d_k=2, key=above)
    return Stack(None, [first, second], None)


MAKERS: dict[str, Make] = {
    "gated_rnn": lambda d_in, d_out, key: GatedRNN.init(
        d_in=d_in, hidden=12, gated=12, d_out=d_out, key=key
    ),
    "side_gated_rnn": lambda d_in, d_out, key: SideGatedRNN.init(
        d_in=d_in, hidden=12, d_out=d_out, key=key
    ),
    "lru_in_out": with_readout(
        lambda width, key: LRUInOut.init(d_in=width, hidden=width, d_out=width, key=key)
    ),
    "lstm": with_readout(lambda width, key: LSTM.init(d_in=width, hidden=width, key=key)),
    "gru": with_readout(lambda width, key: GRU.init(d_in=width, hidden=width, key=key)),
    "decayed_attention": make_two_attentions,
    **{name: mixer(name) for name in ("mamba2", "gated_deltanet", "deltanet", "kda", "lightning")},
    **{"gla": mixer("gla", rank=2), "retnet": mixer("retnet")},
    **{"rwkv6": mixer("rwkv6", rank=2), "rwkv7": mixer("rwkv7", rank=2)},
    **{"mlstm": mixer("mlstm"), "hgrn2": mixer("hgrn2")},
    "rg_lru": lambda d_in, d_out, key: RGLRU.init(d_in=d_in, inner=16, d_out=d_out, key=key),
    "min_gru": make_min_gru,
    TWO_MIN_GRUS: two_layers(make_min_gru),
}


@cache
def adversary(target: str, source: str, seed: int = 0) -> Stack:
    """Return a layer of the target's kind with weights fitted to the example of a source."""
    return fit_adversary(target, example_of(source), seed)[0]


def fit_adversary(target: str, given: AnySource, seed: int = 0) -> tuple[Stack, float]:
    """Fit the weights, and return them with the relative error that is left on the fit's tokens."""
    xs = np.random.default_rng(seed).normal(size=(FIT_BATCH, FIT_LENGTH, given.d_in))
    ys = run_source(given, xs)
    with jax.enable_x64(True):
        made = MAKERS[target](given.d_in + 1, ys.shape[-1], jax.random.key(seed))
        # Steps of Adam are of size FIT_RATE, which suits outputs of size one.
        scale = float(np.max(np.abs(ys)))
        start = Stack(append_constant(given.d_in), [in_float64(made)], None)
        network, error = fit_layers(start, jnp.asarray(xs), jnp.asarray(ys / scale))
        layers = [in_float64(layer) for layer in network.layers]
        return Stack(start.embed, layers, Affine(scale * np.eye(ys.shape[-1]))), float(error)


@quick_jit
def fit_layers(network: Stack, xs: Array, ys: Array) -> tuple[Stack, Array]:
    """Take steps of Adam on the layers, not on the embedding; return them and the error."""

    def loss(layers: tuple[Layer, ...]) -> Array:
        outputs = jax.vmap(Stack(network.embed, layers, None))(xs)
        return jnp.mean((outputs - ys) ** 2)

    layers = adam_steps(loss, network.layers, FIT_STEPS, decaying=False)
    outputs = jax.vmap(Stack(network.embed, layers, None))(xs)
    error = jnp.max(jnp.abs(outputs - ys)) / jnp.max(jnp.abs(ys))
    return Stack(network.embed, layers, None), error


def closest_error(
    target: str, given: AnySource, combination: Combination, seed: int = 0
) -> tuple[float, float]:
    """Fit weights to a witness's sequences alone; return the largest error, and its lower bound.

    Both are relative to the source's largest output, at the last token.
    """
    ys = run_source(given, combination.sequences)[:, -1]
    largest = float(np.max(np.linalg.norm(ys, axis=1)))
    with jax.enable_x64(True):
        made = MAKERS[target](given.d_in + 1, ys.shape[-1], jax.random.key(seed))
        start = Stack(append_constant(given.d_in), [in_float64(made)], None)
        xs = jnp.asarray(combination.sequences)
        error = float(fit_worst(start, xs, jnp.asarray(ys / largest)))
    return error, combination.least_error(partial(run_source, given))


@quick_jit
def fit_worst(network: Stack, xs: Array, ys: Array) -> Array:
    """Take steps of Adam on the largest error of the last token, and return it."""

    def errors(layers: tuple[Layer, ...]) -> Array:
        last = jax.vmap(Stack(network.embed, layers, None))(xs)[:, -1]
        return jnp.linalg.norm(last - ys, axis=1)

    def loss(layers: tuple[Layer, ...]) -> Array:
        off = errors(layers)
        worst = jax.nn.logsumexp(SHARPNESS_OF_WORST * off) / SHARPNESS_OF_WORST
        return worst + jnp.mean(off**2)

    layers = adam_steps(loss, network.layers, CLOSEST_STEPS, decaying=True)
    return jnp.max(errors(layers))


def adam_steps(
    loss: Callable[[tuple[Layer, ...]], Array],
    layers: tuple[Layer, ...],
    steps: int,
    *,
    decaying: bool,
) -> tuple[Layer, ...]:
    """Return the layers after steps of Adam down a loss.

    decaying  let the learning rate fall to 0 along a cosine
    """
    # Only here: `compile` does without it.
    import optax

    optimiser = optax.adam(optax.cosine_decay_schedule(FIT_RATE, steps) if decaying else FIT_RATE)

    def advance(state: tuple, _: None) -> tuple[tuple, None]:
        layers, memory = state
        updates, memory = optimiser.update(jax.grad(loss)(layers), memory)
        return (optax.apply_updates(layers, updates), memory), None

    start = (layers, optimiser.init(layers))
    (layers, _), _ = jax.lax.scan(advance, start, None, length=steps)
    return layers
