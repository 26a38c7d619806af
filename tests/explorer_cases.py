"""Weights, settings and layers with which the explorer in the browser is compared with Python."""

import numpy as np

import underhood as uh
from underhood.layers import GatedRNN, SideGatedRNN
from underhood.layers.base.layer import Layer

SIZES = (1, 2, 3, 4, 6)


def special_sources():
    """Weights that ranks and singular vectors find hard: (W_V, W_K, W_Q)."""
    rng = np.random.default_rng(0)
    for d in SIZES:
        eye, ones = np.eye(d), np.ones((d, d))
        square = rng.normal(size=(d, d))
        yield "repeated singular values", eye, 2 * eye, eye
        yield "repeated entries", ones, ones, square
        yield "zero", 0 * eye, 0 * eye, 0 * eye
        yield "values zero", 0 * eye, square, square
        yield "queries zero", square, square, 0 * eye
        yield "only the keys invertible", ones, square, rng.normal(size=(d, d))
        yield "values like keys", square, square, eye
        yield "tiny", 1e-9 * square, 1e-9 * eye, square
        W_K = rng.normal(size=(d, d)).round(1)
        W_K[0] = 0
        yield "product of lower rank", square, W_K, rng.normal(size=(d, d)).round(1)
        graded = 10.0 ** -np.arange(d)[:, None] * square
        yield "graded", graded, square, eye
    W = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    yield "overlap of two", W[:4].copy(), W[2:5].copy(), rng.normal(size=(3, 6))
    yield "no overlap", W[:3].copy(), W[3:].copy(), rng.normal(size=(3, 6))
    yield "more rows than columns", *rng.normal(size=(3, 5, 2))


def drawn_settings():
    for d in SIZES:
        for preset in ("random", "deficient", "gd")[: 2 + (d > 1)]:
            for T, seed, low in ((1, 0, 0), (9, 1, d // 2), (24, 999_999, max(d - 1, 0))):
                ranks = {"rankV": low, "rankK": d - low if seed else d}
                yield dict(d=d, T=T, preset=preset, seed=seed, dx=max(d // 2, 1), **ranks)


def attention_of(case) -> uh.LinearAttention:
    return uh.LinearAttention(*(np.array(case[name], float) for name in ("W_V", "W_K", "W_Q")))


# The largest that occur. Zeros up to them are tokens, neurons and gates that change nothing, and
# JAX compiles one shape instead of a hundred.
TIME, WIDTH, NEURONS, GATES = 24, 6, 42, 36


def padded(numbers, *shape: int) -> np.ndarray:
    array = np.asarray(numbers, float)
    if array.size == 0:
        return np.zeros(shape)
    return np.pad(array, [(0, new - old) for old, new in zip(array.shape, shape, strict=True)])


def layer_of(network, d: int) -> Layer:
    """The browser's weights in the Python layer."""
    decay = padded(network["decay"], NEURONS)
    if "W_side" in network:
        names = ("W_in_m", "W_in_x", "W_side")
        gates = {name: padded(network[name], NEURONS, WIDTH) for name in names}
        return SideGatedRNN(**gates, decay=decay, D=padded(network["D"], WIDTH, NEURONS))
    inputs = {}
    for name in ("W_in_m", "W_in_x"):
        # The column of the constant stays the last.
        W = np.reshape(network[name], (-1, d + 1))
        inputs[name] = np.hstack([padded(W[:, :-1], NEURONS, WIDTH), padded(W[:, -1:], NEURONS, 1)])
    outputs = {name: padded(network[name], GATES, NEURONS) for name in ("W_out_m", "W_out_x")}
    return GatedRNN(**inputs, **outputs, decay=decay, D=padded(network["D"], WIDTH, GATES))
