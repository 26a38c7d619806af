"""Certificates: the bound holds, stays close to what ascent finds, and counts rounding."""

import functools
import itertools
import json
import time as clock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from teachers import attention, gated_rnn

import underhood as uh
from underhood.analysis.decompilation.bounding.bounds import one_token_bound, two_token_bound
from underhood.analysis.decompilation.bounding.lags import COARSE, FINE, lag_nodes
from underhood.analysis.decompilation.bounding.rounding import rounding_bound
from underhood.analysis.forms.quadratic import (
    QuadraticForm,
    products,
    quadratic_form,
    symmetric_products as reads_of,
)
from underhood.common.linear_algebra import upper

pytestmark = pytest.mark.usefixtures("x64")

TIMES = (1, 2, 5, 32)
RADII = (0.3, 1.0, 2.0, 3.0)


def weights_of(layer) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in vars(layer).items() if name != "nu"}


def perturbed(layer, size: float):
    """Every weight off by a share of about `size`; decays leave 0 and 1 for the inside."""
    rng = np.random.default_rng(3)
    weights = {
        name: W * (1 + size * rng.normal(size=W.shape)) for name, W in weights_of(layer).items()
    }
    moved = size * np.abs(rng.normal(size=layer.neurons))
    decay = np.asarray(layer.decay)
    return type(layer)(**weights, decay=np.where(decay > 0.5, decay * (1 - moved), decay + moved))


def planted(layer: uh.GatedRNN, size: float) -> uh.GatedRNN:
    """One more gate, in which memories and queries meet as they should not."""
    rng = np.random.default_rng(4)
    weights = weights_of(layer)
    for name in ("W_out_m", "W_out_x"):
        weights[name] = np.vstack([weights[name], rng.normal(size=(1, layer.neurons))])
    weights["D"] = np.hstack([layer.D, size * rng.normal(size=(layer.d_out, 1))])
    return uh.GatedRNN(**weights, decay=layer.decay)


BIASES = dict(zip(("b_V", "b_K", "b_Q"), np.random.default_rng(5).normal(size=(3, 2)), strict=True))
RANDOM = {"d_in": 2, "hidden": 6, "d_out": 3}
FADES = np.array([0.9, 0.5])
NETWORKS = {
    "1e-2": lambda: perturbed(uh.compile(attention(2)).layer, 1e-2),
    "1e-4": lambda: perturbed(uh.compile(attention(2, d_v=3)).layer, 1e-4),
    "1e-6": lambda: perturbed(uh.compile(attention(3, d_v=1)).layer, 1e-6),
    "planted 1e-6": lambda: planted(uh.compile(attention(3)).layer, 1e-6),
    "planted, d = 1": lambda: planted(uh.compile(attention(1)).layer, 1e-2),
    "side": lambda: perturbed(uh.compile(attention(2, seed=1), "side_gated_rnn").layer, 1e-4),
    "biases": lambda: perturbed(uh.compile(attention(2, **BIASES)).layer, 1e-4),
    "decayed": lambda: perturbed(uh.compile(attention(2, decay=FADES)).layer, 1e-5),
    "random": lambda: gated_rnn(2),
    "random, more outputs": lambda: uh.GatedRNN.init(**RANDOM, gated=4, key=jax.random.key(1)),
    "random side": lambda: uh.SideGatedRNN.init(**RANDOM, key=jax.random.key(2)),
    "exact": lambda: uh.compile(attention(3)).layer,
}
CLOSE = ("1e-2", "1e-4", "1e-6", "planted 1e-6", "side", "biases", "decayed")


@functools.cache
def certificate(name: str) -> uh.Certificate:
    return uh.decompile(NETWORKS[name]()).certificate


def difference(issued: uh.Certificate) -> QuadraticForm:
    """The difference over all pairs of neurons, whatever the certificate works on."""
    assert issued.exponent == 0
    apart = quadratic_form(issued.network) - quadratic_form(issued.attention)
    return apart.gathered(equal=0.0)


