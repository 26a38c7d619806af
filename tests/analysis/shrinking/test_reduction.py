"""Reduction: scrambled constructions come back at the minimal size, nothing ever grows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st
from scrambles import (
    SCRAMBLES,
    cancelling,
    dead,
    duplicated,
    mixed_queries,
    permuted,
    rebuilt,
    relative_change,
    rescaled,
    scrambled,
    split,
    swapped_branches,
    weights,
    with_gates,
)
from teachers import (
    attention,
    gated_rnn,
    network_sizes,
    overlapping,
    overlaps,
    random_gated,
    random_network,
    random_side,
)

import underhood as uh

pytestmark = pytest.mark.usefixtures("x64")


FORMS = ("full", "compact", "low_rank", "minimal")


def sizes(rnn) -> tuple[int, int]:
    return rnn.neurons, rnn.gate_width


def compiled(source, form: str) -> uh.GatedRNN:
    try:
        return uh.compile(source, "gated_rnn", form).layer
    except uh.ImpossibleConstruction:
        assume(False)


def split_gates(rnn, rng):
    """One factor of some gate outputs as a sum of two, each with a gate output of its own."""
    some = np.flatnonzero(rng.integers(0, 2, rnn.gate_width))
    W = weights(rnn)
    part = W["W_out_x"][some] * rng.uniform(0.2, 0.8, size=(len(some), rnn.neurons))
    W["W_out_x"][some] -= part
    rnn = rebuilt(rnn, W_out_x=W["W_out_x"])
    return with_gates(rnn, W_out_m=W["W_out_m"][some], W_out_x=part, D=W["D"][:, some])


# --- attention


@settings(max_examples=40)
@given(teacher=overlaps(5, 1), form=st.sampled_from(FORMS), seed=st.integers(0, 999))
def test_scrambled_attention_has_the_minimal_size(teacher, form, seed):
    source = overlapping(*teacher)
    minimal = uh.compile(source, "gated_rnn", "minimal").layer
    rng = np.random.default_rng(seed)
    given_to_it = scrambled(split_gates(compiled(source, form), rng), rng)
    reduced = uh.reduce(given_to_it)
    assert sizes(reduced.model) == sizes(minimal)
    assert (reduced.neurons_before, reduced.gates_before) == sizes(given_to_it)
    assert reduced.change < 1e-8
    assert reduced.change == pytest.approx(relative_change(given_to_it, reduced.model), abs=1e-14)
    kinds = [role.kind for role in reduced.neurons]
    queries = int(np.sum(np.asarray(minimal.decay) == 0))
    assert kinds.count("query") == queries and kinds.count("memory") == len(kinds) - queries


@pytest.mark.parametrize(
    "scramble", [*SCRAMBLES, split_gates], ids=lambda scramble: scramble.__name__
)
def test_every_scramble_is_undone(scramble):
    for seed, form in enumerate(FORMS):
        source = attention(3, seed)
        given_to_it = scramble(compiled(source, form), np.random.default_rng(seed))
        reduced = uh.reduce(given_to_it)
        assert sizes(reduced.model) == (9, 6) and reduced.change < 1e-10
        xs = jax.random.normal(jax.random.key(seed), (9, 3))
        np.testing.assert_allclose(reduced.model(xs), source(xs), atol=1e-8)


@pytest.mark.parametrize(
    "extra",
    [
        {"decay": np.array([1.0, 0.9, 0.9])},
        {"decay": np.array([0.3, 0.9, 0.6])},
        {"b_V": np.ones(3), "b_K": np.arange(3.0), "b_Q": -np.ones(3)},
    ],
    ids=["two decays", "three decays", "biases"],
)
def test_decays_and_biases_have_the_minimal_size_too(extra):
    source = attention(3, 4, **extra)
    minimal = uh.compile(source, "gated_rnn", "minimal").layer
    rng = np.random.default_rng(4)
    reduced = uh.reduce(scrambled(compiled(source, "full"), rng))
    assert sizes(reduced.model) == sizes(minimal) and reduced.change < 1e-10


def test_ranks_of_zero_and_what_cancels_to_zero_leave_nothing():
    which = (mixed_queries, dead, rescaled, swapped_branches, permuted)
    for rank_v, rank_m in ((0, 2), (2, 0), (0, 0)):
        source = overlapping(3, rank_v, rank_m, 0)
        for form in ("full", "minimal"):
            rnn = uh.compile(source, "gated_rnn", form).layer
            reduced = uh.reduce(scrambled(rnn, np.random.default_rng(0), which))
            assert (*sizes(reduced.model), reduced.change) == (0, 0, 0.0)
            assert np.all(np.asarray(reduced.model(jnp.ones((4, 3)))) == 0)
    source = uh.LinearAttention(np.zeros((3, 2)), np.eye(2), np.eye(2))
    rng = np.random.default_rng(0)
    rnn = scrambled(uh.compile(source, "gated_rnn", "full").layer, rng, (split, cancelling))
    assert sizes(uh.reduce(rnn).model) == (0, 0)


# --- any network


@settings(max_examples=25)
@given(network_sizes(d=3, n=8, m=8))
def test_the_function_stays_with_no_more_neurons(arguments):
    rnn, _ = random_network(**arguments)
    reduced = uh.reduce(rnn)
    assert 0 <= reduced.change <= 1e-8
    assert relative_change(rnn, reduced.model) < 1e-10
    assert reduced.model.neurons <= rnn.neurons
    again = uh.reduce(reduced.model)
    assert sizes(again.model) == sizes(reduced.model)


def test_gate_outputs_never_grow():
    for seed in range(3):
        for n, m, decays in ((3, 1, (1.0,)), (7, 1, (0.0, 0.3, 0.9, 1.0)), (8, 5, (0.0, 1.0))):
            rnn = random_gated(np.random.default_rng(seed), 1, n, m, 3, decays)
            reduced = uh.reduce(rnn)
            assert reduced.model.gate_width <= m and reduced.model.neurons <= n
            assert relative_change(rnn, reduced.model) < 1e-10


def test_a_generic_network_cannot_be_reduced():
    # Six neurons that read different things, six outputs of which no two are alike.
    reduced = uh.reduce(random_gated(np.random.default_rng(0), 3, 6, 6, 6, (1.0,)))
    assert reduced.model.neurons == 6 and reduced.change < 1e-12
    side = random_side(np.random.default_rng(0), 3, 5, 3, (0.5, 1.0))
    assert uh.reduce(side).model.neurons == 5
    # Five reads of x xᵀ, which has three entries, behind one side gate.
    side = random_side(np.random.default_rng(0), 2, 5, 3, (1.0,))
    assert uh.reduce(rebuilt(side, W_side=np.ones((5, 2)))).model.neurons == 3


@pytest.mark.parametrize("tolerance", [1e-10, 1e-4, 0.3])
def test_the_change_is_never_above_the_tolerance(tolerance):
    for seed in range(2):
        rng = np.random.default_rng(seed)
        built = scrambled(uh.compile(attention(2, seed)).layer, rng, (split, duplicated))
        W = weights(built)
        decay = W.pop("decay")
        noisy = {name: w * (1 + 1e-5 * rng.normal(size=w.shape)) for name, w in W.items()}
        side = random_side(rng, 2, 5, 3, (0.0, 1.0))
        for rnn in (uh.GatedRNN(**noisy, decay=decay), gated_rnn(2, seed), side):
            reduced = uh.reduce(rnn, tolerance=tolerance)
            assert 0 <= reduced.change <= tolerance
            change = relative_change(rnn, reduced.model)
            assert reduced.change == pytest.approx(change, rel=1e-6, abs=1e-13)
            assert reduced.model.neurons <= rnn.neurons


def test_a_tolerance_above_the_noise_or_rounding_finds_the_minimal_size():
    for seed in range(2):
        rng = np.random.default_rng(seed)
        built = scrambled(uh.compile(attention(2, seed)).layer, rng, (duplicated,))
        W_in_m = weights(built)["W_in_m"]
        noisy = rebuilt(built, W_in_m=W_in_m + 1e-9 * rng.normal(size=W_in_m.shape))
        reduced = uh.reduce(noisy, tolerance=1e-6)
        assert sizes(reduced.model) == (5, 3) and 1e-11 < reduced.change < 1e-6
    # float32 on the device
    built = scrambled(uh.compile(attention(2)).layer, rng, (duplicated, dead))
    single = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), built)
    reduced = uh.reduce(single, tolerance=1e-5)
    assert sizes(reduced.model) == (5, 3) and reduced.change < 1e-5


# --- side-gated


@settings(max_examples=12)
@given(d=st.integers(1, 4), n=st.integers(1, 5), built=st.booleans(), seed=st.integers(0, 9999))
def test_side_gated_networks_return_to_their_size(d, n, built, seed):
    rng = np.random.default_rng(seed)
    network = (
        uh.compile(attention(d, seed), "side_gated_rnn").layer
        if built
        else random_side(rng, d, min(n, d), 3, (0.0, 0.5, 1.0))
    )
    # One input number leaves one product, x², so that neurons of one decay always combine.
    expected = uh.reduce(network).model.neurons
    assert expected == network.neurons or d == 1
    for which in ((duplicated,), (split,), (dead,), (dead, duplicated, rescaled, permuted)):
        given_to_it = scrambled(network, np.random.default_rng(seed), which)
        reduced = uh.reduce(given_to_it)
        assert reduced.model.neurons == expected and reduced.change < 1e-8
        assert uh.reduce(reduced.model).model.neurons == expected


# --- edges


@pytest.mark.parametrize("side", [False, True])
def test_the_zero_network_and_no_network(side):
    rng = np.random.default_rng(0)
    for n in (0, 4):
        gated = random_gated(rng, 2, n, 3, 2, (0.0, 1.0))
        rnn = random_side(rng, 2, n, 3, (1.0,)) if side else gated
        reduced = uh.reduce(rebuilt(rnn, D=np.zeros_like(rnn.D)))
        assert (*sizes(reduced.model), reduced.change) == (0, 0, 0.0)
        assert reduced.neurons == () and reduced.model.d_out == rnn.d_out
    assert str(reduced).startswith(f"4 → 0 neurons, {4 if side else 3} → 0 gate outputs")


@pytest.mark.usefixtures("unhooked")
def test_what_cannot_be_reduced_is_refused_in_one_line():
    for tolerance in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(uh.BadInput, match="tolerance is") as raised:
            uh.reduce(gated_rnn(2), tolerance=tolerance)
        assert "\n" not in str(raised.value)
    with pytest.raises(uh.BadInput, match="not a LinearAttention"):
        uh.reduce(attention(2))
