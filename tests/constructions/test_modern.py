"""Attention in the recurrent layers of today: exact, a limit of known order, or refused."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from equations.prototype_errors import LIMITS
from refusals import refused
from teachers import attention

import underhood as uh
from underhood.constructions.products.product import Product
from underhood.constructions.sources.reference import reference
from underhood.constructions.target import Blueprint
from underhood.constructions.targets.modern import coupled
from underhood.constructions.targets.modern.slices import slices_of

# Mamba-1 is tested with several heads and the like in test_exact.py.
TARGETS = [target for target in LIMITS if target != "mamba_block"]
FITTED = ("retnet", "lightning", "mlstm", "rg_lru", "hgrn2")
# These make products by differences, so their errors are above rounding.
BY_DIFFERENCES = ("rg_lru", "hgrn2")
KEY = jax.random.key(1)


def source(seed=0, d=4, **extra):
    return uh.LinearAttention(*np.random.default_rng(seed).normal(size=(3, d, d)) / 2, **extra)


@pytest.mark.parametrize("target", LIMITS)
def test_the_errors_are_those_of_the_prototypes(target):
    limits = LIMITS[target]
    for dtype in ("float64", "float32"):
        # All runs have 256 tokens, so that they share a program.
        default = uh.compile(source(), target, dtype=dtype)
        longer = uh.compile(source(), target, dtype=dtype, length=256) if target in FITTED else None
        assert default.exact is (target in ("falcon_h1", "mamba_block"))
        errors = default.errors(key=KEY, length=256, sequences=4)
        assert errors[31] < limits[dtype, 32]
        if longer is not None:
            errors = longer.errors(key=KEY, length=256, sequences=4)
        assert errors[255] < limits[dtype, 256]


HEADS = uh.MultiHead([source(1), attention(4, 2, d_v=3, d_k=2)], np.ones((2, 7)))


@pytest.mark.parametrize("target", TARGETS)
def test_several_heads_biases_decay_and_ranks(target):
    decay = np.array([1.0, 0.9, 0.6, 0.9])
    sources = {
        "heads": HEADS,
        "biases": source(3, b_V=np.ones(4), b_Q=np.array([0.0, 1, -1, 2])),
        "decay": source(4, decay=decay),
        "low rank": attention(3, rank_v=1, rank_m=2),
        "d = 1": attention(1),
    }
    for name, given in sources.items():
        if name == "decay" and target in ("deltanet", "retnet", "lightning", "hgrn2"):
            with pytest.raises(uh.ImpossibleConstruction, match="decay"):
                uh.compile(given, target)
            continue
        if name == "heads" and target == "jamba":
            with pytest.raises(uh.ImpossibleConstruction, match="one head only"):
                uh.compile(given, target)
            continue
        limit = 1e-10 if target in BY_DIFFERENCES else 1e-12
        assert uh.compile(given, target).error(key=KEY, length=40, sequences=3) < limit, name


@pytest.mark.parametrize(
    "target", ["falcon_h1", "gated_deltanet", "gla", "rwkv6", "jamba", "rg_lru"]
)
def test_a_decay_of_zero_forgets_all(target):
    given = source(5, decay=np.array([0.0, 1, 0.5, 0]))
    limit = 1e-11 if target in BY_DIFFERENCES else 1e-12
    assert uh.compile(given, target).error(key=KEY, length=20, sequences=3) < limit


@pytest.mark.parametrize(
    ("target", "order"),
    [
        *((target, 1) for target in ("mamba2", "gated_deltanet", "deltanet", "kda", "lightning")),
        *((target, 2) for target in ("mamba2", "gated_deltanet", "deltanet", "kda")),
        *((target, 2) for target in ("gla", "rwkv6", "rwkv7", "jamba", "mlstm", "retnet")),
    ],
)
def test_the_order_is_the_slope_of_the_error(target, order):
    # Halving ε divides the error by 2^order, while the error is well above rounding.
    first, second = (
        uh.compile(source(), target, order=order, epsilon=epsilon).error(
            key=KEY, length=8, sequences=4
        )
        for epsilon in ((2e-9, 1e-9) if order == 1 else (2e-6, 1e-6))
    )
    assert abs(np.log2(first / second) - order) < 0.2
    assert 1e-12 < second < 0.1


@pytest.mark.parametrize("target", BY_DIFFERENCES)
def test_the_orders_of_gates_and_fadings(target):
    """The error falls as ε^{2n} in the size of the gates, and as λ^copies in the fading."""

    def fading_error(copies, rate):
        plan = Blueprint(source(), target, np.dtype("float64"))
        slices, product = slices_of(plan), Product(3, 0.02)
        fading = coupled.Fading(rate, copies)
        if target == "rg_lru":
            layer = coupled.rg_lru(coupled.channels_of(slices, fading), 4, 5, product)
        else:
            layer = coupled.hgrn2(slices, fading, product)
        xs = np.random.default_rng(0).normal(size=(8, 4))
        with jax.enable_x64(True):
            ys = np.asarray(layer(jnp.asarray(np.hstack([xs, np.ones((8, 1))]))))
        expected = reference(source(), xs[None])[0]
        return np.max(np.abs(ys - expected)) / np.max(np.abs(expected))

    for copies, rate in ((1, 1e-5), (2, 1e-3)):
        slope = np.log2(fading_error(copies, 2 * rate) / fading_error(copies, rate))
        assert abs(slope - copies) < 0.2
    for order, epsilon in ((1, 0.01), (2, 0.1)):
        errors = [
            uh.compile(source(), target, order=order, epsilon=e).error(
                key=KEY, length=8, sequences=2
            )
            for e in (2 * epsilon, epsilon)
        ]
        assert abs(np.log2(errors[0] / errors[1]) - 2 * order) < 0.3


def test_the_first_token_of_an_rg_lru():
    """The layer writes it as the others; with RecurrentGemma's rule a zero token goes before."""
    built = uh.compile(attention(2), "rg_lru", order=2)
    layer = built.layer.layers[0]
    assert not layer.whole_first
    with jax.enable_x64(True):
        xs = jnp.asarray(np.random.default_rng(0).normal(size=(6, 2)))
        tokens = built.layer.embed(xs)
        expected = layer(tokens)
        whole = replace(layer, whole_first=True)
        after_zero = whole(jnp.concatenate([jnp.zeros((1, 3)), tokens]))[1:]
        first = whole(tokens)
    assert np.max(np.abs(after_zero - expected)) < 1e-12 * np.max(np.abs(expected))
    assert np.max(np.abs(first - expected)) > np.max(np.abs(expected))


