"""Pruning, merging and probing: what goes is idle, what is said of the change is exact."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scrambles import rebuilt, relative_change, weights
from teachers import attention, gated_rnn, random_side

import underhood as uh
from underhood.analysis.forms.norms import TIME
from underhood.analysis.forms.quadratic import quadratic_form
from underhood.analysis.reading.influences import SAMPLED_SEQUENCES, influence
from underhood.analysis.shrinking.pruning import select

pytestmark = pytest.mark.usefixtures("x64")


ROWS = {"W_in_m": 0, "W_in_x": 0, "decay": 0, "W_side": 0, "W_out_m": 1, "W_out_x": 1}


def side_gated_rnn(d: int, seed: int) -> uh.SideGatedRNN:
    return random_side(np.random.default_rng([3, d, seed]), d, 6, 2, (0.0, 0.5, 1.0))


def random_rnn(d: int, seed: int, side: bool):
    return side_gated_rnn(d, seed) if side else gated_rnn(d, seed)


def with_idle(rnn, rng):
    """Three neurons that do nothing more, in known places: not fed, half fed, not read."""
    w, n = weights(rnn), rnn.neurons
    side = isinstance(rnn, uh.SideGatedRNN)
    for name, axis in ROWS.items():
        if name in w:
            shape = [3 if place == axis else many for place, many in enumerate(w[name].shape)]
            w[name] = np.concatenate([w[name], rng.uniform(0.1, 1, size=shape)], axis=axis)
    w["W_in_m"][n], w["W_in_x"][n], w["W_in_m"][n + 1] = 0.0, 0.0, 0.0
    if side:
        w["D"] = np.hstack([w["D"], rng.normal(size=(rnn.d_out, 3))])
        w["W_side"][n + 2] = 0.0
        return type(rnn)(**w), 0
    w["W_out_m"][:, n + 2], w["W_out_x"][:, n + 2] = 0.0, 0.0
    # Gate outputs that do nothing: one that is not read, one whose factor is zero.
    w["D"] = np.hstack([w["D"], rng.normal(size=(rnn.d_out, 2))])
    w["D"][:, -2] = 0.0
    for name in ("W_out_m", "W_out_x"):
        w[name] = np.vstack([w[name], rng.normal(size=(2, n + 3))])
        w[name][:, n + 2] = 0.0
    w["W_out_x"][-1] = 0.0
    return type(rnn)(**w), 2


# --- influence


@settings(max_examples=15)
@given(d=st.integers(1, 3), seed=st.integers(0, 999), side=st.booleans())
def test_influence_does_not_depend_on_scale_or_order(d, seed, side):
    rnn, rng = random_rnn(d, seed, side), np.random.default_rng(seed)
    before, w = influence(rnn), weights(rnn)
    order, sizes = rng.permutation(rnn.neurons), rng.uniform(0.1, 10, rnn.neurons)
    w["W_in_m"] *= sizes[:, None]
    gates, by = rng.permutation(rnn.gate_width), rng.uniform(0.1, 10, rnn.gate_width)
    if side:
        w["W_side"] /= sizes[:, None]
        gates = order
    else:
        w["W_out_m"], w["W_out_x"] = (w["W_out_m"] / sizes) * by[:, None], w["W_out_x"] / sizes
        w["D"] /= by
        w["W_out_m"], w["W_out_x"] = w["W_out_m"][gates], w["W_out_x"][gates]
    for name, axis in ROWS.items():
        if name in w:
            w[name] = np.take(w[name], order, axis=axis)
    w["D"] = w["D"][:, gates]
    after = influence(type(rnn)(**w))
    np.testing.assert_allclose(after[0], before[0][order], rtol=1e-10)
    if not side:
        np.testing.assert_allclose(after[1], before[1][gates], rtol=1e-10)


@pytest.mark.parametrize("side", [False, True])
def test_influence_is_what_leaves_the_output(side):
    rnn = random_rnn(2, 0, side)
    shares = influence(rnn)
    xs = np.random.default_rng(0).normal(size=(SAMPLED_SEQUENCES, TIME, 2))
    whole = quadratic_form(rnn)(xs)

    def without(neuron=None, gate=None):
        kept, gates = np.ones(rnn.neurons, bool), np.ones(rnn.gate_width, bool)
        kept[[] if neuron is None else neuron] = False
        gates[[] if gate is None else gate] = False
        left = quadratic_form(select(rnn, kept, gates))(xs)
        return np.sqrt(np.mean((whole - left) ** 2) / np.mean(whole**2))

    expected = [without(neuron=i) for i in range(rnn.neurons)]
    np.testing.assert_allclose(shares[0], expected, rtol=1e-9)
    if not side:
        expected = [without(gate=j) for j in range(rnn.gate_width)]
        np.testing.assert_allclose(shares[1], expected, rtol=1e-9)


# --- prune


@pytest.mark.parametrize("tolerance", [0.0, 1e-12])
@pytest.mark.parametrize("side", [False, True])
def test_idle_neurons_and_gates_go_whatever_the_tolerance(side, tolerance):
    for d, seed in ((1, 0), (2, 1), (3, 2)):
        rnn = random_rnn(d, seed, side)
        more, idle_gates = with_idle(rnn, np.random.default_rng(seed))
        shares = influence(more)
        assert np.all(shares[0][rnn.neurons :] == 0)
        assert side or np.all(shares[1][rnn.gate_width :] == 0)
        pruned = uh.prune(more, tolerance=tolerance)
        assert (pruned.removed_neurons, pruned.removed_gates) == (3, 3 if side else idle_gates)
        np.testing.assert_array_equal(pruned.kept_neurons, np.arange(rnn.neurons))
        np.testing.assert_array_equal(pruned.kept_gates, np.arange(rnn.gate_width))
        assert pruned.change <= tolerance and relative_change(rnn, pruned.model) < 1e-14
        assert jax.tree.all(jax.tree.map(np.array_equal, pruned.model, rnn))


@settings(max_examples=20)
@given(
    d=st.integers(1, 3),
    seed=st.integers(0, 999),
    side=st.booleans(),
    tolerance=st.sampled_from([1e-3, 0.05, 0.3, 0.9]),
)
def test_the_change_is_exact_and_within_the_tolerance(d, seed, side, tolerance):
    rnn, _ = with_idle(random_rnn(d, seed, side), np.random.default_rng(seed))
    pruned = uh.prune(rnn, tolerance=tolerance)
    assert 0 <= pruned.change <= tolerance
    assert pruned.change == pytest.approx(relative_change(rnn, pruned.model), abs=1e-13)
    # The kept places tell which weights stayed.
    w, kept, gates = weights(rnn), pruned.kept_neurons, pruned.kept_gates
    for name, axis in ROWS.items():
        if name in w:
            expected = np.take(w[name], kept, axis=axis)
            expected = expected[gates] if axis == 1 else expected
            np.testing.assert_allclose(getattr(pruned.model, name), expected, rtol=1e-13)
    np.testing.assert_array_equal(pruned.model.D, w["D"][:, gates])
    assert len(kept) + pruned.removed_neurons == rnn.neurons
    assert len(gates) + pruned.removed_gates == rnn.gate_width
    assert pruned.neurons == uh.roles(pruned.model)


def test_the_change_is_seen_on_sampled_sequences_and_what_goes_next_would_be_too_much():
    rnn = gated_rnn(2, 5)
    pruned = uh.prune(rnn, tolerance=0.3)
    assert pruned.change > 0.05 and pruned.removed_neurons + pruned.removed_gates > 0
    xs = jax.random.normal(jax.random.key(0), (4000, TIME, 2))
    whole, left = (jax.vmap(layer)(xs) for layer in (rnn, pruned.model))
    sampled = float(jnp.sqrt(jnp.mean((whole - left) ** 2) / jnp.mean(whole**2)))
    assert sampled == pytest.approx(pruned.change, rel=0.05)
    pruned, ranked = uh.prune(rnn, tolerance=0.1), influence(rnn)
    every = np.concatenate(ranked)
    stays = np.concatenate([pruned.kept_neurons, rnn.neurons + pruned.kept_gates])
    keeps = np.isin(np.arange(len(every)), stays)
    assert every[~keeps].max() <= every[keeps].min()
    keeps[stays[np.argmin(every[stays])]] = False
    smaller = select(rnn, keeps[: rnn.neurons], keeps[rnn.neurons :])
    assert relative_change(rnn, smaller) > 0.1


@pytest.mark.parametrize("side", [False, True])
def test_neurons_with_zero_weights_go_as_in_the_paper(side):
    """One zero in a chain of products is enough, and what only dead neurons feed goes too."""
    rng = np.random.default_rng(0)
    n, d, m = 6, 3, 5
    weights = {"W_in_m": rng.normal(size=(n, d + (not side))), "decay": np.full(n, 0.5)}
    weights["W_in_x"] = rng.normal(size=(n, d + (not side)))
    tiny = 1e-6
    weights["W_in_m"][0] *= tiny
    if side:
        weights |= {"W_side": rng.normal(size=(n, d)), "D": rng.normal(size=(2, n))}
        weights["W_side"][1] *= tiny
        weights["D"][:, 2] *= tiny
        network, neurons, gates = uh.SideGatedRNN(**weights), [3, 4, 5], [3, 4, 5]
    else:
        weights |= {name: rng.normal(size=(m, n)) for name in ("W_out_m", "W_out_x")}
        weights["D"] = rng.normal(size=(2, m))
        for name in ("W_out_m", "W_out_x"):
            weights[name][:, 1] *= tiny
            # Gate output 4 alone reads neuron 2, and the readout does not read gate output 4.
            weights[name][:4, 2] *= tiny
        weights["D"][:, 4] *= tiny
        # Gate output 0 is a product with a neuron that is gone.
        weights["W_out_x"][0] = np.eye(n)[0]
        network, neurons, gates = uh.GatedRNN(**weights), [3, 4, 5], [1, 2, 3]
    result = uh.prune(network, zero=1e-4)
    assert result.kept_neurons.tolist() == neurons and result.kept_gates.tolist() == gates
    assert 0 < result.change < 1e-4
    assert uh.prune(network, zero=0.0).removed_neurons == 0


def test_roles_and_words():
    built = uh.compile(attention(2), "gated_rnn").layer
    more, _ = with_idle(built, np.random.default_rng(0))
    pruned = uh.prune(more)
    assert [role.kind for role in pruned.neurons] == ["memory"] * 3 + ["query"] * 2
    assert "removed 3 of 8 neurons and 2 of 5 gate outputs; left: 3 memory, 2 query" in str(pruned)
    decays = np.array([0.0, 0.019, 0.021, 0.5, 0.979, 0.981, 1.0])
    W = np.ones((7, 1))
    side = uh.SideGatedRNN(W_in_m=W, W_in_x=W, decay=decays, W_side=W, D=np.ones((1, 7)))
    said = [role.kind for role in uh.roles(side)]
    assert said == ["query"] * 2 + ["other"] * 3 + ["memory"] * 2
    assert uh.roles(side, keeps=(0.5,))[3] == uh.Role("memory", "λ=0.5")


@pytest.mark.parametrize("side", [False, True])
def test_weights_of_float32_on_the_device_are_taken_as_they_are(side):
    more, _ = with_idle(random_rnn(2, 0, side), np.random.default_rng(0))
    single = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), more)
    pruned = uh.prune(single, tolerance=1e-10)
    assert pruned.removed_neurons == 3 and pruned.change < 1e-12
    exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), single)
    assert relative_change(exact, pruned.model) < 1e-12


def empty(side: bool):
    rnn = random_rnn(2, 0, side)
    return select(rnn, np.zeros(rnn.neurons, bool), np.zeros(rnn.gate_width, bool))


@pytest.mark.parametrize("side", [False, True])
def test_nothing_to_remove_nothing_left_and_nothing_there(side):
    built = uh.compile(attention(3), "side_gated_rnn" if side else "gated_rnn").layer
    pruned = uh.prune(built, tolerance=1e-6)
    assert (pruned.removed_neurons, pruned.removed_gates, pruned.change) == (0, 0, 0.0)
    assert jax.tree.all(jax.tree.map(np.array_equal, pruned.model, built))
    rnn = random_rnn(2, 0, side)
    pruned = uh.prune(rebuilt(rnn, D=np.zeros_like(rnn.D)), tolerance=0.0)
    assert (pruned.model.neurons, pruned.model.gate_width, pruned.change) == (0, 0, 0.0)
    assert "left: nothing" in str(pruned)
    pruned = uh.prune(empty(side))
    assert (pruned.model.neurons, pruned.removed_neurons, pruned.change) == (0, 0, 0.0)
    probes = uh.probe(empty(side), attention(2))
    assert (probes.score_kv, probes.score_q) == (1.0, 1.0)
    assert side or uh.merge(empty(side)).model.gate_width == 0


@pytest.mark.usefixtures("unhooked")
def test_bad_input_is_refused_in_one_line():
    rnn, lstm = gated_rnn(2), uh.LSTM.init(d_in=2, hidden=2, key=jax.random.key(0))
    share = r"(tolerance|angle) is .*; give a share"
    refused = [
        (lambda: uh.prune(lstm), "LSTM"),
        (lambda: uh.merge(lstm), "LSTM"),
        (lambda: uh.probe(lstm, attention(2)), "LSTM"),
        (lambda: uh.roles(lstm), "LSTM"),
        (lambda: uh.merge(side_gated_rnn(2, 0)), "not a SideGatedRNN"),
        (lambda: uh.probe(rnn, rnn), "not with a GatedRNN"),
        (lambda: uh.probe(rnn, attention(3)), "reads 2 numbers, the attention 3"),
    ]
    for value in (-1e-9, 1.0, float("nan"), float("inf")):
        refused += [
            (partial(uh.prune, rnn, tolerance=value), share),
            (partial(uh.merge, rnn, tolerance=value), share),
            (partial(uh.merge, rnn, angle=value), share),
        ]
    for call, message in refused:
        with pytest.raises(uh.BadInput, match=message) as raised:
            call()
        assert "\n" not in str(raised.value)
