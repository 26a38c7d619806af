"""Functions as tables have the sizes and bounds of the quadratic form over all pairs of neurons."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scrambles import rebuilt, weights
from teachers import attention, gated_rnn

import underhood as uh
from underhood.analysis.decompilation.bounding.certificate import by_roles, quadratic_bound
from underhood.analysis.decompilation.bounding.table_bounds import TableBound
from underhood.analysis.decompilation.exclusion import missed_by_all, missed_by_heads
from underhood.analysis.decompilation.nearest import decay_strengths
from underhood.analysis.forms.norms import by_degree, second_moments, size
from underhood.analysis.forms.quadratic import quadratic_form
from underhood.analysis.forms.tables import form_of, table_form

pytestmark = pytest.mark.usefixtures("x64")

CASES = {
    "d": st.integers(1, 4),
    "d_v": st.integers(1, 3),
    "ranks": st.tuples(st.integers(0, 3), st.integers(0, 3)),
    "decays": st.sampled_from(["none", "zero", "equal", "repeated", "different"]),
    "biases": st.booleans(),
    "kind": st.sampled_from(["attention", "two heads", "gated_rnn", "swapped", "side_gated_rnn"]),
    "seed": st.integers(0, 2**16),
}


def decay_of(decays, d_v, rng):
    """One decay per output; repeated and equal ones share a moment."""
    if decays == "none":
        return None
    few = {"zero": (0.0, 1.0), "equal": (0.8,), "repeated": (0.3, 0.9)}
    return rng.choice(few[decays], size=d_v) if decays in few else rng.uniform(size=d_v)


def layer(d, d_v, ranks, decays, biases, kind, seed):
    """A layer whose function is linear in moments and in the current token."""
    rng = np.random.default_rng(seed)
    extra = {"decay": decay_of(decays, d_v, rng)}
    if biases and kind != "side_gated_rnn":
        extra |= {"b_V": rng.normal(size=d_v), "b_K": rng.normal(size=d), "b_Q": rng.normal(size=d)}
    ranks = {"rank_v": min(ranks[0], d, d_v), "rank_m": min(ranks[1], d)}
    source = attention(d, seed, d_v=d_v, **ranks, **extra)
    if kind == "attention":
        return source
    if kind == "two heads":
        heads = [source, attention(d, seed + 1, d_v=d_v, **ranks, **extra)]
        return uh.MultiHead(heads, rng.normal(size=(2, 2 * d_v)) if seed % 2 else None)
    if kind == "side_gated_rnn":
        return uh.compile(source, kind).layer
    rnn = uh.compile(source).layer
    if kind == "gated_rnn":
        return rnn
    given = weights(rnn)
    # Half of the products change the order of their factors.
    swap = rng.random(rnn.gate_width)[:, None] < 0.5
    return rebuilt(
        rnn,
        W_out_m=np.where(swap, given["W_out_x"], given["W_out_m"]),
        W_out_x=np.where(swap, given["W_out_m"], given["W_out_x"]),
    )


def assert_close(result, expected, scale):
    np.testing.assert_allclose(result, expected, rtol=1e-10, atol=1e-12 * scale)


@settings(max_examples=60, deadline=None)
@given(**CASES, time=st.integers(1, 9))
def test_tables_have_the_sizes_of_the_quadratic_form(time, **case):
    network = layer(**case)
    tables, dense = table_form(network), quadratic_form(network)
    expected = second_moments(dense, time)
    scale = float(np.max(expected, initial=1.0))
    assert_close(second_moments(tables, time), expected, scale)
    keeps = (1.0, 0.8)
    for parts in (by_degree, lambda form: by_roles(form, keeps)):
        ours, naive = parts(tables), parts(dense)
        assert list(ours) == list(naive)
        sizes = [[size(part, time) for part in some.values()] for some in (ours, naive)]
        assert_close(*sizes, scale**0.5)


@settings(max_examples=40, deadline=None)
@given(**CASES, time=st.integers(2, 5))
def test_tables_have_the_bounds_of_the_quadratic_form(time, **case):
    network = layer(**case)
    tables, dense = table_form(network), quadratic_form(network).gathered(equal=0.0)
    for radius in (0.5, 3.0):
        naive = quadratic_bound(dense, radius, time)
        assert_close(TableBound(tables)(radius, time), naive, naive)
    heads = missed_by_heads(dense, time)
    assert_close(missed_by_heads(tables, time), heads, 1 + heads[0])
    assert missed_by_all(tables, time) == 0 and missed_by_all(dense, time) <= 1e-12 * (1 + heads[0])


@settings(max_examples=40, deadline=None)
@given(**CASES)
def test_the_difference_of_two_tables_is_that_of_the_functions(**case):
    first, second = layer(**case), layer(**case | {"seed": case["seed"] + 2})
    apart = second_moments(quadratic_form(first) - quadratic_form(second), 6)
    scale = float(np.max(apart, initial=1.0))
    assert_close(second_moments(table_form(first) - table_form(second), 6), apart, scale)
    # What cancels leaves rounding of size eps, not √eps.
    copy = rebuilt(first) if isinstance(first, uh.GatedRNN) else first
    assert size(table_form(first) - table_form(copy), 6) <= 1e-14 * scale**0.5


@settings(max_examples=40, deadline=None)
@given(**CASES)
def test_decays_are_as_strong_as_those_of_the_neurons(**case):
    network = layer(**case)
    (values, ours), (expected, naive) = (
        decay_strengths(form) for form in (table_form(network), quadratic_form(network))
    )
    for decay, strength in zip(values, ours.T, strict=True):
        # A quadratic form has half of a coefficient on either side of its diagonal.
        assert_close(strength, 2 * naive[:, np.abs(expected - decay) < 1e-12].sum(axis=1), 1.0)


def test_products_of_memories_have_no_tables():
    rnn = gated_rnn(3)
    assert table_form(rnn) is None
    assert form_of(rnn).neurons == rnn.neurons
    # A product that is not read does not matter.
    dead = rebuilt(rnn, D=np.zeros_like(rnn.D))
    assert table_form(dead).parts == () and size(table_form(dead)) == 0


def test_long_sequences_and_decays_are_bounded_as_by_all_lags():
    """Chords between nodes lie above the powers, by little."""
    tables = table_form(attention(2, 0, decay=np.array([0.999, 0.999])))
    bound = TableBound(tables)
    every = bound.instant @ 2.0 ** np.arange(4)
    powers = 2.0 ** (np.arange(3)[:, None] + np.arange(2))
    every += np.sum(0.999 ** np.arange(1, 5000)) * np.sum(bound.undecayed * powers)
    assert every <= bound(2.0, 5000) <= 1.01 * every


def test_many_decays_keep_their_memory_small(monkeypatch):
    rng = np.random.default_rng(0)
    source = attention(3, 0, d_v=3, decay=rng.uniform(size=3))
    rnn = uh.compile(source).layer
    assert len(table_form(rnn).parts) == 3
    monkeypatch.setattr("underhood.analysis.forms.tables.FEW_NUMBERS", 0)
    monkeypatch.setattr("underhood.analysis.forms.tables.MOST_NUMBERS", 0)
    assert table_form(rnn) is None
