"""Gated RNNs as exact polynomials: of moments on all sequences, of one token at first."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from teachers import random_gated, random_side

import underhood as uh
from underhood.analysis.forms.moments import moment_form
from underhood.analysis.forms.polynomials import polynomial

pytestmark = pytest.mark.usefixtures("x64")


def assert_close(result, expected, tolerance=1e-11):
    scale = max(float(np.max(np.abs(expected), initial=0.0)), 1.0)
    np.testing.assert_allclose(result, expected, atol=tolerance * scale)


@settings(max_examples=25)
@given(
    d=st.integers(1, 4),
    n=st.integers(0, 6),
    m=st.integers(0, 5),
    d_out=st.integers(1, 3),
    decays=st.sampled_from([(1.0,), (0.0,), (0.0, 1.0), (0.0, 0.3, 0.3, 0.9, 1.0)]),
    side=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_the_form_is_the_network_on_all_sequences(d, n, m, d_out, decays, side, seed):
    rng = np.random.default_rng(seed)
    rnn = (
        random_side(rng, d, n, d_out, decays) if side else random_gated(rng, d, n, m, d_out, decays)
    )
    xs = rng.normal(size=(5, d))
    state, expected = rnn.initial_state(), []
    for x in xs:
        state, y = rnn.step(state, jnp.asarray(x))
        expected.append(np.asarray(y))
    assert_close(moment_form(rnn)(xs), np.array(expected))


def test_scrambled_neurons_have_the_same_form():
    rng = np.random.default_rng(0)
    rnn = random_gated(rng, 3, 5, 4, 2, (0.0, 1.0))
    expected = moment_form(rnn)
    order, gates = rng.permutation(5), rng.permutation(4)
    size, gate = rng.uniform(0.5, 2, 5), rng.uniform(0.5, 2, 4)
    scrambled = uh.GatedRNN(
        W_in_m=(rnn.W_in_x * size[:, None])[order],
        W_in_x=rnn.W_in_m[order],
        decay=rnn.decay[order],
        W_out_m=(rnn.W_out_x / size * gate[:, None])[gates][:, order],
        W_out_x=(rnn.W_out_m / size)[gates][:, order],
        D=(rnn.D / gate)[:, gates],
    )
    result = moment_form(scrambled)
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


# --- one token


@pytest.mark.usefixtures("quick_compile")
def test_the_polynomial_is_the_network_on_one_token():
    rng = np.random.default_rng(2)
    for rnn in (random_gated(rng, 3, 6, 4, 2, (0.0, 0.5, 1.0)), random_side(rng, 3, 6, 2, (1.0,))):
        result = polynomial(rnn)
        xs = rng.normal(size=(7, 3))
        assert_close(
            result(xs), np.concatenate([np.asarray(rnn(jnp.asarray(x[None]))) for x in xs])
        )


@pytest.mark.parametrize("d", [1, 2, 4])
def test_every_monomial_of_degree_four_or_less_is_there_once(d):
    rng = np.random.default_rng(d)
    result = polynomial(random_gated(rng, d, 5, 4, 1, (1.0,)))
    assert len(result.powers) == math.comb(d + 4, 4)
    assert len({tuple(power) for power in result.powers}) == len(result.powers)
    assert result.degrees.min() == 0 and result.degrees.max() == 4
    assert np.all(np.diff(result.degrees) >= 0)


@pytest.mark.usefixtures("quick_compile")
def test_coefficients_are_derivatives():
    rng = np.random.default_rng(3)
    rnn = random_gated(rng, 2, 4, 3, 2, (0.0, 1.0))
    result = polynomial(rnn)

    def output(x):
        return rnn(x[None])[0]

    derivatives = [output]
    for _ in range(4):
        derivatives.append(jax.jacfwd(derivatives[-1]))
    at_zero = [np.asarray(jax.jit(function)(jnp.zeros(2))) for function in derivatives]
    for powers, coefficient in zip(result.powers, result.coefficients.T, strict=True):
        indices = tuple(place for place in range(2) for _ in range(powers[place]))
        expected = at_zero[len(indices)][(slice(None), *indices)]
        factorials = math.prod(math.factorial(power) for power in powers)
        assert_close(coefficient, expected / factorials)


def test_one_step_of_gradient_descent_has_the_papers_coefficients():
    task = uh.tasks.InContextRegression()
    rnn = uh.compile(task.best_attention()).layer
    result = polynomial(rnn)
    for place in range(3):
        # x_place² y_1, the only products of output 1.
        powers = np.zeros(6, int)
        powers[place], powers[3] = 2, 1
        where = int(np.argmax(np.all(result.powers == powers, axis=1)))
        assert result.coefficients[0, where] == pytest.approx(1 / 14.8, rel=1e-12)
    assert np.sum(np.abs(result.coefficients[0]) > 1e-12) == 3


@pytest.mark.usefixtures("unhooked")
def test_other_layers_are_refused():
    with pytest.raises(uh.BadInput, match="not a LSTM"):
        moment_form(uh.LSTM.init(d_in=2, hidden=2, key=jax.random.key(0)))
    with pytest.raises(uh.BadInput, match="not a GRU"):
        polynomial(uh.GRU.init(d_in=2, hidden=2, key=jax.random.key(0)))
