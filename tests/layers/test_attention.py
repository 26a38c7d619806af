"""Linear attention's weights as others read them, and methods that JAX compiles as they are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused

import underhood as uh

KEY = jax.random.key(0)
rng = np.random.default_rng(0)
PLAIN = uh.LinearAttention(*(rng.normal(size=(rows, 3)) for rows in (2, 4, 4)))
BIASED = uh.LinearAttention(
    PLAIN.W_V, PLAIN.W_K, PLAIN.W_Q, b_K=rng.normal(size=4), decay=np.array([0.25, 1.0])
)


def test_augmented_weights_carry_the_biases_and_decays_are_ones_unless_given() -> None:
    x = np.append(rng.normal(size=3), 1.0)
    with jax.enable_x64(True):
        for layer in (PLAIN, BIASED, jax.tree.map(jnp.asarray, BIASED)):
            expected = layer.project(jnp.asarray(x[:3]))
            for W, projected in zip(layer.augmented(), expected, strict=True):
                assert W.dtype == np.float64
                np.testing.assert_allclose(W @ x, projected, rtol=1e-12)
        in_float32 = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), BIASED)
        assert all(W.dtype == np.float64 for W in in_float32.augmented())
    np.testing.assert_array_equal(PLAIN.decays, [1.0, 1.0])
    np.testing.assert_allclose(BIASED.decays, [0.25, 1.0], rtol=1e-12)
    assert BIASED.decays.dtype == np.float64


# Functions, because collecting the tests makes no layers.
LAYERS = {
    "attention": lambda: uh.LinearAttention.init(d_in=3, key=KEY),
    "gated": lambda: uh.GatedRNN.init(d_in=3, hidden=4, gated=2, d_out=2, key=KEY),
    "gru": lambda: uh.GRU.init(d_in=3, hidden=4, key=KEY),
    "numpy": lambda: jax.tree.map(np.asarray, uh.LSTM.init(d_in=3, hidden=4, key=KEY)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_jit_takes_a_layer_and_its_methods(name) -> None:
    layer, x, xs = LAYERS[name](), jnp.ones(3), jnp.ones((5, 3))
    state = layer.initial_state()
    expected = layer.step(state, x)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6),
        (jax.jit(layer.step)(state, x), jax.jit(layer)(xs), jax.lax.scan(layer.step, state, xs)[1]),
        (expected, layer(xs), uh.stream(layer, xs)),
    )
    # The same layer again, twice inside one compiled function.
    both = jax.jit(lambda x: [jax.jit(layer.step)(state, x)[1] for _ in range(2)])(x)
    np.testing.assert_allclose(both, [expected[1]] * 2, rtol=1e-6)


def test_jit_tells_layers_of_equal_shape_apart() -> None:
    first = LAYERS["gru"]()
    second = jax.tree.map(lambda leaf: leaf + 1, first)
    state, x = first.initial_state(), jnp.ones(3)
    for layer in (first, second, first):
        outputs = jax.jit(layer.step)(state, x)[1]
        np.testing.assert_allclose(outputs, layer.step(state, x)[1], rtol=1e-6)
    assert first == jax.tree.map(jnp.copy, first)
    assert first != second
    assert first.step == first.step != second.step


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("shape", [(2,), (), (1, 3)])
def test_a_token_of_the_wrong_size_is_refused(name, shape, unhooked) -> None:
    layer = LAYERS[name]()
    with refused("takes one token [3]"):
        layer.step(layer.initial_state(), jnp.ones(shape))
