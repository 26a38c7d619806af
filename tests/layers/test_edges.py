"""Layers with decays at the ends of [0, 1], without neurons, or tuned to float64."""

import equinox as eqx
import jax
import jax.numpy as jnp
import layer_cases as cases
import numpy as np
import pytest
from naive import naive, naive_gradients
from refusals import refused

import underhood as uh
from underhood.common.decay import NU_ONE, NU_ZERO

pytestmark = pytest.mark.usefixtures("x64")

# --- decays at the ends of [0, 1]


def decayed_attention(rng, decay):
    drawn = cases.weights(rng, "W_V [5 3], W_K W_Q [4 3]")
    return uh.LinearAttention(**drawn, decay=decay)


def decayed_lru(rng, decay):
    return eqx.tree_at(lambda layer: layer.nu, cases.lru(rng), decayed_attention(rng, decay).nu)


WITH_DECAY = {
    "attention": decayed_attention,
    "gated RNN": cases.gated_rnn,
    "side-gated RNN": cases.side_gated_rnn,
    "LRU": decayed_lru,
}


@pytest.mark.parametrize("time", [5, 70])
@pytest.mark.parametrize("name", WITH_DECAY)
def test_decays_of_exactly_0_and_1(name, time):
    decay = np.array([0.0, 1.0, 0.5, 0.0, 1.0])
    layer = cases.in_jax(WITH_DECAY[name](np.random.default_rng(5), decay))
    xs = cases.sequence(time)
    np.testing.assert_array_equal(layer.decay[np.array([0, 1, 3, 4])], [0, 1, 0, 1])
    assert cases.relative_error(eqx.filter_jit(layer)(xs), naive(layer, xs)) < cases.CLOSE
    slopes = eqx.filter_jit(cases.gradients)(cases.parallel, layer, xs)
    expected = naive_gradients(layer, xs, cases.projection(layer, time))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(slopes))
    cases.assert_same_leaves(slopes, expected)


ARRAYS = pytest.mark.parametrize("array", [np.asarray, jnp.asarray], ids=["numpy", "jax"])


@ARRAYS
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["attention", "gated RNN", "side-gated RNN"])
def test_decay_is_what_was_given(name, dtype, array):
    # In float32 the second is 0 and the last but one is 1.
    for values in ([0, 1e-300, 1e-9, 0.3, 1], [0, 1e-300, 0.3, 1 - 1e-12, 1]):
        given = np.array(values, dtype)
        layer = WITH_DECAY[name](np.random.default_rng(6), array(given))
        assert layer.decay.dtype == dtype
        read = np.asarray(layer.decay, float)
        # ν is known to about eps·(1 + |ν|), and dλ/λ = log λ · dν; λ itself is rounded once more.
        inside = np.clip(given.astype(float), 1e-320, 1 - 1e-16)
        nu = np.log(-np.log(inside))
        tolerance = 2 * np.finfo(dtype).eps * (1 + np.abs(np.log(inside)) * (1 + np.abs(nu)))
        assert np.all(np.abs(read - given) <= tolerance * given)
        np.testing.assert_array_equal(read[[0, -1]], [0, 1])


def test_nu_beyond_the_ends_is_clipped():
    layer = cases.gated_rnn(np.random.default_rng(7))
    far = eqx.tree_at(lambda layer: layer.nu, layer, np.array([-1e3, NU_ONE, 0.0, NU_ZERO, 1e3]))
    np.testing.assert_array_equal(far.decay, [1, 1, np.exp(-1), 0, 0])


# --- layers without neurons


def empty_gated_rnn(rng, hidden=0, gated=0):
    gates = f"W_in_m W_in_x [{hidden} 4], W_out_m W_out_x [{gated} {hidden}], D [2 {gated}]"
    return uh.GatedRNN(**cases.weights(rng, gates), decay=np.ones(hidden))


def init_of(kind, **sizes):
    return lambda rng: kind.init(**sizes, key=jax.random.key(0))


WITHOUT_NEURONS = {
    "attention, d_k = 0": lambda rng: cases.attention(rng, d_k=0),
    "attention, d_v = 0": lambda rng: cases.attention(rng, d_v=0),
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
    layer = cases.in_jax(WITHOUT_NEURONS[name](np.random.default_rng(8)))
    for time in (1, 70):
        xs = cases.sequence(time)
        for run in (cases.parallel, uh.stream):
            result = eqx.filter_jit(run)(layer, xs)
            assert cases.relative_error(result, naive(layer, xs)) < cases.CLOSE
    expected = naive_gradients(layer, xs, cases.projection(layer, 70))
    cases.assert_same_leaves(eqx.filter_jit(cases.gradients)(cases.parallel, layer, xs), expected)


# --- networks that need float64


def linearised(array):
    """A network that says it needs float64, its weights as `array` makes them."""
    layer = cases.stack(np.random.default_rng(12))
    marked = uh.Stack(layer.embed, layer.layers, layer.readout, needs_x64=True)
    return jax.tree.map(array, marked)


def stepped(layer, xs):
    # The state may come from a call inside enable_x64, so initial_state is no guard for step.
    with jax.enable_x64(True):
        state = layer.initial_state()
    return layer.step(state, xs[0])


RUNS = {
    "call": cases.parallel,
    "jit": eqx.filter_jit(cases.parallel),
    "jit, weights closed over": lambda layer, xs: jax.jit(lambda xs: layer(xs))(xs),
    "vmap": lambda layer, xs: jax.vmap(layer)(xs[None]),
    "stream": uh.stream,
    "initial_state": lambda layer, xs: layer.initial_state(),
    "step": stepped,
}


@ARRAYS
@pytest.mark.parametrize("name", RUNS)
def test_weights_for_float64_refuse_to_run_in_float32(name, array):
    layer, xs = linearised(array), np.ones((4, cases.D_IN), np.float32)
    with jax.enable_x64(False), refused("enable_x64"):
        RUNS[name](layer, jnp.asarray(xs))


@ARRAYS
def test_weights_for_float64_run_in_float64(array):
    layer, xs = linearised(array), cases.sequence(9)
    for run in (cases.parallel, eqx.filter_jit(cases.parallel), uh.stream):
        assert cases.relative_error(run(layer, xs), naive(layer, xs)) < cases.CLOSE


def test_the_same_weights_unmarked_run_in_float32():
    layer = cases.stack(np.random.default_rng(12))
    xs = jnp.ones((4, cases.D_IN))
    with jax.enable_x64(False):
        outputs = layer(xs.astype(jnp.float32))
    assert outputs.dtype == jnp.float32
    assert cases.relative_error(outputs.astype(float), naive(layer, xs)) < 1e-5
