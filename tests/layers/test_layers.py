"""Layers: parallel = streaming = naive, in outputs and gradients."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from layer_cases import (
    CASES,
    CLOSE,
    D_IN,
    assert_same_leaves,
    attention,
    every_layer,
    gradients,
    gru,
    in_jax,
    lru_in_out_mlp,
    lstm,
    make,
    mamba_block,
    parallel,
    projection,
    relative_error,
    sequence,
    stepped,
)
from naive import naive, naive_gradients

import underhood as uh

pytestmark = pytest.mark.usefixtures("x64", "quick_compile")

# --- parallel = streaming = naive


@pytest.mark.parametrize("time", [1, 2, 64, 65, 200])
@every_layer
def test_outputs_agree(name, time):
    layer, xs = make(name), sequence(time)
    expected = naive(layer, xs)
    assert expected.shape == (time, CASES[name].d_out)
    for run in (eqx.filter_jit(parallel), eqx.filter_jit(uh.stream), stepped):
        assert relative_error(run(layer, xs), expected) < CLOSE, run


# The lengths share a test because they share the naive loop's compiled token.
@every_layer
def test_gradients_agree(name):
    layer = in_jax(make(name))
    for time in (1, 5, 70):
        xs = sequence(time)
        expected = naive_gradients(layer, xs, projection(layer, time))
        for run in (parallel, uh.stream):
            assert_same_leaves(eqx.filter_jit(gradients)(run, layer, xs), expected)


def test_naive_gradients_are_those_of_the_naive_loop():
    layer, xs = in_jax(make("LRU")), sequence(5)
    by_hand = naive_gradients(layer, xs, projection(layer, 5))
    assert_same_leaves(gradients(naive, layer, xs), by_hand)


# On a CPU the recurrence is a scan; accelerators take other forms, tested here as well.
@pytest.mark.parametrize(
    "name",
    ["attention", "attention, biases and decay", "gated RNN", "side-gated RNN", "LRU", "Mamba"],
)
def test_the_forms_that_accelerators_take_agree(name, monkeypatch):
    layer, xs = in_jax(make(name)), sequence(70)
    expected = naive(layer, xs), naive_gradients(layer, xs, projection(layer, 70))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")

    # A function of its own, so that what was compiled for the CPU is not found again.
    def afresh(layer, xs):
        return parallel(layer, xs)

    assert relative_error(eqx.filter_jit(afresh)(layer, xs), expected[0]) < CLOSE
    assert_same_leaves(eqx.filter_jit(gradients)(afresh, layer, xs), expected[1])


def test_parts_that_may_be_left_out():
    rng, xs = np.random.default_rng(13), sequence(9)
    heads = uh.MultiHead([attention(rng) for _ in range(2)])
    for layer in (heads, uh.Stack(None, [heads], None)):
        assert (layer.d_in, layer.d_out) == (3, 4)
        for run in (parallel, stepped):
            assert relative_error(run(layer, xs), naive(layer, xs)) < CLOSE


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "softplus", "tanh"])
def test_every_activation(activation):
    layer, xs = lru_in_out_mlp(np.random.default_rng(0), activation), sequence(9)
    assert relative_error(layer(xs), naive(layer, xs)) < CLOSE


@pytest.mark.parametrize("width", [1, 2, 5])
def test_convolutions_shorter_and_longer_than_the_sequence(width):
    layer, xs = mamba_block(np.random.default_rng(0), width), sequence(3)
    assert relative_error(layer(xs), naive(layer, xs)) < CLOSE
    assert relative_error(stepped(layer, xs), naive(layer, xs)) < CLOSE


@every_layer
def test_sizes(name):
    layer, case = make(name), CASES[name]
    sizes = (layer.d_in, layer.d_out, layer.neurons, layer.gate_width)
    assert sizes == (D_IN, case.d_out, case.neurons, case.gate_width)


@every_layer
def test_no_tokens(name):
    layer, nothing = make(name), jnp.zeros((0, D_IN))
    assert layer(nothing).shape == uh.stream(layer, nothing).shape == (0, CASES[name].d_out)


@every_layer
def test_batches_are_vmap(name):
    layer, batch = make(name), jnp.stack([sequence(7, seed=seed) for seed in (3, 4)])
    alone = jnp.stack([naive(layer, xs) for xs in batch])
    assert relative_error(jax.jit(jax.vmap(layer))(batch), alone) < CLOSE


@pytest.mark.parametrize("allowed", [True, False])
@every_layer
def test_float32_stays_float32(name, allowed):
    # With x64 on, one float64 constant anywhere would turn the result into float64.
    def everything(layer, xs):
        start = layer.initial_state()
        slopes = eqx.filter_grad(lambda both: jnp.sum(both[0](both[1])))((layer, xs))
        return layer(xs), uh.stream(layer, xs), start, layer.step(start, xs[0]), slopes

    with jax.enable_x64(allowed):
        layer, xs = in_jax(make(name), jnp.float32), sequence(70).astype(jnp.float32)
        made = eqx.filter_eval_shape(everything, layer, xs)
        kinds = {leaf.dtype for leaf in jax.tree.leaves(made) if hasattr(leaf, "dtype")}
    assert kinds in ({jnp.dtype("float32")}, {jnp.dtype("float32"), jnp.dtype("complex64")})


# --- other people's LSTM and GRU


def test_lstm_is_the_one_of_equinox():
    layer, xs = lstm(np.random.default_rng(9)), sequence(40)
    cell = eqx.nn.LSTMCell(3, 5, key=jax.random.key(0))
    # Equinox packs the gates as input, forget, candidate, output; the paper calls the first g.
    packed = [np.concatenate([getattr(layer, f"{s}_{g}") for g in "gfco"]) for s in "UVb"]
    cell = eqx.tree_at(lambda c: (c.weight_ih, c.weight_hh, c.bias), cell, packed)
    state, outputs = (jnp.zeros(5), jnp.zeros(5)), []
    for x in xs:
        state = cell(x, state)
        outputs.append(state[0])
    assert relative_error(layer(xs), jnp.stack(outputs)) < CLOSE


def test_gru_resets_before_the_product():
    layer, xs = gru(np.random.default_rng(10)), np.asarray(sequence(40))

    def sigma(z):
        return 0.5 + 0.5 * np.tanh(z / 2)

    h, outputs = np.zeros(5), []
    for x in xs:
        r = sigma(x @ layer.U_r.T + h @ layer.V_r.T + layer.b_r)
        z = sigma(x @ layer.U_z.T + h @ layer.V_z.T + layer.b_z)
        candidate = np.tanh(x @ layer.U_h.T + (r * h) @ layer.V_h.T + layer.b_h)
        h = h + z * (candidate - h)
        outputs.append(h)
    assert relative_error(layer(jnp.asarray(xs)), np.stack(outputs)) < CLOSE


def equinox_gru(layer, xs):
    """`equinox.nn.GRUCell` with the weights of one of our layers."""
    # Its update gate weighs the old state, h' = u⊙h + (1 − u)⊙h̃, where ours weighs the candidate:
    # u = 1 − z = σ(−·), so the weights of z change sign.
    # Its candidate is tanh(U x + b + r⊙(V h + bias_n)). Our bias is not reset, so it is b, and
    # bias_n is 0.
    signs = {"r": 1, "z": -1, "h": 1}
    packed = [
        np.concatenate([sign * getattr(layer, f"{symbol}_{gate}") for gate, sign in signs.items()])
        for symbol in "UVb"
    ]
    cell = eqx.nn.GRUCell(3, 5, key=jax.random.key(0))
    cell = eqx.tree_at(
        lambda c: (c.weight_ih, c.weight_hh, c.bias, c.bias_n), cell, (*packed, np.zeros(5))
    )
    state, outputs = jnp.zeros(5), []
    for x in xs:
        state = cell(x, state)
        outputs.append(state)
    return jnp.stack(outputs)


def test_gru_is_the_one_of_equinox_where_they_must_agree():
    layer, xs = gru(np.random.default_rng(11)), sequence(40)
    # diag(v)(r⊙h) = r⊙(diag(v) h): then it does not matter on which side of V_h the reset acts.
    diagonal = eqx.tree_at(lambda layer: layer.V_h, layer, np.diag(np.diag(layer.V_h)))
    assert relative_error(diagonal(xs), equinox_gru(diagonal, xs)) < CLOSE
    # And where V_h is full the two differ, so the comparison above can fail.
    assert relative_error(layer(xs), equinox_gru(layer, xs)) > 1e-3
