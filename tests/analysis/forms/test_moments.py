"""Gated RNNs as exact polynomials of moments, on all sequences."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from scrambles import permuted, rescaled, scrambled, swapped_branches
from teachers import network_sizes, random_gated, random_network

import underhood as uh
from underhood.analysis.forms.polynomials import moment_form

pytestmark = pytest.mark.usefixtures("x64")


def assert_close(result, expected, tolerance=1e-11):
    scale = max(float(np.max(np.abs(expected), initial=0.0)), 1.0)
    np.testing.assert_allclose(result, expected, atol=tolerance * scale)


@settings(max_examples=25)
@given(network_sizes(d=4, n=6, m=5))
def test_the_form_is_the_network_on_all_sequences(sizes):
    rnn, rng = random_network(**sizes)
    xs = rng.normal(size=(5, rnn.d_in))
    state, expected = rnn.initial_state(), []
    for x in xs:
        state, y = rnn.step(state, jnp.asarray(x))
        expected.append(np.asarray(y))
    assert_close(moment_form(rnn)(xs), np.array(expected))


def test_scrambled_neurons_have_the_same_form():
    rng = np.random.default_rng(0)
    rnn = random_gated(rng, 3, 5, 4, 2, (0.0, 1.0))
    expected = moment_form(rnn)
    result = moment_form(scrambled(rnn, rng, (rescaled, swapped_branches, permuted)))
    assert result.decays == expected.decays
    for pair, table in expected.terms.items():
        assert_close(result.terms[pair], table)


@pytest.mark.parametrize("target", ["gated_rnn", "side_gated_rnn"])
def test_a_compiled_network_has_attentions_form_alone(target):
    rng = np.random.default_rng(1)
    W_V, W_K, W_Q = rng.normal(size=(3, 3, 3))
    form = moment_form(uh.compile(uh.LinearAttention(W_V, W_K, W_Q), target=target).layer)
    assert form.decays == (0.0, 1.0)
    M = W_K.T @ W_Q
    rows, columns = np.triu_indices(4)
    for i, j in itertools.product(range(10), range(10)):
        (k, last), (a, b) = (rows[i], columns[i]), (rows[j], columns[j])
        # y_o = Σ W_V[o,a] S_ab M[b,k] x_k: the current token as (k, constant), no other constant.
        expected = np.zeros(3)
        if last == 3 and k < 3 and b < 3:
            expected = W_V[:, a] * M[b, k] + (a != b) * W_V[:, b] * M[a, k]
        assert_close(form.terms[0, 1][:, i, j], expected)
    assert_close(form.terms.get((1, 1), np.zeros(1)), 0.0)


@pytest.mark.usefixtures("unhooked")
def test_other_layers_are_refused():
    with pytest.raises(uh.BadInput, match="not an LSTM"):
        moment_form(uh.LSTM.init(d_in=2, hidden=2, key=jax.random.key(0)))
