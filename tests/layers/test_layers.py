"""Layers: parallel = streaming = naive, in outputs and gradients."""

import equinox as eqx
import jax
import jax.numpy as jnp
import layer_cases as cases
import numpy as np
import pytest
from naive import naive, naive_gradients

import underhood as uh

pytestmark = pytest.mark.usefixtures("x64")


LENGTHS = (1, 2, 64, 65, 200)


# One program for all lengths and both forms, because compiling is most of the time.
@eqx.filter_jit
def in_both_forms(layer, sequences):
    return [(cases.parallel(layer, xs), uh.stream(layer, xs)) for xs in sequences]


@cases.every_layer
def test_outputs_agree(name):
    layer, longest = cases.make(name), cases.sequence(max(LENGTHS))
    # Loops over tokens: they begin alike whatever comes later.
    expected, stepped = naive(layer, longest), cases.stepped(layer, longest)
    assert expected.shape == (max(LENGTHS), cases.CASES[name].d_out)
    outputs = in_both_forms(layer, [longest[:time] for time in LENGTHS])
    for time, (parallel, streamed) in zip(LENGTHS, outputs, strict=True):
        for ys in (parallel, streamed, stepped[:time]):
            assert cases.relative_error(ys, expected[:time]) < cases.CLOSE, time


@eqx.filter_jit
def gradients_of_both_forms(layer, sequences):
    runs = (cases.parallel, uh.stream)
    return [[cases.gradients(run, layer, xs) for run in runs] for xs in sequences]


# The lengths share a test because they share the naive loop's compiled token.
@cases.every_layer
def test_gradients_agree(name):
    layer = cases.in_jax(cases.make(name))
    sequences = [cases.sequence(time) for time in (1, 5, 70)]
    for xs, both in zip(sequences, gradients_of_both_forms(layer, sequences), strict=True):
        expected = naive_gradients(layer, xs, cases.projection(layer, len(xs)))
        for gradients in both:
            cases.assert_same_leaves(gradients, expected)


def test_naive_gradients_are_those_of_the_naive_loop():
    layer, xs = cases.in_jax(cases.make("LRU")), cases.sequence(5)
    by_hand = naive_gradients(layer, xs, cases.projection(layer, 5))
    cases.assert_same_leaves(cases.gradients(naive, layer, xs), by_hand)


# On a CPU the recurrence is a scan; accelerators take other forms, tested here as well.
@pytest.mark.parametrize(
    "name",
    ["attention", "attention, biases and decay", "gated RNN", "side-gated RNN", "LRU", "Mamba"],
)
def test_the_forms_that_accelerators_take_agree(name, monkeypatch):
    layer, xs = cases.in_jax(cases.make(name)), cases.sequence(70)
    expected = naive(layer, xs), naive_gradients(layer, xs, cases.projection(layer, 70))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")

    # A function of its own, so that what was compiled for the CPU is not found again.
    def afresh(layer, xs):
        return cases.parallel(layer, xs)

    assert cases.relative_error(eqx.filter_jit(afresh)(layer, xs), expected[0]) < cases.CLOSE
    cases.assert_same_leaves(eqx.filter_jit(cases.gradients)(afresh, layer, xs), expected[1])