def test_fixed_decays_serve_the_decays_that_they_add_up_to():
    """RetNet's first head has the decay 31/32; sums of its decays make others near 1."""
    for decay in (31 / 32, 0.98):
        built = uh.compile(source(6, decay=np.full(4, decay)), "retnet")
        assert built.error(key=KEY, length=32, sequences=2) < 1e-9
    for target in ("retnet", "lightning"):
        with refused("do not add up to a decay of 0.5"):
            uh.compile(source(6, decay=np.full(4, 0.5)), target)


def test_a_refused_length_names_one_that_works():
    with pytest.raises(uh.BadInput, match=r"On 2500 tokens .* Use length=1") as caught:
        uh.compile(source(), "retnet", length=2500)
    assert "smaller size" not in str(caught.value)
    length = int(str(caught.value).split("length=")[1].split(",")[0])
    assert 1_100 < length < 2_000
    assert uh.compile(source(), "retnet", length=length).length == length


def test_mlstm_refuses_decays_below_its_soft_cap():
    for decay in (0.0, 3e-7):
        with refused(f"soft cap … {decay:g}"):
            uh.compile(source(decay=np.full(4, decay)), "mlstm")
    built = uh.compile(source(decay=np.full(4, 1e-6)), "mlstm")
    assert built.error(key=KEY, length=32, sequences=2) < 1e-12


def test_a_refusal_claims_no_more_than_is_proved():
    summed = uh.attention_from_linear_rnn(np.array([1.0, 0.7]))
    rnn = uh.GatedRNN.init(d_in=2, hidden=3, gated=3, d_out=2, key=KEY)
    unproved = [
        (summed, "min_gru", {}),
        (source(decay=np.full(4, 0.3)), "rwkv7", {}),
        (HEADS, "jamba", {}),
        (rnn, "mamba2", {}),
        (rnn, "gated_rnn", {}),
        (source(), "lru_in_out_mlp", {"activation": "relu"}),
    ]
    singular = attention(4, rank_v=2, rank_m=2)
    proved = [(source(), "min_gru", {}), (singular, "lstm", {"form": "compact"})]
    for words, cases in (("is not built: ", unproved), ("is not possible: ", proved)):
        for given, target, options in cases:
            with refused(f"→ {target} {words}"):
                uh.compile(given, target, **options)
    with refused("a gated RNN already, so there is nothing to compile"):
        uh.compile(rnn, "gated_rnn")


def test_every_default_epsilon_can_be_given():
    for target in TARGETS:
        for dtype in ("float64", "float32"):
            built = uh.compile(source(), target, dtype=dtype)
            if built.epsilon is not None:
                given = float(f"{built.epsilon:.1e}")
                assert uh.compile(source(), target, dtype=dtype, epsilon=given).epsilon == given


def test_refusals_say_why():
    with refused("min_gru is not possible … change places … even in a limit"):
        uh.compile(source(), "min_gru")
    for target, options, reason in (
        ("mamba2", {"order": 3}, "mamba2 takes order 1 or 2, not 3"),
        ("gla", {"order": 1, "layers": 2}, "gla takes order 2, not 1. … 1 layer, not 2"),
        ("falcon_h1", {"epsilon": 1e-3}, "falcon_h1 is exact, so epsilon cannot be set"),
        ("kda", {"form": "full", "reset": "after"}, "no meaning for kda … belongs to gru"),
    ):
        # Only the options are wrong: the line begins with compile, not with is not possible.
        with refused(f"compile: … {reason}"):
            uh.compile(source(), target, **options)
    with refused("RWKV-7's decays lie between … 0.5"):
        uh.compile(source(decay=np.full(4, 0.5)), "rwkv7")
    rnn = uh.GatedRNN.init(d_in=2, hidden=3, gated=3, d_out=2, key=KEY)
    with refused("A gated RNN multiplies two sums … uh.decompile(rnn).attention"):
        uh.compile(rnn, "mamba2")


def swap_asymmetry(layer, trial):
    """|antisymmetric|/|symmetric part| of what x_1 adds to y_3 as x_2 and x_3 change places."""
    first, second, third = np.random.default_rng(trial).normal(size=(3, layer.d_in))

    def added(second, third):
        with jax.enable_x64(True):
            sequences = ([start, second, third] for start in (first, 0 * first))
            return np.subtract(*(np.asarray(layer(jnp.stack(xs)))[2] for xs in sequences))

    one_way, other_way = added(second, third), added(third, second)
    return np.linalg.norm(one_way - other_way) / np.linalg.norm(one_way + other_way)


def test_a_min_gru_cannot_tell_the_second_token_from_the_third():
    layer = uh.MinGRU.init(d_in=4, d_out=4, hidden=50, key=KEY)
    assert swap_asymmetry(jax.tree.map(lambda W: np.asarray(W, float), layer), 0) < 1e-13
    assert swap_asymmetry(source(), 0) > 0.1
