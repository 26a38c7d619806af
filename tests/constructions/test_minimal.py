"""The minimal form: its sizes are the formula's, on random ranks and overlaps."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from teachers import attention, overlapping, overlaps

import underhood as uh
from underhood.constructions.sources.reference import reference


def kinds(built: uh.Construction) -> tuple[int, int]:
    names = [role.kind for role in built.roles]
    return names.count("memory"), names.count("query")


@given(overlaps(9, 0))
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
    expected = reference(source, xs)
    largest = max(np.max(np.abs(expected)), 1.0)
    assert np.max(np.abs(reference(built.layer, xs) - expected)) <= 1e-11 * largest


def in_dtype(source: uh.LinearAttention, dtype: type) -> uh.LinearAttention:
    return uh.LinearAttention(*(W.astype(dtype) for W in (source.W_V, source.W_K, source.W_Q)))


def orthogonal() -> uh.LinearAttention:
    """The ranges of W_K and W_Q are orthogonal, so M is zero up to rounding."""
    rng = np.random.default_rng(1)
    basis = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    W_K, W_Q = (half @ rng.normal(size=(3, 6)) for half in (basis[:, :3], basis[:, 3:]))
    return uh.LinearAttention(np.eye(6), W_K, W_Q)


def badly_scaled() -> uh.LinearAttention:
    source = attention(5, 3, rank_v=3)
    return uh.LinearAttention(1e-150 * source.W_V, 1e120 * source.W_K, 1e30 * source.W_Q)


PAPERS, OVERLAP, LOW = attention(4), overlapping(8, 6, 6, 4), attention(6, rank_v=2, rank_m=3)
# A source, its target and form, and how many memories, queries and gate outputs they take.
SIZES = {
    "the paper's teacher": (PAPERS, "gated_rnn", None, (10, 4, 10)),
    "the same with a side gate": (PAPERS, "side_gated_rnn", None, (10, 0, 10)),
    # Spaces that overlap in part beat both of the paper's counts.
    "overlap": (OVERLAP, "gated_rnn", None, (30, 6, 30)),
    "overlap, low rank": (OVERLAP, "gated_rnn", "low_rank", (36, 6, 36)),
    "overlap, full": (OVERLAP, "gated_rnn", "full", (64, 8, 64)),
    "full": (attention(5), "gated_rnn", "full", (25, 5, 25)),
    "compact": (attention(5), "gated_rnn", "compact", (15, 5, 25)),
    "low rank": (attention(5), "gated_rnn", "low_rank", (25, 5, 25)),
    "compact with a side gate": (attention(5), "side_gated_rnn", "compact", (15, 0, 15)),
    # It may invert either matrix.
    "compact, W_V singular": (attention(4, rank_v=2), "gated_rnn", "compact", (10, 4, 16)),
    "compact, M singular": (attention(4, rank_m=2), "gated_rnn", "compact", (10, 4, 16)),
    # Three heads of ten variables each live in the ten dimensions of symmetric 4×4 matrices.
    "heads that share queries and memory": (
        uh.MultiHead([attention(4, seed) for seed in range(3)]),
        "gated_rnn",
        None,
        (10, 4, 30),
    ),
    # Rank follows the source's precision.
    "float32": (in_dtype(LOW, np.float32), "gated_rnn", None, (6, 3, 6)),
    "float64": (in_dtype(LOW, np.float64), "gated_rnn", None, (6, 3, 6)),
    # Rounding in the product of keys and queries is no rank.
    "M zero up to rounding": (orthogonal(), "gated_rnn", None, (0, 0, 0)),
    "badly scaled": (badly_scaled(), "gated_rnn", None, (12, 5, 12)),
    "the same, well scaled": (attention(5, 3, rank_v=3), "gated_rnn", None, (12, 5, 12)),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name: str) -> None:
    source, target, form, (memory, queries, gate_width) = SIZES[name]
    built = uh.compile(source, target, form)
    assert kinds(built) == (memory, queries)
    assert built.neurons == memory + queries
    assert built.gate_width == gate_width


def test_half_precision_is_no_reason_to_drop_a_neuron() -> None:
    """Singular values below the eps of float16 belong to the function."""
    rng = np.random.default_rng(0)
    source = uh.LinearAttention(*(rng.normal(size=(3, 2, 2)) @ np.diag([1, 3e-3])))
    halves = in_dtype(source, np.float16)
    built = uh.compile(halves)
    assert built.neurons == uh.compile(in_dtype(halves, np.float64)).neurons
    assert built.error(key=jax.random.key(0)) < 1e-13