def sequences(many: int, time: int, d: int, radius: float) -> np.ndarray:
    """On the sphere, inside, constant, constant but for the last token, and mostly zero."""
    rng = np.random.default_rng([many, time, d])
    xs = rng.normal(size=(many, time, d))
    xs *= radius / np.linalg.norm(xs, axis=-1, keepdims=True)
    fifth = many // 5
    xs[:fifth] *= rng.uniform(size=(fifth, time, 1)) ** (1 / d)
    xs[fifth : 2 * fifth] = xs[fifth : 2 * fifth, :1]
    xs[2 * fifth : 3 * fifth, :-1] = xs[2 * fifth : 3 * fifth, :1]
    xs[3 * fifth : 4 * fifth] *= rng.uniform(size=(fifth, time, 1)) < 0.1
    return xs


def worst_by_ascent(form: QuadraticForm, radius: float, time: int, starts: int = 20) -> float:
    """The largest last output that projected gradient ascent finds."""
    rows, columns = upper(form.d_in + 1)
    fading = form.decay ** np.arange(time - 1, -1, -1)[:, None]

    def length(rows):
        return jnp.sqrt(jnp.sum(rows**2, axis=1, keepdims=True))

    def size(xs):
        z = jnp.concatenate([xs, jnp.ones((time, 1))], axis=1)
        state = jnp.sum(fading * ((z[:, rows] * z[:, columns]) @ form.reads.T), axis=0)
        return jnp.sum((form.kernels @ state @ state) ** 2)

    def step(number, xs):
        gradient = jax.grad(size)(xs)
        xs = xs + 2 * radius * 0.95**number * gradient / jnp.maximum(length(gradient), 1e-200)
        return xs * jnp.minimum(1.0, radius / jnp.maximum(length(xs), 1e-9))

    climb = jax.jit(jax.vmap(lambda xs: jax.lax.fori_loop(0, 100, step, xs)))
    climbed = climb(jnp.asarray(sequences(starts, time, form.d_in, radius)))
    return float(np.max(np.linalg.norm(form(np.asarray(climbed)), axis=-1)))


def naive_bound(form: QuadraticForm, radius: float, time: int) -> float:
    """The sum in the head of certificate.py, pair of lags by pair of lags."""
    lags = form.decay ** np.arange(time)[:, None]
    faded = lags[:, :, None] * form.reads
    tables = faded.swapaxes(1, 2)[:, None] @ form.kernels @ faded[:, None]
    ones = one_token_bound(tables, form.d_in, radius)
    pairs = [
        two_token_bound(lagged.T @ form.kernels @ faded[k + 1 :, None], form.d_in, radius)
        for k, lagged in enumerate(faded[:-1])
    ]
    return float(np.sum(ones) + 2 * sum(map(np.sum, pairs)))


def exactly(layer, xs: np.ndarray) -> np.ndarray:
    """The layer with 64 bits of mantissa, token by token; λ as the layer has it."""
    W = {name: np.asarray(w, np.longdouble) for name, w in vars(layer).items() if w is not None}
    xs, ys, state = np.asarray(xs, np.longdouble), [], np.longdouble(0)
    decay = np.asarray(1.0 if layer.decay is None else layer.decay, np.longdouble)
    for x in xs:
        if isinstance(layer, uh.LinearAttention):
            v, k, q = (W[f"W_{name}"] @ x + W.get(f"b_{name}", 0) for name in "VKQ")
            state = decay[..., None] * state + v[:, None] * k
            ys.append(state @ q)
        elif isinstance(layer, uh.SideGatedRNN):
            state = decay * state + (W["W_in_m"] @ x) * (W["W_in_x"] @ x)
            ys.append(W["D"] @ ((W["W_side"] @ x) * state))
        else:
            z = np.append(x, np.longdouble(1))
            state = decay * state + (W["W_in_m"] @ z) * (W["W_in_x"] @ z)
            ys.append(W["D"] @ ((W["W_out_m"] @ state) * (W["W_out_x"] @ state)))
    return np.array(ys)


