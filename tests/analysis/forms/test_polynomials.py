"""Polynomials of one token against sympy and derivatives."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sympy
from hypothesis import given, settings, strategies as st
from teachers import attention, gated_rnn

import underhood as uh
from underhood.analysis.forms.monomials import monomials
from underhood.common.errors import with_article
from underhood.common.linear_algebra import upper

pytestmark = pytest.mark.usefixtures("x64")


def rational(array) -> sympy.Matrix:
    """Floats as the fractions that they are."""
    return sympy.Matrix(np.vectorize(sympy.Rational, otypes=[object])(np.asarray(array, float)))


def times(left, right) -> sympy.Matrix:
    return left.multiply_elementwise(right)


def on_one_token(layer, x: sympy.Matrix) -> sympy.Matrix:
    """The layer's equations at t = 1, where no decay has worked yet."""
    if isinstance(layer, uh.LinearAttention):
        v, k, q = (
            rational(W) * x + (rational(b) if b is not None else sympy.zeros(len(W), 1))
            for W, b in ((layer.W_V, layer.b_V), (layer.W_K, layer.b_K), (layer.W_Q, layer.b_Q))
        )
        return v * (k.T * q)
    z = x if isinstance(layer, uh.SideGatedRNN) else sympy.Matrix([*x, 1])
    h = times(rational(layer.W_in_m) * z, rational(layer.W_in_x) * z)
    if isinstance(layer, uh.SideGatedRNN):
        return rational(layer.D) * times(rational(layer.W_side) * x, h)
    return rational(layer.D) * times(rational(layer.W_out_m) * h, rational(layer.W_out_x) * h)


def random_layer(kind: str, d: int, seed: int):
    rng = np.random.default_rng([d, seed])
    if kind == "attention":
        b_V, b_K, b_Q = rng.normal(size=(3, d))
        return attention(d, seed, b_V=b_V, b_K=b_K, b_Q=b_Q, decay=rng.uniform(size=d))
    if kind == "side":
        W_m, W_x, W_side = rng.normal(size=(3, 4, d))
        decay = rng.uniform(size=4)
        D = rng.normal(size=(2, 4))
        return uh.SideGatedRNN(W_in_m=W_m, W_in_x=W_x, decay=decay, W_side=W_side, D=D)
    return gated_rnn(d, seed, hidden=4, gated=3)


KINDS = ("gated", "side", "attention")


@settings(max_examples=12)
@given(kind=st.sampled_from(KINDS), d=st.integers(1, 3), seed=st.integers(0, 999))
def test_coefficients_are_those_that_sympy_expands(kind, d, seed):
    layer = random_layer(kind, d, seed)
    result = uh.polynomial(layer)
    symbols = sympy.symbols(f"x1:{d + 1}")
    outputs = on_one_token(layer, sympy.Matrix(symbols))
    assert result.coefficients.shape == (layer.d_out, math.comb(d + 4, 4))
    for o, output in enumerate(outputs):
        expected = sympy.Poly(output, *symbols)
        assert expected.total_degree() <= 4
        for power in result.powers:
            exact = float(expected.coeff_monomial(tuple(int(p) for p in power)))
            assert result.coefficient(o, *(int(p) for p in power)) == pytest.approx(
                exact, abs=1e-12
            )


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_layer_on_one_token_and_its_coefficients_are_mixed_differences(kind):
    layer = random_layer(kind, 2, 5)
    result = uh.polynomial(layer)
    tokens = jax.jit(jax.vmap(lambda x: layer(x[None])[0]))
    xs = np.random.default_rng(2).normal(size=(7, 2))
    expected = np.asarray(tokens(jnp.asarray(xs)))
    np.testing.assert_allclose(result(xs), expected, atol=1e-11 * max(np.abs(expected).max(), 1))
    for power, coefficients in zip(result.powers, result.coefficients.T, strict=True):
        # Central differences of order p are exact for degree 4 but for terms of higher degree in
        # one variable; a step of 1e-2 leaves those below a thousandth.
        step = 1e-2
        offsets = [[(p / 2 - i, (-1) ** i * math.comb(p, i)) for i in range(p + 1)] for p in power]
        stencil = list(itertools.product(*offsets))
        points = jnp.array([[step * place for place, _ in corner] for corner in stencil])
        signs = np.array([math.prod(sign for _, sign in corner) for corner in stencil])
        derivative = signs @ np.asarray(tokens(points)) / step ** power.sum()
        expected = derivative / math.prod(math.factorial(p) for p in power)
        np.testing.assert_allclose(coefficients, expected, atol=2e-3)


