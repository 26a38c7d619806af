"""Sizes and projections of functions on normal tokens, against closed forms and simulations."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scrambles import SCRAMBLES, network, scrambled
from teachers import attention, gated_rnn

import underhood as uh
from underhood.analysis.decompilation.projection import attention_features, exact_table, project
from underhood.analysis.forms.norms import between, by_degree, second_moments, size
from underhood.analysis.forms.quadratic import (
    QuadraticForm,
    attention_table,
    decay_groups,
    from_table,
    quadratic_form,
)
from underhood.common.linear_algebra import upper
from underhood.tasks.moments import output_moments

pytestmark = pytest.mark.usefixtures("x64")


def random_form(rng, d, n, d_out, decays):
    """Random reads of every degree, and kernels over all pairs of neurons."""
    kernels = rng.normal(size=(d_out, n, n))
    reads = rng.normal(size=(n, len(upper(d + 1)[0])))
    return QuadraticForm(d, reads, rng.choice(decays, size=n), kernels + kernels.swapaxes(1, 2))


@st.composite
def drawn_forms(draw, least=0, most=6):
    """A random form of a random size, and the generator that it came from."""
    d, d_out = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    decays = draw(st.sampled_from([(1.0,), (0.0, 1.0), (0.0, 0.4, 0.9, 1.0)]))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    return random_form(rng, d, draw(st.integers(least, most)), d_out, decays), rng


def added(form, more):
    return form - QuadraticForm(more.d_in, more.reads, more.decay, -more.kernels)


def assert_same(result, expected, tolerance=1e-11):
    scale = max(float(np.max(np.abs(expected), initial=0.0)), 1.0)
    np.testing.assert_allclose(result, expected, atol=tolerance * scale, rtol=0)


# --- second moments


@settings(max_examples=30)
@given(
    d=st.integers(1, 5),
    d_v=st.integers(1, 4),
    time=st.integers(1, 9),
    biases=st.booleans(),
    decays=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_attention_has_the_moments_of_its_closed_form(d, d_v, time, biases, decays, seed):
    rng = np.random.default_rng(seed)
    extra = {"decay": rng.uniform(size=d_v)} if decays else {}
    if biases:
        extra |= {"b_V": rng.normal(size=d_v), "b_K": rng.normal(size=3), "b_Q": rng.normal(size=3)}
    source = attention(d, seed, d_v=d_v, d_k=3, **extra)
    expected = output_moments(source, time)[1]
    for form in (quadratic_form(source), quadratic_form(uh.compile(source).layer)):
        np.testing.assert_allclose(second_moments(form, time), expected, rtol=1e-9, atol=1e-11)
    assert size(form, time) == pytest.approx(np.sqrt(np.mean(expected)), rel=1e-9)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_gated_rnns_have_the_moments_of_a_simulation(d):
    rnn, rng = gated_rnn(d, hidden=6, gated=5), np.random.default_rng(d)
    form = quadratic_form(rnn)
    xs = rng.normal(size=(6, d))
    assert_same(form(xs), np.asarray(rnn(jnp.asarray(xs))))
    # Batches give the error bars.
    batches = np.array([np.mean(form(rng.normal(size=(4000, 5, d))) ** 2, 0).T for _ in range(50)])
    exact, error = second_moments(form, 5), batches.std(axis=0) / np.sqrt(50)
    apart = np.abs(batches.mean(axis=0) - exact)
    np.testing.assert_array_less(apart, 4.5 * error)
    assert np.median(error / exact) < 0.05


def quadrature(form, time, product):
    """E[product(y(time))] by Gauss–Hermite, exact up to degree 2·24 − 1 per number; d = 1."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(24)
    xs = np.stack(np.meshgrid(*[nodes] * time, indexing="ij"), axis=-1).reshape(-1, time, 1)
    chances = np.prod(np.meshgrid(*[weights] * time, indexing="ij"), axis=0).ravel()
    return product(form(xs)[:, -1], xs).T @ (chances / chances.sum())