@pytest.mark.parametrize("name", NETWORKS)
def test_neither_random_sequences_nor_ascent_exceed_the_bound(name: str) -> None:
    issued = certificate(name)
    form = difference(issued)
    for radius in RADII:
        xs = sequences(2500, max(TIMES), form.d_in, radius)
        differences = np.linalg.norm(form(xs), axis=-1)
        for time in TIMES:
            assert np.max(differences[:, :time]) <= issued.bound(radius, time)
    some = jnp.asarray(xs[::100])
    networks = issued.network, issued.attention
    theirs, ours = (jax.jit(jax.vmap(network))(some) for network in networks)
    assert np.max(np.linalg.norm(theirs - ours, axis=-1)) <= issued.bound(RADII[-1], max(TIMES))
    for radius, time in ((1.0, 8), (3.0, 32)) if name != "exact" else ():
        worst = worst_by_ascent(form, radius, time)
        limit = issued.exact_bound(radius, time)
        assert worst <= limit
        assert name not in CLOSE or limit <= 10 * worst


@pytest.mark.parametrize("name", ["random", "biases", "random side"])
def test_the_bound_is_the_sum_over_pairs_of_lags(name: str) -> None:
    issued = certificate(name)
    # Beyond 64 lags nodes stand for several; that costs little.
    for radius, time, close in ((0.5, 1, 1e-9), (2.0, 2, 1e-9), (1.0, 20, 1e-9), (1.0, 100, 0.01)):
        naive = naive_bound(difference(issued), radius, time)
        assert issued.exact_bound(radius, time) == pytest.approx(naive, rel=close)


@pytest.mark.parametrize("name", ["random", "1e-4", "random side", "exact"])
def test_the_bound_grows_with_radius_and_time_and_starts_at_rounding(name: str) -> None:
    issued = certificate(name)
    by_radius = [issued.bound(radius, 5) for radius in (0.0, 0.1, 0.9, 1.0, 1.1, 10.0)]
    by_time = [issued.bound(1.0, time) for time in (1, 2, 3, 33, 64, 65, 66, 67, 75, 76, 90, 300)]
    for bounds in (by_radius, by_time):
        assert all(less <= more for less, more in itertools.pairwise(bounds))
    for radius, time in ((0.0, 1), (1.0, 32), (3.0, 1000)) if name == "exact" else ():
        assert issued.exact_bound(radius, time) <= issued.rounding(radius, time)
        assert issued.bound(radius, time) <= 1e-9 * radius**3 * time + 1e-9


@pytest.mark.parametrize("name", ["random", "1e-4", "decayed"])
def test_long_sequences(name: str) -> None:
    issued = certificate(name)
    worst = worst_by_ascent(difference(issued), 1.0, 300, starts=5)
    assert worst <= issued.exact_bound(1.0, 300) <= (10 if name in CLOSE else 100) * worst
    start = clock.process_time()
    bounds = [issued.exact_bound(1.0, 300), *(issued.bound(1.0, 10**k) for k in (6, 12)), np.inf]
    assert all(less < more for less, more in itertools.pairwise(bounds))
    assert clock.process_time() - start < 4


def test_decays_that_differ_by_little_drift_apart() -> None:
    layer = uh.compile(attention(2)).layer
    decay = np.asarray(layer.decay).copy()
    decay[np.flatnonzero(decay == 1)[::2]] -= 9e-13
    result = uh.decompile(uh.GatedRNN(**weights_of(layer), decay=decay))
    apart = quadratic_form(result.certificate.network) - quadratic_form(result.attention)
    differences = apart(np.full((100_000, 2), 0.5**0.5))
    assert np.max(np.linalg.norm(differences, axis=-1)) <= result.certificate.bound(1.0, 100_000)


@pytest.mark.parametrize("time", [1, 2, 65, 66, 77, 300, 5000])
@pytest.mark.parametrize("spacing", [FINE, COARSE])
def test_nodes_stand_for_every_lag(time: int, spacing: tuple[int, float]) -> None:
    decay = np.array([0.0, 0.3, 0.97, 0.9999, 1.0])
    lags = lag_nodes(decay, time, spacing)
    assert lags.weights.sum() == pytest.approx(time)
    assert lags.squares.sum() + 2 * lags.shared.sum() == pytest.approx(time)
    assert lags.different.sum() == pytest.approx(time * (time - 1.0))
    above = lags.weights @ lags.fading - np.sum(decay ** np.arange(time)[:, None], axis=0)
    assert np.all(above >= -1e-12 * time)
    assert np.all(np.abs(lags.remainder - above) <= 1e-12 * time)


