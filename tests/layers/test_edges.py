"""Layers with decays at the ends of [0, 1], without neurons, or tuned to float64."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from layer_cases import (
    CLOSE,
    D_IN,
    assert_same_leaves,
    attention,
    gated_rnn,
    gradients,
    in_jax,
    lru,
    normal,
    parallel,
    projection,
    relative_error,
    sequence,
    side_gated_rnn,
    stack,
)
from naive import naive, naive_gradients

import underhood as uh
from underhood.common.decay import NU_ONE, NU_ZERO

pytestmark = pytest.mark.usefixtures("x64", "quick_compile")

# --- decays at the ends of [0, 1]


def decayed_attention(rng, decay):
    weights = (normal(rng, rows, 3) for rows in (5, 4, 4))
    return uh.LinearAttention(*weights, decay=decay)


def decayed_lru(rng, decay):
    nu = decayed_attention(rng, decay).nu
    return eqx.tree_at(lambda layer: layer.nu, lru(rng), nu)


WITH_DECAY = {
    "attention": decayed_attention,
    "gated RNN": gated_rnn,
    "side-gated RNN": side_gated_rnn,
    "LRU": decayed_lru,
}


@pytest.mark.parametrize("time", [5, 70])
@pytest.mark.parametrize("name", WITH_DECAY)
def test_decays_of_exactly_0_and_1(name, time):
    decay = np.array([0.0, 1.0, 0.5, 0.0, 1.0])
    layer = in_jax(WITH_DECAY[name](np.random.default_rng(5), decay))
    xs = sequence(time)
    np.testing.assert_array_equal(layer.decay[np.array([0, 1, 3, 4])], [0, 1, 0, 1])
    assert relative_error(eqx.filter_jit(layer)(xs), naive(layer, xs)) < CLOSE
    slopes = eqx.filter_jit(gradients)(parallel, layer, xs)
    expected = naive_gradients(layer, xs, projection(layer, time))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(slopes))
    assert_same_leaves(slopes, expected)


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["attention", "gated RNN", "side-gated RNN"])
def test_decay_is_what_was_given(name, dtype, array):
    # In float32 the second is 0 and the fifth is 1.
    given = np.array([0, 1e-300, 1e-9, 0.3, 1 - 1e-12, 1], dtype)
    layer = with_six_decays(name, array(given))
    assert layer.decay.dtype == dtype
    read = np.asarray(layer.decay, float)
    # ν is known to about eps·(1 + |ν|), and dλ/λ = log λ · dν; λ itself is rounded once more.
    inside = np.clip(given.astype(float), 1e-320, 1 - 1e-16)
    nu = np.log(-np.log(inside))
    tolerance = 2 * np.finfo(dtype).eps * (1 + np.abs(np.log(inside)) * (1 + np.abs(nu)))
    assert np.all(np.abs(read - given) <= tolerance * given)
    np.testing.assert_array_equal(read[[0, -1]], [0, 1])


def with_six_decays(name, decay):
    rng = np.random.default_rng(6)
    if name == "attention":
        return uh.LinearAttention(
            normal(rng, 6, 3), normal(rng, 4, 3), normal(rng, 4, 3), decay=decay
        )
    weights = {"W_in_m": normal(rng, 6, 4), "W_in_x": normal(rng, 6, 4), "D": normal(rng, 2, 6)}
    if name == "side-gated RNN":
        return uh.SideGatedRNN(**weights, W_side=normal(rng, 6, 4), decay=decay)
    gates = {"W_out_m": normal(rng, 6, 6), "W_out_x": normal(rng, 6, 6)}
    return uh.GatedRNN(**weights, **gates, decay=decay)


def test_nu_beyond_the_ends_is_clipped():
    layer = gated_rnn(np.random.default_rng(7))
    far = eqx.tree_at(lambda layer: layer.nu, layer, np.array([-1e3, NU_ONE, 0.0, NU_ZERO, 1e3]))
    np.testing.assert_array_equal(far.decay, [1, 1, np.exp(-1), 0, 0])


# --- layers without neurons


def empty_attention(rng):
    return attention(rng, d_k=0)


def valueless_attention(rng):
    return attention(rng, d_v=0)


def empty_gated_rnn(rng, hidden=0, gated=0):
    return uh.GatedRNN(
        W_in_m=normal(rng, hidden, 4),
        W_in_x=normal(rng, hidden, 4),
        decay=np.ones(hidden),
        W_out_m=normal(rng, gated, hidden),
        W_out_x=normal(rng, gated, hidden),
        D=normal(rng, 2, gated),
    )


def init_of(kind, **sizes):
    return lambda rng: kind.init(**sizes, key=jax.random.key(0))


WITHOUT_NEURONS = {
    "attention, d_k = 0": empty_attention,
    "attention, d_v = 0": valueless_attention,
    "gated RNN": empty_gated_rnn,
    "gated RNN, no gates": lambda rng: empty_gated_rnn(rng, hidden=3),
    "gated RNN, no neurons": lambda rng: empty_gated_rnn(rng, gated=3),
    "side-gated RNN": init_of(uh.SideGatedRNN, d_in=3, hidden=0, d_out=2),
    "gated RNN, init": init_of(uh.GatedRNN, d_in=3, hidden=0, gated=0, d_out=2),
    "dense gated RNN": init_of(uh.DenseGatedRNN, d_in=3, hidden=0, gated=0, d_out=2),
    "LRU": init_of(uh.LRU, d_in=3, hidden=0, d_out=2),
    "LRU in-out": init_of(uh.LRUInOut, d_in=3, hidden=0, d_out=2),
    "LRU in-out MLP": init_of(uh.LRUInOutMLP, d_in=3, hidden=0, d_out=2),
    "Mamba": init_of(uh.Mamba, d_in=3, hidden=0, d_out=2),
    "Mamba block": init_of(uh.MambaBlock, d_in=3, d_out=2, state=0),
    "LSTM": init_of(uh.LSTM, d_in=3, hidden=0),
    "GRU": init_of(uh.GRU, d_in=3, hidden=0),
}


@pytest.mark.parametrize("name", WITHOUT_NEURONS)
def test_layers_without_neurons_run(name):
    layer = in_jax(WITHOUT_NEURONS[name](np.random.default_rng(8)))
    for time in (1, 70):
        xs = sequence(time)
        for run in (parallel, uh.stream):
            assert relative_error(eqx.filter_jit(run)(layer, xs), naive(layer, xs)) < CLOSE
    expected = naive_gradients(layer, xs, projection(layer, 70))
    assert_same_leaves(eqx.filter_jit(gradients)(parallel, layer, xs), expected)


# --- networks that need float64


def linearised(array):
    """A network that says it needs float64, its weights as `array` makes them."""
    layer = stack(np.random.default_rng(12))
    marked = uh.Stack(layer.embed, layer.layers, layer.readout, needs_x64=True)
    return jax.tree.map(array, marked)


ARRAYS = pytest.mark.parametrize("array", [np.asarray, jnp.asarray], ids=["numpy", "jax"])

RUNS = {
    "call": parallel,
    "jit": eqx.filter_jit(parallel),
    "jit, weights closed over": lambda layer, xs: jax.jit(lambda xs: layer(xs))(xs),
    "vmap": lambda layer, xs: jax.vmap(layer)(xs[None]),
    "stream": uh.stream,
    "initial_state": lambda layer, xs: layer.initial_state(),
}


@ARRAYS
@pytest.mark.parametrize("name", RUNS)
def test_weights_for_float64_refuse_to_run_in_float32(name, array):
    layer, xs = linearised(array), np.ones((4, D_IN), np.float32)
    with jax.enable_x64(False), pytest.raises(uh.BadInput, match="enable_x64") as caught:
        RUNS[name](layer, jnp.asarray(xs))
    assert "\n" not in str(caught.value)


@ARRAYS
def test_weights_for_float64_refuse_to_step_in_float32(array):
    # The state may come from a call inside enable_x64, so initial_state is no guard for step.
    layer = linearised(array)
    state = layer.initial_state()
    with jax.enable_x64(False), pytest.raises(uh.BadInput, match="enable_x64"):
        layer.step(state, jnp.ones(D_IN))


@ARRAYS
def test_weights_for_float64_run_in_float64(array):
    layer, xs = linearised(array), sequence(9)
    for run in (parallel, eqx.filter_jit(parallel), uh.stream):
        assert relative_error(run(layer, xs), naive(layer, xs)) < CLOSE


def test_the_same_weights_unmarked_run_in_float32():
    layer = stack(np.random.default_rng(12))
    with jax.enable_x64(False):
        outputs = layer(jnp.ones((4, D_IN)))
    assert outputs.dtype == jnp.float32
    assert relative_error(outputs.astype(float), naive(layer, jnp.ones((4, D_IN)))) < 1e-5
