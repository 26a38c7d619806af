"""Random sources for the tests: sizes, ranks and overlaps as asked for, in float64."""

import numpy as np
from hypothesis import strategies as st

import underhood as uh


def low_rank(rng: np.random.Generator, rows: int, columns: int, rank: int) -> np.ndarray:
    """A random matrix of a given rank, entries of size about one."""
    if rank == 0:
        return np.zeros((rows, columns))
    return rng.normal(size=(rows, rank)) @ rng.normal(size=(rank, columns)) / np.sqrt(rank)


def attention(d: int, seed: int = 0, *, d_v=None, d_k=None, rank_v=None, rank_m=None, **extra):
    """Attention with rank(W_V) = rank_v and rank(M) = rank_m, full unless given."""
    rng = np.random.default_rng([d, seed])
    d_v, d_k = d_v or d, d_k or d
    rank_v = min(d_v, d) if rank_v is None else rank_v
    rank_m = min(d_k, d) if rank_m is None else rank_m
    W_K, W_Q = (low_rank(rng, d_k, d, rank_m) for _ in range(2))
    if 0 < rank_m < min(d_k, d):
        # W_KᵀW_Q keeps the rank only if the two share their range.
        W_Q = W_K @ rng.normal(size=(d, d)) / np.sqrt(d)
    return uh.LinearAttention(low_rank(rng, d_v, d, rank_v), W_K, W_Q, **extra)


def overlapping(d: int, rank_v: int, rank_m: int, k: int, seed: int = 0) -> uh.LinearAttention:
    """Square attention whose row space of W_V and column space of M share k dimensions."""
    rng = np.random.default_rng([d, rank_v, rank_m, k, seed])
    basis = np.linalg.qr(rng.normal(size=(d, d)))[0]
    A = basis[:, :rank_v]
    B = np.hstack([basis[:, :k], basis[:, rank_v : rank_v + rank_m - k]])
    W_V = rng.normal(size=(d, rank_v)) @ A.T
    M = B @ rng.normal(size=(rank_m, d))
    W_K = np.linalg.qr(rng.normal(size=(d, d)))[0]
    return uh.LinearAttention(W_V, W_K, W_K @ M)


@st.composite
def overlaps(draw: st.DrawFn, largest: int, least_rank: int) -> tuple[int, int, int, int, int]:
    """Arguments of `overlapping`: every overlap that the ranks allow."""
    d = draw(st.integers(1, largest))
    rank_v, rank_m = draw(st.integers(least_rank, d)), draw(st.integers(least_rank, d))
    k = draw(st.integers(max(0, rank_v + rank_m - d), min(rank_v, rank_m)))
    return d, rank_v, rank_m, k, draw(st.integers(0, 10**6))


def gated_rnn(d: int, seed: int = 0, hidden: int = 12, gated: int = 10) -> uh.GatedRNN:
    """A random gated RNN with λ = 0, λ = 1, and the rest inside (0, 1)."""
    rng = np.random.default_rng([7, d, seed])

    def weights(rows: int, columns: int) -> np.ndarray:
        return rng.normal(size=(rows, columns)) / np.sqrt(columns)

    return uh.GatedRNN(
        W_in_m=weights(hidden, d + 1),
        W_in_x=weights(hidden, d + 1),
        decay=np.concatenate([[0.0, 1.0], rng.uniform(size=hidden - 2)]),
        W_out_m=weights(gated, hidden),
        W_out_x=weights(gated, hidden),
        D=weights(3, gated),
    )


def random_gated(rng, d: int, n: int, m: int, d_out: int, decays) -> uh.GatedRNN:
    """Entries N(0, 1), decays drawn from a few."""
    return uh.GatedRNN(
        W_in_m=rng.normal(size=(n, d + 1)),
        W_in_x=rng.normal(size=(n, d + 1)),
        decay=rng.choice(decays, size=n),
        W_out_m=rng.normal(size=(m, n)),
        W_out_x=rng.normal(size=(m, n)),
        D=rng.normal(size=(d_out, m)),
    )


def network_sizes(d: int, n: int, m: int):
    """Arguments of `random_network`, up to these sizes."""
    return st.fixed_dictionaries(
        {
            **{"d": st.integers(1, d), "n": st.integers(0, n), "m": st.integers(0, m)},
            **{"d_out": st.integers(1, 3), "side": st.booleans(), "seed": st.integers(0, 2**16)},
            "decays": st.sampled_from([(1.0,), (0.0,), (0.0, 1.0), (0.0, 0.3, 0.3, 0.9, 1.0)]),
        }
    )


def random_network(d, n, m, d_out, decays, side, seed):
    """A random gated or side-gated RNN, and the generator that it came from."""
    rng = np.random.default_rng(seed)
    if side:
        return random_side(rng, d, n, d_out, decays), rng
    return random_gated(rng, d, n, m, d_out, decays), rng


def random_side(rng, d: int, n: int, d_out: int, decays) -> uh.SideGatedRNN:
    """Entries N(0, 1), decays drawn from a few."""
    return uh.SideGatedRNN(
        W_in_m=rng.normal(size=(n, d)),
        W_in_x=rng.normal(size=(n, d)),
        decay=rng.choice(decays, size=n),
        W_side=rng.normal(size=(n, d)),
        D=rng.normal(size=(d_out, n)),
    )
