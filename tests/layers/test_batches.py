"""Many sequences at once: the fast paths give what vmap gives, in outputs and gradients."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import underhood as uh
from underhood.layers import batch_outputs, batches, gated_rnn, last_outputs
from underhood.layers.base.recurrence import UNROLLED

pytestmark = pytest.mark.usefixtures("x64", "quick_compile")

KEY = jax.random.key(0)


def stack(kind, depth=2, **more):
    def make(width, *, key):
        sizes = {} if kind in (uh.LSTM, uh.GRU) else {"d_out": width}
        return kind.init(d_in=width, hidden=width, key=key, **sizes, **more)

    return uh.Stack.init(make, d_in=3, hidden=5, d_out=2, depth=depth, key=KEY)


class Foreign(eqx.Module):
    """A layer of somebody else's, with no rule of its own."""

    W: jax.Array

    def __call__(self, xs):
        return jnp.cumsum(jnp.tanh(xs @ self.W.T), axis=0)


LAYERS = {
    "gated": uh.GatedRNN.init(d_in=3, hidden=6, gated=4, d_out=2, key=KEY),
    "gated, one neuron": uh.GatedRNN.init(d_in=1, hidden=1, gated=1, d_out=1, key=KEY),
    "dense": uh.DenseGatedRNN.init(d_in=3, hidden=6, gated=4, d_out=2, key=KEY),
    "side": uh.SideGatedRNN.init(d_in=3, hidden=6, d_out=2, key=KEY),
    "lru": uh.LRU.init(d_in=3, hidden=6, d_out=2, key=KEY),
    "lru in-out": uh.LRUInOut.init(d_in=3, hidden=6, d_out=2, key=KEY),
    "lru mlp": uh.LRUInOutMLP.init(d_in=3, hidden=6, d_out=2, key=KEY, activation="softplus"),
    "lstm": uh.LSTM.init(d_in=3, hidden=5, key=KEY),
    "gru": uh.GRU.init(d_in=3, hidden=5, key=KEY),
    "attention": uh.LinearAttention.init(d_in=3, d_v=2, key=KEY),
    "stack of lstm": stack(uh.LSTM),
    "stack of lru": stack(uh.LRU, depth=1),
    "foreign": Foreign(jnp.ones((2, 3))),
}


# Compiled whole, because that is faster than one operation after the other.
@eqx.filter_jit
def with_gradients(run, layer, xs):
    """Outputs, and the gradients of a nonlinear function of them."""

    def energy(layer, xs):
        ys = run(layer, xs)
        return jnp.sum(jnp.sin(ys)), ys

    (_, ys), slopes = jax.value_and_grad(energy, argnums=(0, 1), has_aux=True)(layer, xs)
    return ys, slopes


@pytest.mark.parametrize(
    ("name", "time"), [*((name, 7) for name in LAYERS), ("gated", 1), ("lstm", 1)]
)
def test_batches_are_what_vmap_gives(name, time):
    layer = jax.tree.map(lambda leaf: leaf.astype(float), LAYERS[name])
    d_in = getattr(layer, "d_in", 3)
    xs = jax.random.normal(jax.random.key(1), (4, time, d_in))
    expected = with_gradients(lambda layer, xs: jax.vmap(layer)(xs), layer, xs)
    found = with_gradients(batch_outputs, layer, xs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-11), found, expected)
    at_end = with_gradients(lambda layer, xs: jax.vmap(layer)(xs)[:, -1], layer, xs)
    found = with_gradients(last_outputs, layer, xs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-11), found, at_end)


@pytest.mark.parametrize("name", ["lstm", "gru", "dense", "stack of lstm"])
def test_loops_unrolled_as_on_an_accelerator_give_the_same(name, monkeypatch):
    layer = jax.tree.map(lambda leaf: leaf.astype(float), LAYERS[name])
    # No multiple of what is unrolled, and longer than that.
    xs = jax.random.normal(jax.random.key(1), (4, UNROLLED + 5, layer.d_in))
    expected = with_gradients(lambda layer, xs: jax.vmap(layer)(xs), layer, xs)
    asked = []
    for module in (batches, gated_rnn):
        monkeypatch.setattr(
            module, "unrolled", lambda time: asked.append(time) or min(time, UNROLLED)
        )
    found = with_gradients(lambda layer, xs: batch_outputs(layer, xs), layer, xs)
    assert set(asked) == {UNROLLED + 5}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-11), found, expected)
