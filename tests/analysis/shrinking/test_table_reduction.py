"""Large networks are reduced on their tables; here small ones are, against the quadratic form."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scrambles import (
    duplicated,
    gate_axes,
    mixed_queries,
    permuted,
    rebuilt,
    relative_change,
    taken,
    weights,
)
from teachers import attention, overlapping, random_gated

import underhood as uh
from underhood.analysis.forms.norms import size
from underhood.analysis.forms.tables import table_form
from underhood.analysis.shrinking import reduction
from underhood.analysis.shrinking.products import MANY_NUMBERS, spanning_rows
from underhood.analysis.shrinking.table_reduction import reduce_tables, right_inverse, row_space

pytestmark = pytest.mark.usefixtures("x64")


def doubled_gates(rnn, rng):
    """Some gate outputs twice, each with half of the output."""
    again = np.flatnonzero(rng.integers(0, 2, rnn.gate_width))
    D = weights(rnn)["D"]
    D[:, again] /= 2
    halved = rebuilt(rnn, D=D)
    return taken(halved, gate_axes(rnn), np.concatenate([np.arange(rnn.gate_width), again]))


def on_tables(rnn):
    form = table_form(rnn)
    return reduce_tables(rnn, form, 1e-9 * size(form), 8, 1e-7)


@settings(max_examples=40, deadline=None)
@given(
    d=st.integers(1, 5),
    ranks=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    decays=st.sampled_from([None, (0.5,), (0.3, 0.9)]),
    biases=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_tables_give_a_network_of_the_minimal_size(d, ranks, decays, biases, seed):
    rng = np.random.default_rng(seed)
    extra = {} if decays is None else {"decay": rng.choice(decays, size=d)}
    if biases:
        extra |= {name: rng.normal(size=d) for name in ("b_V", "b_K", "b_Q")}
    source = attention(d, seed, rank_v=min(ranks[0], d), rank_m=min(ranks[1], d), **extra)
    minimal = uh.compile(source).layer
    given_to_it = duplicated(doubled_gates(mixed_queries(minimal, rng), rng), rng)
    given_to_it = permuted(given_to_it, rng)
    small = on_tables(given_to_it)
    assert relative_change(given_to_it, small) < 1e-11
    assert (small.neurons, small.gate_width) == (minimal.neurons, minimal.gate_width)


def test_a_moment_without_memory_is_left_to_the_general_path():
    source = attention(3, 0, decay=np.array([0.0, 1.0, 0.5]))
    assert on_tables(uh.compile(source).layer) is None


def test_large_networks_are_reduced_on_tables(monkeypatch):
    source = overlapping(4, 3, 3, 2, 0)
    rnn = duplicated(uh.compile(source).layer, np.random.default_rng(0))
    expected = uh.reduce(rnn)
    monkeypatch.setattr(reduction, "LARGE_KERNELS", 0)
    large = uh.reduce(rnn)
    sizes = [(result.model.neurons, result.model.gate_width) for result in (expected, large)]
    assert sizes[0] == sizes[1] and large.change < 1e-12
    assert large.change == pytest.approx(relative_change(rnn, large.model), abs=1e-14)


def test_many_decays_lose_only_what_has_no_influence(monkeypatch):
    rng = np.random.default_rng(0)
    rnn = random_gated(rng, 2, 9, 5, 2, np.linspace(0.1, 0.9, 9))
    W_out = {name: weights(rnn)[name] for name in ("W_out_m", "W_out_x")}
    for W in W_out.values():
        W[:, :2] = 0.0
    rnn = rebuilt(rnn, **W_out, decay=np.linspace(0.1, 0.9, 9))
    monkeypatch.setattr(reduction, "MANY_DECAYS", 3)
    reduced = uh.reduce(rnn)
    assert (reduced.model.neurons, reduced.model.gate_width) == (7, 5)
    assert relative_change(rnn, reduced.model) < 1e-12


@pytest.mark.parametrize("rank", [0, 1, 40, 90])
def test_rows_of_large_matrices_span_as_those_of_small_ones(rank):
    rng = np.random.default_rng(rank)
    rows = rng.normal(size=(120, rank)) @ rng.normal(size=(rank, 1 + MANY_NUMBERS // 120))
    assert rows.size > MANY_NUMBERS
    chosen = spanning_rows(rows, rank)
    assert len(set(chosen.tolist())) == rank == np.linalg.matrix_rank(rows[chosen])
    assert spanning_rows(rows, rank + 1) is None
    space = row_space(rows, 1e-9)
    assert len(space) == rank
    np.testing.assert_allclose(space @ space.T, np.eye(rank), atol=1e-12)
    inverse = np.linalg.pinv(rows[chosen])
    np.testing.assert_allclose(right_inverse(rows[chosen]), inverse, atol=1e-10)
