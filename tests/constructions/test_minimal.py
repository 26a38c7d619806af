"""The minimal form: its sizes are the formula's, on random ranks and overlaps."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from teachers import attention, overlapping

import underhood as uh
from underhood.constructions.sources.reference import attention_reference, gated_rnn_reference


def kinds(built: uh.Construction) -> tuple[int, int]:
    names = [role.kind for role in built.roles]
    return names.count("memory"), names.count("query")


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, int, int, int, int]:
    d = draw(st.integers(1, 9))
    rank_v, rank_m = draw(st.integers(0, d)), draw(st.integers(0, d))
    k = draw(st.integers(max(0, rank_v + rank_m - d), min(rank_v, rank_m)))
    return d, rank_v, rank_m, k, draw(st.integers(0, 10**6))


@given(cases())
@settings(max_examples=200)
def test_sizes_are_the_formulas(case: tuple[int, int, int, int, int]) -> None:
    d, rank_v, rank_m, k, seed = case
    source = overlapping(d, rank_v, rank_m, k, seed)
    products = rank_v * rank_m - k * (k - 1) // 2
    queries = rank_m if rank_v else 0
    built = uh.compile(source, "gated_rnn", "minimal")
    assert kinds(built) == (products, queries)
    assert built.gate_width == products
    side = uh.compile(source, "side_gated_rnn", "minimal")
    assert kinds(side) == (products, 0)
    xs = np.random.default_rng(seed).normal(size=(2, 9, d))
    expected = attention_reference(source, xs)
    largest = max(np.max(np.abs(expected)), 1.0)
    assert np.max(np.abs(gated_rnn_reference(built.layer, xs) - expected)) <= 1e-11 * largest


def test_the_papers_teacher_takes_14_neurons_and_10_gate_outputs() -> None:
    built = uh.compile(attention(4))
    assert kinds(built) == (10, 4)
    assert built.gate_width == 10
    assert uh.compile(attention(4), "side_gated_rnn").neurons == 10


def test_partly_overlapping_spaces_beat_both_of_the_papers_counts() -> None:
    source = overlapping(8, 6, 6, 4)
    assert kinds(uh.compile(source)) == (30, 6)
    assert kinds(uh.compile(source, form="low_rank")) == (36, 6)
    assert kinds(uh.compile(source, form="full")) == (64, 8)


def test_sizes_of_the_other_forms() -> None:
    d = 5
    for form, memory, gates in (
        ("full", d * d, d * d),
        ("compact", d * (d + 1) // 2, d * d),
        ("low_rank", d * d, d * d),
    ):
        built = uh.compile(attention(d), form=form)
        assert kinds(built) == (memory, d)
        assert built.gate_width == gates
    assert uh.compile(attention(d), "side_gated_rnn", "compact").neurons == d * (d + 1) // 2


def test_compact_may_invert_either_matrix() -> None:
    singular = attention(4, rank_v=2)
    for source in (singular, attention(4, rank_m=2)):
        assert kinds(uh.compile(source, form="compact")) == (10, 4)


def test_heads_share_queries_and_memory() -> None:
    heads = uh.MultiHead([attention(4, seed) for seed in range(3)])
    built = uh.compile(heads)
    # Three heads of ten variables each live in the ten dimensions of symmetric 4×4 matrices.
    assert kinds(built) == (10, 4)
    assert built.gate_width == 30


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rank_follows_the_sources_precision(dtype: type) -> None:
    source = attention(6, rank_v=2, rank_m=3)
    rounded = uh.LinearAttention(
        *(np.asarray(W, dtype) for W in (source.W_V, source.W_K, source.W_Q))
    )
    assert kinds(uh.compile(rounded)) == (6, 3)


def test_rounding_in_the_product_of_keys_and_queries_is_no_rank() -> None:
    rng = np.random.default_rng(1)
    basis = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    # The ranges of W_K and W_Q are orthogonal, so M is zero up to rounding.
    W_K = basis[:, :3] @ rng.normal(size=(3, 6))
    W_Q = basis[:, 3:] @ rng.normal(size=(3, 6))
    assert uh.compile(uh.LinearAttention(np.eye(6), W_K, W_Q)).neurons == 0


def test_badly_scaled_weights_keep_their_rank_and_function() -> None:
    source = attention(5, 3, rank_v=3)
    scaled = uh.LinearAttention(1e-150 * source.W_V, 1e120 * source.W_K, 1e30 * source.W_Q)
    assert kinds(uh.compile(scaled)) == kinds(uh.compile(source))
