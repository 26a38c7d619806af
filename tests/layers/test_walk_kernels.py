"""Kernels of LSTM and GRU, interpreted on the CPU: outputs and gradients are the layers' own."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from underhood.layers import GRU, LSTM, Stack, batch_outputs
from underhood.layers.kernels import choice
from underhood.layers.kernels.blocks import segments
from underhood.layers.kernels.products import ProductTiles, rows_product

# batch, time, d_in, hidden
SIZES = [(3, 4, 2, 5), (33, 2, 17, 20), (1, 1, 1, 1)]
LAYERS = {
    "LSTM": (LSTM, {}),
    "GRU, reset before": (GRU, {"reset": "before"}),
    "GRU, reset after": (GRU, {"reset": "after"}),
}


def close(value, expected):
    largest = max(float(jnp.max(jnp.abs(expected))), 1e-30)
    return float(jnp.max(jnp.abs(value - expected))) / largest < 3e-6


def layer_of(name, d_in, hidden):
    kind, options = LAYERS[name]
    layer = kind.init(d_in=d_in, hidden=hidden, key=jax.random.key(0), **options)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), layer)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("size", SIZES)
def test_outputs_and_gradients_are_the_layers_own(name, size):
    batch, time, d_in, hidden = size
    layer = layer_of(name, d_in, hidden)
    xs = jax.random.normal(jax.random.key(1), (batch, time, d_in))
    weights = jax.random.normal(jax.random.key(2), (batch, time, hidden))

    def total(layer, xs, backend):
        outputs = batch_outputs(layer, xs, backend=backend)
        return jnp.sum(outputs * weights), outputs

    def both(backend):
        slopes = jax.value_and_grad(lambda *given: total(*given, backend), (0, 1), has_aux=True)
        return jax.jit(slopes)(layer, xs)

    (_, outputs), slopes = both("interpret")
    (_, expected), expected_slopes = both("cpu")
    assert close(outputs, expected)
    assert all(jax.tree.leaves(jax.tree.map(close, slopes, expected_slopes)))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(("depth", "bias"), [(1, True), (2, True), (1, False)])
def test_a_layer_reads_what_its_embedding_reads(name, depth, bias):
    kind, options = LAYERS[name]

    def make(width, *, key):
        return kind.init(d_in=width, hidden=width, key=key, **options)

    stack = Stack.init(make, d_in=2, hidden=5, d_out=3, depth=depth, key=jax.random.key(0))
    ones = jnp.ones(5) if bias else None
    stack = eqx.tree_at(lambda stack: stack.embed.b, stack, ones)
    xs = jax.random.normal(jax.random.key(1), (3, 4, 2))
    weights = jax.random.normal(jax.random.key(2), (3, 4, 3))

    def total(stack, backend):
        return jnp.sum(batch_outputs(stack, xs, backend=backend) * weights)

    slopes = jax.jit(jax.grad(partial(total, backend="interpret")))(stack)
    expected = jax.jit(jax.grad(partial(total, backend="cpu")))(stack)
    assert all(jax.tree.leaves(jax.tree.map(close, slopes, expected)))


def test_members_of_an_ensemble_do_not_mix():
    layers = [layer_of("LSTM", 2, 5), jax.tree.map(lambda w: 2 * w, layer_of("LSTM", 2, 5))]
    xs = jax.random.normal(jax.random.key(1), (2, 3, 4, 2))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
    together = jax.vmap(lambda layer, xs: batch_outputs(layer, xs, backend="interpret"))
    for outputs, layer, sequences in zip(together(stacked, xs), layers, xs, strict=True):
        assert close(outputs, batch_outputs(layer, sequences, backend="cpu"))


@pytest.mark.parametrize(("tokens", "d_in", "d_out"), [(50, 20, 33), (1, 1, 1), (130, 70, 65)])
def test_a_product_and_its_gradients(tokens, d_in, d_out):
    tiles = ProductTiles(interpret=True)
    keys = jax.random.split(jax.random.key(0), 3)
    xs, W = jax.random.normal(keys[0], (tokens, d_in)), jax.random.normal(keys[1], (d_out, d_in))
    weights = jax.random.normal(keys[2], (tokens, d_out))
    assert close(rows_product(xs, W, tiles), xs @ W.T)
    slopes = jax.grad(lambda xs, W: jnp.sum(weights * rows_product(xs, W, tiles)), (0, 1))(xs, W)
    assert close(slopes[0], weights @ W)
    assert close(slopes[1], weights.T @ xs)


def test_segments_fill_a_size_with_powers_of_two():
    for size in range(16, 1024, 16):
        blocks = segments(size)
        assert [start for start, _ in blocks] == [0, *np.cumsum([w for _, w in blocks])[:-1]]
        assert sum(width for _, width in blocks) == size
        assert all(width & (width - 1) == 0 and width >= 16 for _, width in blocks)


def test_kernels_are_not_used_where_they_do_not_apply():
    narrow, wide = layer_of("LSTM", 2, 5), layer_of("LSTM", 2, choice.WIDEST_WALK + 1)
    xs = jnp.zeros((3, 4, 2))
    assert choice.kernels_run(narrow, xs, "nvidia")
    assert choice.kernels_run(narrow, xs, "interpret")
    assert not choice.kernels_run(narrow, xs, "cpu")
    assert not choice.kernels_run(narrow, xs, "gpu")
    assert not choice.kernels_run(narrow, xs, None)
    assert not choice.kernels_run(wide, xs, "nvidia")
    assert not choice.kernels_run(narrow, xs[:0], "nvidia")
    with jax.enable_x64(True):
        assert not choice.kernels_run(narrow, jnp.zeros((3, 4, 2), jnp.float64), "nvidia")