ALONE = uh.MultiHead([cases.attention(np.random.default_rng(13)) for _ in range(2)])
OTHERS = {
    "heads without W_O": lambda rng: ALONE,
    "layers without embedding and readout": lambda rng: uh.Stack(None, [ALONE], None),
    **{
        f"MLP with {name}": lambda rng, name=name: cases.lru_in_out_mlp(rng, name)
        for name in ("relu", "gelu", "silu", "softplus", "tanh")
    },
    # Shorter and longer than the sequence.
    **{
        f"a convolution over {width}": lambda rng, width=width: cases.mamba_block(rng, width)
        for width in (1, 2, 5)
    },
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_settings_agree(name):
    layer, xs = OTHERS[name](np.random.default_rng(0)), cases.sequence(3)
    assert (layer.d_in, layer.d_out) == (3, 4 if " without " in name else 2)
    for run in (eqx.filter_jit(cases.parallel), cases.stepped):
        assert cases.relative_error(run(layer, xs), naive(layer, xs)) < cases.CLOSE


@cases.every_layer
def test_sizes_no_tokens_and_batches(name):
    layer, case = cases.make(name), cases.CASES[name]
    sizes = (layer.d_in, layer.d_out, layer.neurons, layer.gate_width)
    assert sizes == (cases.D_IN, case.d_out, case.neurons, case.gate_width)
    ((parallel, streamed),) = in_both_forms(layer, [jnp.zeros((0, cases.D_IN))])
    assert parallel.shape == streamed.shape == (0, case.d_out)
    batch = jnp.stack([cases.sequence(7, seed=seed) for seed in (3, 4)])
    alone = jnp.stack([naive(layer, xs) for xs in batch])
    assert cases.relative_error(jax.jit(jax.vmap(layer))(batch), alone) < cases.CLOSE


@pytest.mark.parametrize("allowed", [True, False])
@cases.every_layer
def test_float32_stays_float32(name, allowed):
    # With x64 on, one float64 constant anywhere would turn the result into float64.
    def everything(layer, xs):
        start = layer.initial_state()
        slopes = eqx.filter_grad(lambda both: jnp.sum(both[0](both[1])))((layer, xs))
        return layer(xs), uh.stream(layer, xs), start, layer.step(start, xs[0]), slopes

    with jax.enable_x64(allowed):
        layer, xs = (
            cases.in_jax(cases.make(name), jnp.float32),
            cases.sequence(70).astype(jnp.float32),
        )
        made = eqx.filter_eval_shape(everything, layer, xs)
        kinds = {leaf.dtype for leaf in jax.tree.leaves(made) if hasattr(leaf, "dtype")}
    assert kinds in ({jnp.dtype("float32")}, {jnp.dtype("float32"), jnp.dtype("complex64")})


# --- other people's LSTM and GRU


def hidden_states(cell, layer, xs, gates, state, **more):
    """What a cell of Equinox gives that has the weights of our layer; {gate: sign} as it packs."""

    def packed(symbol):
        parts = [sign * getattr(layer, f"{symbol}_{gate}") for gate, sign in gates.items()]
        return np.concatenate(parts)

    fields = {"weight_ih": packed("U"), "weight_hh": packed("V"), "bias": packed("b")} | more
    cell = eqx.tree_at(lambda cell: [getattr(cell, n) for n in fields], cell, [*fields.values()])
    states = []
    for x in xs:
        state = cell(x, state)
        states.append(state)
    return states


def test_lstm_is_the_one_of_equinox():
    layer, xs = cases.lstm(np.random.default_rng(9)), cases.sequence(40)
    # Equinox packs the gates as input, forget, candidate, output; the paper calls the first g.
    gates, start = dict.fromkeys("gfco", 1), (jnp.zeros(5), jnp.zeros(5))
    states = hidden_states(eqx.nn.LSTMCell(3, 5, key=jax.random.key(0)), layer, xs, gates, start)
    assert cases.relative_error(layer(xs), jnp.stack([h for h, _ in states])) < cases.CLOSE


def test_gru_is_the_one_of_equinox_where_they_must_agree():
    # Its update gate weighs the old state, h' = u⊙h + (1 − u)⊙h̃, where ours weighs the candidate:
    # u = 1 − z = σ(−·), so the weights of z change sign.
    # Its candidate is tanh(U x + b + r⊙(V h + bias_n)). Our bias is not reset, so it is b, and
    # bias_n is 0.
    def difference(layer):
        cell, gates = eqx.nn.GRUCell(3, 5, key=jax.random.key(0)), {"r": 1, "z": -1, "h": 1}
        states = hidden_states(cell, layer, xs, gates, jnp.zeros(5), bias_n=np.zeros(5))
        return cases.relative_error(layer(xs), jnp.stack(states))

    layer, xs = cases.gru(np.random.default_rng(11)), cases.sequence(40)
    # diag(v)(r⊙h) = r⊙(diag(v) h): then it does not matter on which side of V_h the reset acts.
    diagonal = eqx.tree_at(lambda layer: layer.V_h, layer, np.diag(np.diag(layer.V_h)))
    assert difference(diagonal) < cases.CLOSE
    # And where V_h is full the two differ, so the comparison above can fail.
    assert difference(layer) > 1e-3
    # With the reset after the product they agree whatever V_h is.
    after = cases.gru_after(np.random.default_rng(11))
    cell, gates = eqx.nn.GRUCell(3, 5, key=jax.random.key(0)), {"r": 1, "z": -1, "h": 1}
    states = hidden_states(cell, after, xs, gates, jnp.zeros(5), bias_n=after.c_h)
    assert cases.relative_error(after(xs), jnp.stack(states)) < cases.CLOSE
