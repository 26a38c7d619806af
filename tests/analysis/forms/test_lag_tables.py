"""Tables over pairs of lags, from kernels and from gate outputs, against their definition."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scrambles import rebuilt
from teachers import random_gated, random_side

from underhood.analysis.forms import lag_tables as module
from underhood.analysis.forms.lag_tables import lag_tables, response_form
from underhood.analysis.forms.norms import by_degree, degree_sizes, second_moments, size
from underhood.analysis.forms.quadratic import quadratic_form

pytestmark = pytest.mark.usefixtures("x64")

CASES = {
    "side": st.booleans(),
    "d": st.integers(1, 3),
    "n": st.integers(1, 6),
    "d_out": st.integers(1, 3),
    "time": st.integers(1, 6),
    "dead": st.booleans(),
    "seed": st.integers(0, 2**16),
}


def network(side, d, n, d_out, dead, seed):
    """A random network; a dead one has no output."""
    rng, decays = np.random.default_rng(seed), (0.0, 0.4, 0.9, 1.0)
    if side:
        rnn = random_side(rng, d, n, d_out, decays)
    else:
        rnn = random_gated(rng, d, n, n + 1, d_out, decays)
    return rebuilt(rnn, D=np.zeros((d_out, rnn.gate_width))) if dead else rnn


def naive_tables(form, time):
    """G_o(k,k') = QᵀΛ^k K_o Λ^k' Q, one matrix after the other."""
    reads, decay = form.reads, form.decay
    return np.array(
        [
            [
                [
                    (reads.T * decay**k) @ kernel @ (reads.T * decay**later).T
                    for later in range(time)
                ]
                for k in range(time)
            ]
            for kernel in form.kernels
        ]
    )


@settings(max_examples=40, deadline=None)
@given(**CASES, part=st.sampled_from([1, 400, 10**6]))
def test_tables_over_lags_are_products_of_the_definition(time, part, d, **case):
    rnn = network(d=d, **case)
    form = quadratic_form(rnn)
    expected = naive_tables(form, time)
    scale = max(float(np.max(np.abs(expected))), 1.0)
    entries = form.reads.shape[1]
    v, spread = np.random.default_rng(case["seed"]).normal(size=(2, entries))
    later = np.tri(time, k=-1)[:, :, None, None]
    for held in (form, response_form(rnn, time)):
        for tables, G in zip(lag_tables(held, time), expected, strict=True):
            same = G[np.arange(time), np.arange(time)]
            scaled = spread[:, None] * np.swapaxes(G, 0, 1) * spread
            with mock.patch.object(module, "PART_NUMBERS", part):
                squares = tables.squares_of_pairs(spread)
            for values, naive, power in (
                (tables.of_one_token(), same, 1),
                (tables.reads_of(v), np.einsum("e,pkef->pkf", v, G), 1),
                (squares, np.sum(later * scaled**2, axis=(1, 2, 3)), 2),
            ):
                np.testing.assert_allclose(values, naive, rtol=0, atol=1e-12 * scale**power)


@settings(max_examples=30, deadline=None)
@given(**CASES)
def test_gate_outputs_and_kernels_have_the_same_sizes(time, **case):
    first, second = network(**case), network(**{**case, "seed": case["seed"] + 1})
    dense, held = quadratic_form(first), response_form(first, time)
    expected = second_moments(dense, time)
    scale = max(float(np.max(expected)), 1.0)
    np.testing.assert_allclose(second_moments(held, time), expected, rtol=0, atol=1e-12 * scale)
    apart = second_moments(dense - quadratic_form(second), time)
    both = second_moments(held - response_form(second, time), time)
    np.testing.assert_allclose(both, apart, rtol=0, atol=1e-12 * max(float(np.max(apart)), 1.0))
    # A network is no different from itself, and no square is lost in the difference of squares.
    assert size(held - held, time) <= 1e-13 * np.sqrt(scale)


@settings(max_examples=20, deadline=None)
@given(**CASES)
def test_degrees_have_the_sizes_of_their_parts(time, **case):
    form = quadratic_form(network(**case))
    expected = {degree: size(part, time) for degree, part in by_degree(form).items()}
    scale = max(expected.values(), default=0.0)
    assert degree_sizes(form, time) == pytest.approx(expected, rel=1e-10, abs=1e-12 * scale)
