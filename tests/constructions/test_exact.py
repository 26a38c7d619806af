"""Exact constructions: every form and target equals attention to rounding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from teachers import attention, gated_rnn

import underhood as uh
from underhood.constructions.construction import run_batch
from underhood.constructions.sources.reference import reference

FORMS = ("full", "compact", "low_rank", "minimal")
LENGTHS = (1, 2, 64, 256)


def shapes(d: int) -> dict[str, uh.LinearAttention]:
    return {
        "square": attention(d),
        "wide": attention(d, d_v=d + 2, d_k=d + 1),
        "narrow": attention(d, d_v=max(d - 1, 1), d_k=max(d - 2, 1)),
        "deficient": attention(d, rank_v=max(d // 2, 1), rank_m=max((d + 1) // 2, 1)),
        "W_V zero": attention(d, rank_v=0),
        "M zero": attention(d, rank_m=0),
    }


def limit(source: uh.LinearAttention, form: str) -> float:
    """1e-11, or more by the condition number over 100 where the form inverts a matrix."""
    if form != "compact":
        return 1e-11
    square = [W for W in (source.W_V, source.W_K) if W.shape[0] == W.shape[1]]
    condition = min(np.linalg.cond(W) for W in square)
    return 1e-11 * max(1.0, condition / 100)


def errors(built: uh.Construction, lengths: tuple[int, ...]) -> list[float]:
    """The error at several lengths from one run: the first outputs do not see later tokens.

    `Construction.error` compiles the network once per length, which is what takes the time.
    """
    with jax.enable_x64(True):
        xs = jax.random.normal(jax.random.key(0), (3, max(lengths), built.source.d_in))
        ys = np.asarray(run_batch(built.layer, xs))
    expected = reference(built.source, np.asarray(xs))
    difference, sizes = np.abs(ys - expected), np.abs(expected)
    return [np.max(difference[:, :n]) / max(np.max(sizes[:, :n]), 1.0) for n in lengths]


@pytest.mark.parametrize("d", [1, 2, 3, 5, 8, 16])
@pytest.mark.parametrize("target", ["gated_rnn", "side_gated_rnn"])
@pytest.mark.parametrize("form", FORMS)
def test_gated_forms_equal_attention(d: int, target: str, form: str) -> None:
    checked = 0
    for name, source in shapes(d).items():
        try:
            built = uh.compile(source, target, form)
        except uh.ImpossibleConstruction:
            assert form == "compact", name
            continue
        checked += 1
        assert max(errors(built, LENGTHS)) <= limit(source, form), name
    assert checked >= (1 if form == "compact" else 6)


@pytest.mark.parametrize("d", [1, 2, 3, 5, 8, 16])
@pytest.mark.parametrize("target", ["mamba", "mamba_block", "decayed_attention"])
def test_other_exact_targets_equal_attention(d: int, target: str) -> None:
    for name, source in shapes(d).items():
        assert max(errors(uh.compile(source, target), LENGTHS)) <= 1e-11, name


@pytest.mark.parametrize("length", LENGTHS)
def test_every_exact_target_at_its_own_length(length: int) -> None:
    source = attention(3, seed=9, d_v=2)
    others = ("side_gated_rnn", "mamba", "mamba_block", "decayed_attention")
    built_ones = [uh.compile(source, target) for target in others]
    built_ones += [uh.compile(source, form=form) for form in ("full", "low_rank", "minimal")]
    for built in built_ones:
        assert built.error(key=jax.random.key(length), length=length, sequences=3) <= 1e-11


EXTRAS = {
    "biases": {"b_V": np.array([1.0, -2.0, 0.5]), "b_K": np.ones(3), "b_Q": np.array([0, 1.0, 2])},
    "one bias": {"b_Q": np.array([0.3, 0.0, -1.0])},
    "decay": {"decay": np.array([1.0, 0.25, 0.0])},
    "common decay": {"decay": np.full(3, 0.9)},
    "biases and decay": {"b_V": np.ones(3), "decay": np.array([0.5, 0.5, 0.999])},
}


@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize(
    "target", ["gated_rnn", "side_gated_rnn", "mamba", "mamba_block", "decayed_attention"]
)
def test_biases_and_decay(target: str, extra: str) -> None:
    source = attention(3, seed=5, **EXTRAS[extra])
    if target == "side_gated_rnn" and "bias" in extra:
        with pytest.raises(uh.ImpossibleConstruction, match="no constant input"):
            uh.compile(source, target)
        return
    for form in ("full", "low_rank", "minimal") if "gated" in target else (None,):
        built = uh.compile(source, target, form)
        assert built.error(key=jax.random.key(1), length=70, sequences=3) <= 1e-11


@pytest.mark.parametrize("target", ["gated_rnn", "side_gated_rnn", "mamba", "decayed_attention"])
def test_several_heads_compile_into_one_network(target: str) -> None:
    rng = np.random.default_rng(3)
    heads = [attention(4, 1), attention(4, 2, d_v=3, d_k=2), attention(4, 3, rank_v=1)]
    for W_O in (None, rng.normal(size=(5, 11))):
        built = uh.compile(uh.MultiHead(heads, W_O), target)
        assert built.layer.d_out == (11 if W_O is None else 5)
        assert built.error(key=jax.random.key(2), length=70, sequences=3) <= 1e-11


def test_counts_with_decay_add_up_over_groups() -> None:
    source = attention(4, 1, decay=np.array([1.0, 1.0, 0.5, 0.5]))
    alone = [
        uh.compile(uh.LinearAttention(source.W_V[rows], source.W_K, source.W_Q))
        for rows in (slice(0, 2), slice(2, 4))
    ]
    together = uh.compile(source)
    assert together.gate_width == sum(part.gate_width for part in alone)
    assert together.neurons == sum(part.neurons - 4 for part in alone) + 4


@pytest.mark.parametrize("length", [1, 32, 256])
def test_a_gated_rnn_is_two_mamba_layers_or_two_attention_layers(length: int) -> None:
    for seed in range(3):
        for target in ("mamba", "decayed_attention"):
            built = uh.compile(gated_rnn(4, seed), target)
            assert built.exact
            assert built.layers == 2
            assert built.error(key=jax.random.key(seed), length=length, sequences=3) <= 1e-12


def test_a_linear_rnn_is_one_head() -> None:
    rng = np.random.default_rng(0)
    decay, B, xs = np.array([0.0, 0.3, 1.0]), rng.normal(size=(3, 5)), rng.normal(size=(40, 5))
    with jax.enable_x64(True):
        ys = uh.attention_from_linear_rnn(decay, B)(jnp.asarray(xs))
    state = np.zeros(3)
    for t in range(40):
        state = decay * state + B @ xs[t]
        np.testing.assert_allclose(ys[t], state, rtol=1e-12, atol=1e-12)


def test_full_form_has_the_papers_matrices() -> None:
    source = attention(3)
    rnn = uh.compile(source, form="full").layer
    d = 3
    for i in range(d * d):
        np.testing.assert_array_equal(rnn.W_in_x[i, :d], source.W_V[i // d])
        np.testing.assert_array_equal(rnn.W_in_m[i, :d], source.W_K[i % d])
    np.testing.assert_array_equal(rnn.W_in_x[d * d :, :d], source.W_Q)
    np.testing.assert_array_equal(rnn.W_in_m[d * d :], np.eye(d + 1)[[d] * d])
    np.testing.assert_array_equal(rnn.W_out_x, np.eye(d * d, d * d + d))
    np.testing.assert_array_equal(rnn.W_out_m[:, d * d :], np.tile(np.eye(d), (d, 1)))
    np.testing.assert_array_equal(rnn.D, np.repeat(np.eye(d), d, axis=1))
    np.testing.assert_array_equal(rnn.decay, [1.0] * (d * d) + [0.0] * d)


def test_float32_networks_are_float32() -> None:
    built = uh.compile(attention(4), dtype="float32")
    assert {leaf.dtype for leaf in jax.tree.leaves(built.layer)} == {np.dtype(np.float32)}
    assert built.error(key=jax.random.key(0)) <= 1e-5