@settings(max_examples=30)
@given(n=st.integers(1, 5), time=st.integers(1, 2), seed=st.integers(0, 2**16))
def test_one_input_has_the_moments_of_quadrature(n, time, seed):
    form = random_form(np.random.default_rng(seed), 1, n, 2, (0.0, 0.5, 1.0))
    expected = quadrature(form, time, lambda y, _: y**2)
    np.testing.assert_allclose(second_moments(form, time)[:, -1], expected, rtol=1e-10)


@pytest.mark.parametrize("seed", range(5))
def test_functions_that_cancel_have_size_zero(seed):
    rng = np.random.default_rng(seed)
    form = random_form(rng, 3, 6, 2, (0.0, 0.7, 1.0))
    same = QuadraticForm(3, form.reads[::-1], form.decay[::-1], form.kernels[:, ::-1, ::-1])
    source = attention(3, seed, decay=rng.uniform(0.2, 1, 3))
    network_of_it = quadratic_form(scrambled(uh.compile(source).layer, rng, SCRAMBLES))
    # Not 1e-8: no square may be lost in the difference of squares.
    for first, second in ((form, same), (quadratic_form(source), network_of_it)):
        assert np.all(second_moments(first - second, 12) >= 0)
        assert size(first - second, 12) <= 1e-12 * max(size(first, 12), 1.0)


# --- parts


@settings(max_examples=25)
@given(drawn_forms())
def test_degrees_sum_up_and_scale_as_they_should(drawn):
    form, rng = drawn
    xs = rng.normal(size=(3, 5, form.d_in))
    parts = list(by_degree(form).values())
    assert len(parts) == 5
    assert_same(sum(part(xs) for part in parts), form(xs))
    for degree, part in enumerate(parts):
        assert_same(part(1.7 * xs), 1.7**degree * part(xs))
    # Even and odd parts are orthogonal.
    even, odd = added(added(parts[0], parts[2]), parts[4]), added(parts[1], parts[3])
    moments = second_moments(even, 4) + second_moments(odd, 4)
    assert_same(moments, second_moments(form, 4), 1e-10)


@settings(max_examples=25)
@given(drawn_forms())
def test_pairs_of_groups_sum_up(drawn):
    form, rng = drawn
    xs = rng.normal(size=(3, 5, form.d_in))
    groups = rng.integers(0, 3, form.neurons)
    pairs = [(a, b) for a in range(3) for b in range(a, 3)]
    parts = [between(form, groups == a, groups == b) for a, b in pairs]
    assert_same(sum(part(xs) for part in parts), form(xs))
    for (a, b), part in zip(pairs, parts, strict=True):
        alone = part.keep((groups == a) | (groups == b))
        assert_same(alone(xs), part(xs))
        assert_same(between(form, groups == b, groups == a).kernels, part.kernels)


@settings(max_examples=25)
@given(drawn_forms(most=46))
def test_gathered_neurons_compute_the_same(drawn):
    form, rng = drawn
    few = form.gathered()
    xs = rng.normal(size=(3, 5, form.d_in))
    assert_same(few(xs), form(xs))
    assert few.neurons <= min(form.neurons, len(decay_groups(form.decay)[0]) * few.reads.shape[1])
    assert_same(few.kernels, few.kernels.swapaxes(1, 2))


@settings(max_examples=15)
@given(drawn_forms(least=1))
def test_forms_and_networks_turn_into_each_other(drawn):
    form, rng = drawn
    xs = rng.normal(size=(3, 5, form.d_in))
    assert_same(quadratic_form(network(form))(xs), form(xs), 1e-10)


