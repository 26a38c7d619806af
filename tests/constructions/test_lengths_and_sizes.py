"""Errors relative to the source's outputs; networks for long sequences and large tokens."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused
from teachers import attention, gated_rnn

import underhood as uh
from underhood.constructions import TARGETS
from underhood.constructions.compiling import PROMISED, check_promise

KEY = jax.random.key(1)
# Entries N(0, 1/d), as most sources in use have them.
PLAIN = jax.tree.map(lambda W: W / 2, attention(4))
LINEARISED = [
    *(("attention", target, {}) for target in ("lru", "lru_in_out", "lru_in_out_mlp")),
    *(("attention", target, {"layers": n}) for target in ("lstm", "gru") for n in (1, 2)),
    *(("gated RNN", name, {}) for name in ("lru", "lru_in_out", "lru_in_out_mlp", "lstm", "gru")),
    ("attention", "lru_in_out_mlp", {"activation": "tanh"}),
    ("attention", "lru_in_out_mlp", {"activation": "softplus"}),
]
SOURCES = {"attention": PLAIN, "gated RNN": gated_rnn(3)}


# --- What an error is


def test_error_is_the_difference_over_the_largest_output() -> None:
    # So large an ε makes an error far above rounding.
    built = uh.compile(PLAIN, "lstm", order=1, epsilon=1.0, dtype="float32")
    for length, size in ((1, 1.0), (7, 3.0)):
        with jax.enable_x64(True):
            drawn = jax.random.normal(KEY, (2, length, 4), jnp.float64)
            xs = (size * np.asarray(drawn)).astype(np.float32)
            ys = np.array([built.layer(x) for x in jnp.asarray(xs)], np.float64)
        xs = xs.astype(np.float64)
        expected = np.zeros((2, length, 4))
        for b in range(2):
            for t in range(length):
                for s in range(t + 1):
                    match = (PLAIN.W_K @ xs[b, s]) @ (PLAIN.W_Q @ xs[b, t])
                    expected[b, t] += match * (PLAIN.W_V @ xs[b, s])
        wanted = np.max(np.abs(ys - expected)) / np.max(np.abs(expected))
        measured = built.error(key=KEY, length=length, size=size, sequences=2)
        np.testing.assert_allclose(measured, wanted, rtol=1e-3)


def test_small_weights_have_the_same_relative_error() -> None:
    small = jax.tree.map(lambda W: 1e-3 * W, PLAIN)
    for target in ("lstm", "lru_in_out", "gru"):
        errors = [
            uh.compile(source, target, dtype="float32").error(key=KEY) for source in (PLAIN, small)
        ]
        assert errors[0] / 4 <= errors[1] <= 4 * errors[0], target


def test_errors_are_those_of_shorter_sequences_too() -> None:
    built = uh.compile(PLAIN, "lru_in_out", order=1)
    curve = built.errors(key=KEY, length=20, size=2.0, sequences=1)
    assert curve.shape == (20,)
    # One sequence begins with the same draws whatever its length.
    assert curve[-1] == built.error(key=KEY, length=20, size=2.0, sequences=1)
    assert np.all(curve > 0) and np.all(np.isfinite(curve))


def test_a_source_that_is_zero() -> None:
    nothing = attention(3, rank_v=0)
    assert uh.compile(nothing).error(key=KEY) == 0.0
    other = eqx.tree_at(lambda layer: layer.D, uh.compile(PLAIN).layer, np.ones((4, 10)))
    built = uh.compile(PLAIN)
    zero = jax.tree.map(np.zeros_like, PLAIN)
    wrong = uh.Construction(zero, "gated_rnn", "minimal", other, built.roles, True)
    with refused("all zero … no relative error … largest output"):
        wrong.error(key=KEY)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("error: length is 0; give a whole number", {"length": 0}),
        ("length is 2.5", {"length": 2.5}),
        ("key is 0 … jax.random.key(0)", {"key": 0}),
        ("key is None", {"key": None}),
        ("size is 0; give a number above 0", {"size": 0}),
        ("size is nan", {"size": float("nan")}),
        ("sequences is 0", {"sequences": 0}),
        ("key is 0 … length is -1 … size is -2", {"key": 0, "length": -1, "size": -2.0}),
    ],
)
def test_what_error_refuses(words: str, options: dict, unhooked) -> None:
    built = uh.compile(PLAIN)
    with refused(words):
        built.error(**({"key": KEY} | options))


# --- What compile promises


@pytest.mark.parametrize("dtype", PROMISED)
@pytest.mark.parametrize(("source", "target", "options"), LINEARISED)
def test_long_sequences_of_large_tokens(source: str, target: str, options: dict, dtype) -> None:
    """Without asking, most of these are off by 10 % to 100 % in float32."""
    for length, size in ((4096, 10.0), (1024, 0.1)):
        asked = {"length": length, "size": size}
        built = uh.compile(SOURCES[source], target, dtype=dtype, **options, **asked)
        assert (built.length, built.size) == (length, size)
        error = built.error(key=KEY, **asked, sequences=2)
        assert error <= PROMISED[dtype], (length, size, error)
        # Far better than the promise.
        assert error <= {"float64": 1e-8, "float32": 2e-3}[dtype]


def test_biases_do_not_grow_with_the_tokens() -> None:
    biased = attention(
        3, b_V=np.ones(3), b_K=np.array([1.0, 0, -1]), decay=np.array([1.0, 0.5, 0.0])
    )
    for target in ("lstm", "lru", "lru_in_out", "gru", "lru_in_out_mlp"):
        for size in (0.1, 7.0):
            built = uh.compile(biased, target, size=size)
            assert built.error(key=KEY, size=size) <= 1e-9, (target, size)


def test_lengths_up_to_the_default_change_nothing_and_exact_targets_ignore_both() -> None:
    for target in ("lstm", "gru", "lru_in_out", "lru_in_out_mlp"):
        default = uh.compile(PLAIN, target)
        assert (default.length, default.size) == (32, 1.0)
        shorter = uh.compile(PLAIN, target, length=5, size=1)
        assert eqx.tree_equal(default.layer, shorter.layer)
    for target in ("gated_rnn", "side_gated_rnn", "mamba", "mamba_block", "decayed_attention"):
        default = uh.compile(PLAIN, target)
        asked = uh.compile(PLAIN, target, length=10**6, size=1e3)
        assert eqx.tree_equal(default.layer, asked.layer)
        assert asked.length is None and asked.size is None


# Two heads that nearly cancel: outputs are 1e-4 of what float32 rounds.
CANCELLING = uh.MultiHead(
    [PLAIN, uh.LinearAttention((1 - 1e-4) * PLAIN.W_V, PLAIN.W_K, PLAIN.W_Q)],
    W_O=np.hstack([np.eye(4), -np.eye(4)]),
)


def test_what_cannot_be_served_is_refused() -> None:
    asked = {"dtype": "float32", "length": 1000}
    with refused("On 1000 tokens of size 1 the error of lstm in float32 is … promises 0.01"):
        uh.compile(CANCELLING, "lstm", **asked)
    assert uh.compile(CANCELLING, "lstm", length=1000).length == 1000
    # Who chooses ε gets the network.
    given = uh.compile(CANCELLING, "lstm", **asked, epsilon=0.1)
    assert given.epsilon == 0.1 and given.length == 1000


def test_the_refusal_names_the_length_that_is_served() -> None:
    built = uh.compile(PLAIN)
    check_promise(built, np.array([1.0, 1e-7]), 1.0)
    with refused("On 4 tokens … is 1.0e-02 … promises 1e-06. It holds up to 2 tokens. Use a"):
        check_promise(built, np.array([1e-9, 1e-7, 1e-5, 1e-2]), 1.0)


@pytest.mark.parametrize("reset", ["before", "after"])
@pytest.mark.parametrize("layers", [1, 2])
def test_the_error_of_a_gru_does_not_grow_with_the_length(layers: int, reset: str) -> None:
    """It would grow as the length if all values were summed."""
    single = {"layers": layers, "dtype": "float32", "reset": reset}
    for length in (300, 8192):
        built = uh.compile(PLAIN, "gru", **single, length=length)
        assert built.error(key=KEY, length=length, sequences=2) <= 3e-4
        assert any("gated" in role.label for role in built.roles)
    assert built.neurons > uh.compile(PLAIN, "gru", **single, length=256).neurons


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("compile: length is 0; give a whole number from 1 to 1048576", {"length": 0}),
        ("length is 2000000", {"length": 2_000_000}),
        ("length is 1.5 … size is inf", {"length": 1.5, "size": float("inf")}),
        ("size is 0; give a number above 0", {"size": 0}),
        ("size is 'large'", {"size": "large"}),
    ],
)
@pytest.mark.parametrize("target", ["gated_rnn", "lstm"])
def test_lengths_and_sizes_that_are_none(target, words, options, unhooked) -> None:
    with refused(words):
        uh.compile(PLAIN, target, **options)


# --- Numbers outside the range of a precision


@pytest.mark.parametrize("dtype", PROMISED)
@pytest.mark.parametrize("target", TARGETS)
def test_weights_outside_the_range_are_one_line(target: str, dtype: str) -> None:
    """At 1e200 a power of two would be 2 to the infinity, at 1e300 outputs would be NaN."""
    for power in (-300, -200, 120, 200, 300):
        large = jax.tree.map(lambda W, power=power: W * 10.0**power, PLAIN)
        weights = {name: 10.0**power * np.ones((5, 4)) for name in ("W_in_m", "W_in_x")}
        ones = {name: np.ones((4, 5)) for name in ("W_out_m", "W_out_x")}
        rnn = uh.GatedRNN(**weights, **ones, decay=np.ones(5), D=np.ones((2, 4)))
        for source in (large, rnn):
            words = f"too {'large' if power > 0 else 'small'} for float"
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                with pytest.raises(uh.BadInput) as caught:
                    uh.compile(source, target, dtype=dtype)
            impossible = isinstance(caught.value, uh.ImpossibleConstruction)
            assert impossible or words in str(caught.value)


def test_outputs_outside_the_range_have_no_error() -> None:
    large = uh.compile(jax.tree.map(lambda W: 1e90 * W, PLAIN))
    with refused("source's outputs on 32 tokens of size 1e+20 are too large for float64"):
        large.error(key=KEY, size=1e20)
    single = uh.compile(jax.tree.map(lambda W: 1e10 * W, PLAIN), dtype="float32")
    with refused("network's outputs … too large for float32"):
        single.error(key=KEY, size=1e4)
    small = uh.compile(jax.tree.map(lambda W: 1e-10 * W, PLAIN), dtype="float32")
    with refused("source's outputs … too small for float32"):
        small.error(key=KEY, size=1e-5)