@pytest.mark.parametrize("d", [1, 2, 4])
def test_every_monomial_of_degree_four_or_less_is_there_once(d):
    result = uh.polynomial(random_layer("gated", d, 0))
    assert len({tuple(power) for power in result.powers}) == len(result.powers)
    assert len(result.powers) == math.comb(d + 4, 4)
    assert (
        result.degrees[0] == 0 and result.degrees[-1] == 4 and np.all(np.diff(result.degrees) >= 0)
    )


@pytest.mark.parametrize("d", [1, 2, 5, 30, 40])
def test_products_of_entries_find_their_monomial(d):
    known, rng = monomials(d), np.random.default_rng(d)
    rows, columns = upper(d + 1)
    z = np.eye(d + 1, d, dtype=int)
    v = z[rows] + z[columns]
    first, second = rng.integers(len(v), size=(2, 500))
    assert np.array_equal(known.powers[known.quartic[first, second]], v[first] + v[second])
    third = rng.integers(d + 1, size=500)
    assert np.array_equal(known.powers[known.cubic[first, third]], v[first] + z[third])
    assert np.array_equal(known.powers[known.quadratic], v)
    # By degree, then x1 before x2.
    order = np.lexsort((*-known.powers.T[::-1], known.powers.sum(axis=1)))
    assert np.array_equal(order, np.arange(math.comb(d + 4, 4)))


def test_forty_inputs():
    """Codes of monomials by powers of 5 would overflow from 28 inputs on."""
    source = attention(40, d_v=2)
    result, xs = uh.polynomial(uh.compile(source).layer), np.zeros((3, 40))
    xs[:, [0, 3, 39]] = np.random.default_rng(0).normal(size=(3, 3))
    expected = np.array([source(jnp.asarray(x)[None])[0] for x in xs])
    np.testing.assert_allclose(result(xs), expected, atol=1e-11 * np.abs(expected).max())


def test_twelve_inputs():
    source = attention(12)
    result = uh.polynomial(uh.compile(source).layer)
    assert result.coefficients.shape == (12, math.comb(16, 4))
    assert result.distance(uh.polynomial(source)) < 1e-12
    xs = np.random.default_rng(0).normal(size=(3, 12))
    expected = [source(jnp.asarray(x[None]))[0] for x in xs]
    np.testing.assert_allclose(result(xs), np.array(expected), atol=1e-9)


def test_distance_is_the_papers():
    first, second = (uh.polynomial(random_layer("gated", 2, seed)) for seed in (0, 1))
    shares = [
        np.sqrt(np.sum((p - q) ** 2) / np.sum(q**2))
        for p, q in zip(first.coefficients, second.coefficients, strict=True)
    ]
    assert first.distance(second) == pytest.approx(np.mean(shares), rel=1e-12)
    assert first.distance(first) == 0.0
    # Scaled by 1.1, each output is a tenth away.
    rnn = random_layer("gated", 2, 0)
    W = {name: getattr(rnn, name) for name in ("W_in_m", "W_in_x", "decay", "W_out_m", "W_out_x")}
    assert uh.polynomial(uh.GatedRNN(**W, D=1.1 * rnn.D)).distance(first) == pytest.approx(0.1)
    # An output that should be zero is compared with the largest.
    silent = uh.polynomial(uh.GatedRNN(**W, D=rnn.D * [[1.0], [0.0], [1.0]]))
    sizes = np.linalg.norm(first.coefficients, axis=1)
    assert first.distance(silent) == pytest.approx(sizes[1] / max(sizes[0], sizes[2]) / 3)
    zero = uh.polynomial(uh.GatedRNN(**W, D=0 * rnn.D))
    assert zero.distance(zero) == 0.0


