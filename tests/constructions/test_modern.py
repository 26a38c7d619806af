"""Attention in the recurrent layers of today: exact, a limit of known order, or refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused
from teachers import attention

import underhood as uh

pytestmark = pytest.mark.usefixtures("quick_compile")

# The largest error in float64 at 32 and at 256 tokens: ten times those of the prototypes.
LIMITS = {
    "falcon_h1": (3.0e-15, 9.2e-15),
    "mamba2": (4.8e-15, 1.2e-14),
    "gated_deltanet": (2.4e-15, 9.2e-15),
    "deltanet": (1.2e-14, 1.2e-14),
    "kda": (4.8e-15, 1.3e-14),
    "lightning": (2.4e-15, 1.2e-14),
    "gla": (2.4e-15, 9.2e-15),
    "retnet": (1.4e-14, 1.9e-10),
    "rwkv6": (9.2e-15, 9.2e-15),
    "rwkv7": (9.2e-15, 9.2e-15),
    "mlstm": (1.5e-14, 2.0e-14),
}
FITTED = ("retnet", "lightning", "mlstm")
KEY = jax.random.key(1)


def source(seed=0, d=4, **extra):
    return uh.LinearAttention(*np.random.default_rng(seed).normal(size=(3, d, d)) / 2, **extra)


@pytest.mark.parametrize("target", LIMITS)
def test_the_errors_are_those_of_the_prototypes(target):
    for length, limit in zip((32, 256), LIMITS[target], strict=True):
        asked = {"length": length} if target in FITTED else {}
        built = uh.compile(source(), target, **asked)
        assert built.exact is (target == "falcon_h1")
        assert built.error(key=KEY, length=length, sequences=4) < limit
    assert uh.compile(source(), target, dtype="float32").error(key=KEY, sequences=4) < 2e-6


HEADS = uh.MultiHead([source(1), attention(4, 2, d_v=3, d_k=2)], np.ones((2, 7)))


@pytest.mark.parametrize("target", LIMITS)
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
        if name == "decay" and target in ("deltanet", "retnet", "lightning"):
            with pytest.raises(uh.ImpossibleConstruction, match="decay"):
                uh.compile(given, target)
            continue
        assert uh.compile(given, target).error(key=KEY, length=40, sequences=3) < 1e-12, name


@pytest.mark.parametrize("target", ["falcon_h1", "gated_deltanet", "gla", "rwkv6"])
def test_a_decay_of_zero_forgets_all(target):
    given = source(5, decay=np.array([0.0, 1, 0.5, 0]))
    assert uh.compile(given, target).error(key=KEY, length=20, sequences=3) < 1e-12


@pytest.mark.parametrize(
    ("target", "order"),
    [
        *((target, 1) for target in ("mamba2", "gated_deltanet", "deltanet", "kda", "lightning")),
        *((target, 2) for target in ("mamba2", "gated_deltanet", "deltanet", "kda")),
        *((target, 2) for target in ("gla", "rwkv6", "rwkv7")),
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


def test_refusals_say_why():
    with refused("min_gru is not possible … change places … even in a limit"):
        uh.compile(source(), "min_gru")
    with refused("Its order is 1 or 2, not 3"):
        uh.compile(source(), "mamba2", order=3)
    with refused("The target is exact"):
        uh.compile(source(), "falcon_h1", epsilon=1e-3)
    with refused("RWKV-7's decays lie between … 0.5"):
        uh.compile(source(decay=np.full(4, 0.5)), "rwkv7")
    rnn = uh.GatedRNN.init(d_in=2, hidden=3, gated=3, d_out=2, key=KEY)
    with refused("A gated RNN has an output gate"):
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