@pytest.mark.parametrize("name", ["side", "biases", "decayed", "random"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_rounding(name: str, dtype: type) -> None:
    issued = certificate(name)
    for layer in (issued.network, issued.attention):
        held = jax.tree.map(lambda weight: np.asarray(weight, dtype), layer)
        for radius, time in ((1.0, 1), (3.0, 60)):
            limit = rounding_bound(held, radius, time, dtype)
            xs = sequences(5, time, layer.d_in, 0.999 * radius).astype(dtype)
            for computed, sequence in zip(
                jax.jit(jax.vmap(held))(jnp.asarray(xs)), xs, strict=True
            ):
                off = np.asarray(computed, np.longdouble) - exactly(held, sequence)
                assert np.max(np.linalg.norm(off.astype(float), axis=-1)) <= limit
    assert issued.rounding(1.0, 32, np.float32) > 1e8 * issued.rounding(1.0, 32)
    assert issued.rounding(1.0, 10**9, np.float32) == np.inf


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("radius", [0.2, 3.0])
def test_token_bounds_dominate_a_fine_search(d: int, radius: float) -> None:
    rng = np.random.default_rng(d)
    width = products(np.zeros(d)).size
    tables = rng.normal(size=(6, 3, width, width))
    angles = np.linspace(0, 2 * np.pi, 80)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)[:, :d]
    v = products((np.linspace(0, radius, 9)[:, None, None] * circle).reshape(-1, d))
    values = np.linalg.norm(v @ tables @ v.T, axis=1)
    of_one, of_two = (bound(tables, d, radius) for bound in (one_token_bound, two_token_bound))
    alone = np.max(np.diagonal(values, axis1=1, axis2=2), axis=1)
    assert np.all(alone <= of_one) and np.all(of_one <= 6 * alone)
    together = np.max(values, axis=(1, 2))
    assert np.all(together <= of_two) and np.all(of_two <= 4 * together)


@pytest.mark.parametrize("d", [1, 2, 4])
def test_token_bounds_are_tight_for_products_of_lines(d: int) -> None:
    a, b, u = np.random.default_rng(d).normal(size=(3, d))
    size_a, size_b, size_u = (np.linalg.norm(vector) for vector in (a, b, u))
    line_a, line_b = np.append(a, 0.0)[None], np.append(b, 0.0)[None]
    square, square_b = reads_of(line_a, line_a)[0], reads_of(line_b, line_b)[0]
    of_two = two_token_bound(np.einsum("o,e,f->oef", u, square, square_b)[None], d, 2.0)
    assert of_two == pytest.approx(size_u * size_a**2 * size_b**2 * 16)
    of_one = one_token_bound(np.einsum("o,e,f->oef", u, square, square)[None], d, 2.0)
    assert of_one == pytest.approx(size_u * size_a**4 * 16)


@pytest.mark.parametrize(
    ("radius", "time"), [(-1.0, 4), (np.nan, 4), (np.inf, 4), (1e100, 4), (1, 0), (1, 2.5)]
)
@pytest.mark.usefixtures("unhooked")
def test_bad_input_is_refused_in_one_line(radius: float, time: float) -> None:
    for refuse in (certificate("exact").bound, certificate("exact").rounding):
        with pytest.raises(uh.BadInput, match=r"^bound: .* is .*; give .*\.$"):
            refuse(radius, time)


@pytest.mark.parametrize("name", ["exact", "planted 1e-6", "random", "biases"])
def test_facts_are_plain_and_shares_make_sense(name: str) -> None:
    issued = certificate(name)
    facts = json.loads(json.dumps(issued.facts(), allow_nan=False))
    assert facts["bounds"][1]["bound"] == issued.bound(2.0, issued.time)
    assert list(facts["degrees"]) == list(facts["left_degrees"]) == list("01234")
    # Parts overlap, so only the triangle inequality ties them.
    assert sum(issued.degrees.values()) >= 1 - 1e-9
    for shares in (issued.left_degrees, issued.left_groups):
        assert sum(shares.values()) >= issued.residual * (1 - 1e-9)
    parts = issued.degrees[3], issued.groups["memory × query"]
    assert name in ("random", "biases") or parts == pytest.approx((1, 1), rel=1e-4)