# --- projections


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("decay", [1.0, 0.8, 0.3])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_what_is_left_is_orthogonal_to_every_feature(d, decay, biases):
    rng, time = np.random.default_rng(d), 6
    form = random_form(rng, d, 5, 2, (0.0, 0.3, 0.6, 1.0))
    features = attention_features(d, biases=biases)
    projected = project(form, decay, features, time)[0]
    assert not np.any(projected[:, ~features])
    near = from_table(d, projected, np.full(2, decay))
    left = form - near
    # Pythagoras, with the projection and with random functions in its place.
    shape = (2, len(upper(d + 1)[0]), d + 1)
    tables = [features * rng.normal(size=shape) for _ in range(3)]
    for form in (near, *(from_table(d, table, np.full(2, decay)) for table in tables)):
        both = np.mean(second_moments(added(left, form), time), axis=1)
        apart = [np.mean(second_moments(part, time), axis=1) for part in (left, form)]
        np.testing.assert_allclose(both, np.sum(apart, axis=0), rtol=1e-9)


@settings(max_examples=30)
@given(
    d=st.integers(1, 4),
    d_v=st.integers(1, 4),
    biases=st.booleans(),
    decay=st.sampled_from([1.0, 0.7, 0.2]),
    time=st.integers(2, 20),
    seed=st.integers(0, 2**16),
)
def test_attention_is_its_own_projection(d, d_v, biases, decay, time, seed):
    rng = np.random.default_rng(seed)
    width = d + 1 if biases else d
    V, M = np.zeros((d_v, d + 1)), np.zeros((d + 1, d + 1))
    V[:, :width], M[:width, :width] = rng.normal(size=(d_v, width)), rng.normal(size=(width, width))
    expected = attention_table(V, M)
    form = from_table(d, expected, np.full(d_v, decay))
    features = attention_features(d, biases=biases)
    assert_same(exact_table(form.gathered(), decay), expected, 1e-12)
    assert_same(project(form, decay, features, time)[0], expected, 1e-12)
    # The same through the metric alone, told that nothing has this very decay.
    moved = from_table(d, expected, np.full(d_v, decay * (1 - 1e-9)))
    assert_same(project(moved, decay, features, time)[0], expected, 1e-6)


def test_a_projection_has_the_normal_equations_of_quadrature():
    form, time = random_form(np.random.default_rng(5), 1, 4, 1, (0.0, 0.5, 1.0)), 2
    features = attention_features(1, biases=False)
    (coefficient,) = project(form, 1.0, features, time)[0][0][features]

    def feature(xs):
        return np.sum(xs[..., 0] ** 2, axis=1) * xs[:, -1, 0]

    top = sum(quadrature(form, t, lambda y, xs: y * feature(xs)[:, None])[0] for t in (1, 2))
    below = sum(quadrature(form, t, lambda _, xs: feature(xs)[:, None] ** 2)[0] for t in (1, 2))
    assert coefficient == pytest.approx(top / below, rel=1e-10)


# --- the smallest cases


@pytest.mark.parametrize("n, d_out", [(0, 2), (3, 0), (0, 0)])
def test_nothing_has_size_zero(n, d_out):
    form = random_form(np.random.default_rng(0), 2, n, d_out, (1.0,))
    assert size(form, 3) == 0
    assert second_moments(form, 1).shape == (d_out, 1)
    assert form(np.ones((4, 2))).shape == (4, d_out)
    if d_out:
        assert not project(form, 1.0, attention_features(2, biases=True), 4)[0].any()
    assert all(size(part, 3) == 0 for part in by_degree(form).values())


def test_one_token_is_a_polynomial():
    # y = x² (x + 2): E[y²] = E[x⁶] + 4E[x⁴] = 15 + 12.
    table = np.zeros((1, 3, 2))
    table[0, 0] = 1.0, 2.0
    form = from_table(1, table, np.ones(1))
    assert second_moments(form, 1)[0, 0] == pytest.approx(27, rel=1e-12)
    table, _ = project(form, 1.0, attention_features(1, biases=False), 1)
    # On one token the nearest multiple of x³ to x³ + 2x² is x³.
    assert table[0, 0, 0] == pytest.approx(1, rel=1e-12)
    assert np.count_nonzero(table) == 1
