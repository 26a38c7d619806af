"""Scores of known layers, to compare a score with.

Four layers are scored: the identity, which has no memory; a random gated RNN; the layer itself with
matrices drawn anew; and a compiled network, which is attention. `baselines.json` holds scores on
N(0, I) tokens at d = 3 and 32 tokens, written by `python benchmarks/scores.py --write`.
`attention_score(..., baselines=True)` measures all four on the same kind of tokens as the layer.
"""

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray, PyTree

from underhood.analysis.scoring.layer_arrays import AnyLayer
from underhood.constructions import compile as compile_attention
from underhood.layers import GatedRNN, LinearAttention

STORED = Path(__file__).with_name("baselines.json")
RANDOM_WIDTH = 16


@cache
def stored_baselines() -> Mapping[str, float]:
    """Return the stored scores by the names of their layers."""
    scores: dict[str, float] = json.loads(STORED.read_text())["baselines"]
    return MappingProxyType(scores)


def baseline_layers(
    layer: AnyLayer, *, d_in: int, d_out: int, key: PRNGKeyArray
) -> dict[str, AnyLayer]:
    """Return the known layers of the given sizes; `untrained` only for a layer with matrices."""
    gated_key, attention_key, layer_key = jax.random.split(key, 3)
    sizes = {"d_in": d_in, "d_out": d_out}
    gated = GatedRNN.init(hidden=RANDOM_WIDTH, gated=RANDOM_WIDTH, key=gated_key, **sizes)
    attention = LinearAttention.init(d_in=d_in, d_v=d_out, key=attention_key)
    layers: dict[str, AnyLayer] = {"identity": identity(d_out), "random": gated}
    if any(eqx.is_inexact_array(leaf) and leaf.ndim > 1 for leaf in jax.tree.leaves(layer)):
        layers["untrained"] = untrained(layer, key=layer_key)
    layers["compiled"] = compile_attention(attention).layer
    return layers


def identity(d_out: int) -> Callable[[Array], Array]:
    """Return the layer that outputs its current token, cut or filled with zeros to `d_out`."""

    def layer(xs: Array) -> Array:
        return jnp.pad(xs, ((0, 0), (0, d_out)))[:, :d_out]

    return layer


def untrained(layer: PyTree, *, key: PRNGKeyArray) -> PyTree:
    """Return the layer with all matrices drawn anew from N(0, 1/columns).

    Vectors, such as decays and biases, stay: so it remembers for as long as before.
    """
    leaves, structure = jax.tree.flatten(layer)
    with jax.enable_x64(True):
        for place, leaf in enumerate(leaves):
            if eqx.is_inexact_array(leaf) and leaf.ndim > 1:
                size = max(leaf.shape[-1], 1) ** -0.5
                drawn = jax.random.normal(jax.random.fold_in(key, place), leaf.shape, leaf.dtype)
                leaves[place] = size * drawn
    return jax.tree.unflatten(structure, leaves)