def test_residual_leaves_out_the_kept_powers():
    result = uh.polynomial(random_layer("gated", 2, 0))
    everything = np.linalg.norm(result.coefficients[1])
    assert result.residual(1) == pytest.approx(everything)
    kept = result.coefficient(1, 2, 1) ** 2 + result.coefficient(1, 0, 0) ** 2
    assert result.residual(1, (2, 1), (0, 0)) == pytest.approx(np.sqrt(everything**2 - kept))
    assert result.residual(1, (2, 1), (2, 1)) == result.residual(1, (2, 1))
    task = uh.tasks.InContextRegression()
    descent = uh.polynomial(uh.compile(task.best_attention()).layer)
    products = [tuple(2 * (i == place) + (i == 3) for i in range(6)) for place in range(3)]
    coefficients = [descent.coefficient(0, *power) for power in products]
    assert coefficients == pytest.approx([1 / 14.8] * 3, rel=1e-12)
    assert descent.residual(0, *products) < 1e-12 < descent.residual(0, *products[:2])


def test_expressions_and_words():
    result = uh.polynomial(random_layer("gated", 2, 0))
    expressions = result.expressions()
    point = (0.3, -0.7)
    at = dict(zip(("x1", "x2"), point, strict=True))
    values = [float(expression.subs(at)) for expression in expressions]
    np.testing.assert_allclose(values, result(np.array([point]))[0], rtol=1e-12)
    a, b = sympy.symbols("a b")
    assert result.expressions(["a", "b"])[0].free_symbols == {a, b}
    largest = np.max(np.abs(result.coefficients[0]))
    terms = result.expressions(smallest=0.99 * largest)[0].as_ordered_terms()
    assert len(terms) == 1 and abs(float(terms[0].as_coeff_Mul()[0])) == pytest.approx(largest)
    # (2x + y)·x·y and a term too small to tell.
    source = uh.LinearAttention(
        np.array([[2.0, 1.0]]), np.array([[1.0, 0.0]]), np.array([[1e-6, 1.0]])
    )
    assert str(uh.polynomial(source)) == "y1 = 2.0*x1**2*x2 + 1.0*x1*x2**2"
    nothing = uh.LinearAttention(np.zeros((2, 2)), np.eye(2), np.eye(2))
    assert str(uh.polynomial(nothing)) == "y1 = 0\ny2 = 0"


@pytest.mark.usefixtures("unhooked")
def test_bad_input_is_refused():
    result = uh.polynomial(random_layer("gated", 2, 0))
    for power in ((1,), (1, 0, 0), (), (5, 0), (3, 2), (-1, 1)):
        for refused in (result.coefficient, lambda o, *power: result.residual(o, power)):
            with pytest.raises(uh.BadInput, match="Give 2 powers") as raised:
                refused(0, *power)
            assert "\n" not in str(raised.value)
    for layer in (random_layer("gated", 3, 0), random_layer("side", 2, 0)):
        with pytest.raises(uh.BadInput, match="the same inputs and outputs"):
            result.distance(uh.polynomial(layer))
    with pytest.raises(uh.BadInput, match="Give 2 names, not 3"):
        result.expressions(["a", "b", "c"])
    for kind in (uh.LSTM, uh.GRU):
        with pytest.raises(uh.BadInput, match=f"not {with_article(kind.__name__)}"):
            uh.polynomial(kind.init(d_in=2, hidden=2, key=jax.random.key(0)))
