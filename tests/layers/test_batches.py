"""Many sequences at once: the fast paths give what vmap gives, in outputs and gradients."""

from functools import cache, partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import underhood as uh
from underhood.layers import batch_outputs, last_outputs
from underhood.layers.base.recurrence import CHUNK, UNROLLED

pytestmark = pytest.mark.usefixtures("x64")

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


# Functions, because collecting the tests makes no layers.
LAYERS = {
    "gated": lambda: uh.GatedRNN.init(d_in=3, hidden=6, gated=4, d_out=2, key=KEY),
    "gated, one neuron": lambda: uh.GatedRNN.init(d_in=1, hidden=1, gated=1, d_out=1, key=KEY),
    "dense": lambda: uh.DenseGatedRNN.init(d_in=3, hidden=6, gated=4, d_out=2, key=KEY),
    "side": lambda: uh.SideGatedRNN.init(d_in=3, hidden=6, d_out=2, key=KEY),
    "lru": lambda: uh.LRU.init(d_in=3, hidden=6, d_out=2, key=KEY),
    "lru in-out": lambda: uh.LRUInOut.init(d_in=3, hidden=6, d_out=2, key=KEY),
    "lru mlp": lambda: uh.LRUInOutMLP.init(
        d_in=3, hidden=6, d_out=2, key=KEY, activation="softplus"
    ),
    "lstm": lambda: uh.LSTM.init(d_in=3, hidden=5, key=KEY),
    "gru": lambda: uh.GRU.init(d_in=3, hidden=5, key=KEY),
    "gru, reset after": lambda: uh.GRU.init(d_in=3, hidden=5, key=KEY, reset="after"),
    "attention": lambda: uh.LinearAttention.init(d_in=3, d_v=2, key=KEY),
    "heads": lambda: uh.MultiHead.init(d_in=3, heads=2, key=KEY),
    "mamba": lambda: uh.Mamba.init(d_in=3, hidden=4, d_out=2, key=KEY),
    "mamba block": lambda: uh.MambaBlock.init(d_in=3, d_out=2, key=KEY),
    "stack of lstm": lambda: stack(uh.LSTM),
    "stack of lru": lambda: stack(uh.LRU, depth=1),
    "foreign": lambda: Foreign(jnp.ones((2, 3))),
}


@cache
def layer_of(name):
    with jax.enable_x64(False):
        return LAYERS[name]()


# Compiled whole, because that is faster than one operation after the other.
@eqx.filter_jit
def with_gradients(run, layer, xs):
    """Outputs, and the gradients of a nonlinear function of them."""

    def energy(layer, xs):
        ys = run(layer, xs)
        return jnp.sum(jnp.sin(ys)), ys

    (_, ys), slopes = jax.value_and_grad(energy, argnums=(0, 1), has_aux=True)(layer, xs)
    return ys, slopes


def assert_same(name, time, pairs):
    """Outputs and gradients of the functions in each pair."""
    layer = jax.tree.map(lambda leaf: leaf.astype(float), layer_of(name))
    xs = jax.random.normal(jax.random.key(1), (4, time, getattr(layer, "d_in", 3)))
    for pair in pairs:
        result, expected = (with_gradients(run, layer, xs) for run in pair)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-11), result, expected)


def by_vmap(layer, xs):
    return jax.vmap(layer)(xs)


@pytest.mark.parametrize(
    ("name", "time"), [*((name, 7) for name in LAYERS), ("gated", 1), ("lstm", 1)]
)
def test_batches_are_what_vmap_gives(name, time):
    at_end = (last_outputs, lambda layer, xs: by_vmap(layer, xs)[:, -1])
    assert_same(name, time, [(batch_outputs, by_vmap), at_end])


@pytest.mark.parametrize("name", LAYERS)
def test_an_accelerators_forms_give_the_same(name):
    # Longer than what is unrolled, and no multiple of it.
    assert_same(name, UNROLLED + 5, [(partial(batch_outputs, backend="gpu"), by_vmap)])


@pytest.mark.parametrize("name", [name for name in LAYERS if name != "foreign"])
@pytest.mark.parametrize("read", [batch_outputs, last_outputs])
def test_every_layer_of_ours_is_traced_for_the_backend_asked_for(name, read):
    # Attention has a recurrence between chunks only.
    xs = jnp.ones((2, CHUNK + 1, layer_of(name).d_in))

    def traced(**options) -> str:
        return str(jax.make_jaxpr(lambda layer, xs: read(layer, xs, **options))(layer_of(name), xs))

    assert traced() == traced(backend="cpu") != traced(backend="gpu")
