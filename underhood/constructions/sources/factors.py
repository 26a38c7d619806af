"""Attention as memory, queries and products: what every construction starts from.

y_t = D((R_m m_t) ⊙ (R_q q_t))    m_p(t) = Σ_{s≤t} λ_p^{t−s} (value_p·x_s)(key_p·x_s),  q = Q x

A gated RNN is this equation with m (λ = 1) and q (λ = 0) as its neurons; with R_m = I a side-gated
RNN is it too, and each of its products is a triple (value, key, query) for the LSTM and the GRU.

The forms differ in how they write W_V (Σ x xᵀ) M x, M = W_KᵀW_Q:
full       v_i k_j, all of them: d_v·d_k memory variables, d_k queries
compact    with invertible W_V take keys = values and queries W_V^{−T}M x (or values = keys and
           W_V W_K^{−1} in the readout): Σ k kᵀ is symmetric, d(d+1)/2 variables
low_rank   SVDs of W_V and M: rank(W_V)·rank(M) variables, rank(M) queries
minimal    in `minimal.py`
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from underhood.constructions.impossibility import ImpossibleConstruction
from underhood.constructions.sources.heads import Attention, Head, rank


@dataclass(frozen=True)
class Factors:
    """The matrices of the equation above."""

    values: np.ndarray
    keys: np.ndarray
    decay: np.ndarray
    memory_labels: tuple[str, ...]
    queries: np.ndarray
    query_labels: tuple[str, ...]
    R_m: np.ndarray
    R_q: np.ndarray
    D: np.ndarray


@dataclass(frozen=True)
class Block:
    """The part of a head whose value rows share one decay; indices count from 0."""

    values: np.ndarray
    keys: np.ndarray
    pairs: list[tuple[int, int]]
    R_m: np.ndarray
    R_q: np.ndarray
    D: np.ndarray


def assemble(head: Head, queries: np.ndarray, blocks: list[tuple[Block, float]]) -> Factors:
    """One head from its blocks and the queries that they share."""
    labels, row = [], 0
    for block, _ in blocks:
        labels += [f"{head.prefix}kv[{row + i},{j}]" for i, j in block.pairs]
        row += 1 + max((i for i, _ in block.pairs), default=-1)
    d = queries.shape[1]
    return Factors(
        values=np.concatenate([b.values for b, _ in blocks] or [np.zeros((0, d))]),
        keys=np.concatenate([b.keys for b, _ in blocks] or [np.zeros((0, d))]),
        decay=np.concatenate(
            [np.full(len(b.pairs), decay) for b, decay in blocks] or [np.zeros(0)]
        ),
        memory_labels=tuple(labels),
        queries=queries,
        query_labels=tuple(f"{head.prefix}q[{j}]" for j in range(len(queries))),
        R_m=block_diagonal([b.R_m for b, _ in blocks]),
        R_q=np.concatenate([b.R_q for b, _ in blocks] or [np.zeros((0, len(queries)))]),
        D=head.out @ np.concatenate([b.D for b, _ in blocks] or [np.zeros((len(head.W_V), 0))], 1),
    )


def join(parts: list[Factors]) -> Factors:
    """Heads side by side in one network; their outputs add up."""
    return Factors(
        values=np.concatenate([p.values for p in parts]),
        keys=np.concatenate([p.keys for p in parts]),
        decay=np.concatenate([p.decay for p in parts]),
        memory_labels=tuple(label for p in parts for label in p.memory_labels),
        queries=np.concatenate([p.queries for p in parts]),
        query_labels=tuple(label for p in parts for label in p.query_labels),
        R_m=block_diagonal([p.R_m for p in parts]),
        R_q=block_diagonal([p.R_q for p in parts]),
        D=np.concatenate([p.D for p in parts], axis=1),
    )


def normalised(factors: Factors) -> Factors:
    """The same function with values, keys and queries of size one, and all scale in D.

    Layers with a tanh need their signals small whatever the size of the source's weights. Powers
    of two cost no rounding, and one per matrix leaves equal rows equal.
    """
    scales = [
        power_of_two(rows) for rows in (factors.values, factors.keys, factors.queries, factors.R_q)
    ]
    values, keys, queries, R_q = (
        rows / scale
        for rows, scale in zip(
            (factors.values, factors.keys, factors.queries, factors.R_q), scales, strict=True
        )
    )
    D = factors.D * np.prod(scales)
    return replace(factors, values=values, keys=keys, queries=queries, R_q=R_q, D=D)


def power_of_two(numbers: np.ndarray) -> float:
    """The power of two next to the largest of some numbers; 1 if they are all zero."""
    largest = float(np.max(np.abs(numbers), initial=0.0))
    return 2.0 ** round(np.log2(largest)) if largest > 0 else 1.0


def block_diagonal(blocks: list[np.ndarray]) -> np.ndarray:
    """Blocks along the diagonal; empty ones keep their rows or columns."""
    rows, columns = sum(b.shape[0] for b in blocks), sum(b.shape[1] for b in blocks)
    whole, row, column = np.zeros((rows, columns)), 0, 0
    for block in blocks:
        whole[row : row + block.shape[0], column : column + block.shape[1]] = block
        row, column = row + block.shape[0], column + block.shape[1]
    return whole


def per_head(factor_head: Callable[[Head, bool], Factors]) -> Callable[[Attention, bool], Factors]:
    """A form that treats heads one by one, as a form of the whole attention."""

    def factor(source: Attention, single: bool) -> Factors:
        parts, reasons = [], []
        for head in source.heads:
            try:
                parts.append(factor_head(head, single))
            except ImpossibleConstruction as refusal:
                reasons += [f"{head.prefix}{reason}" for reason in refusal.reasons]
        if reasons:
            raise ImpossibleConstruction(
                "The compact form", [*reasons, "Use form='minimal', which needs no inverse."]
            )
        return join(parts)

    return factor


def full(head: Head, single: bool) -> Factors:
    """Every entry of the key-value matrix (Appendix A.1)."""
    d_k = len(head.W_K)
    blocks = []
    for rows, decay in head.groups():
        pairs = [(i, j) for i in range(len(rows)) for j in range(d_k)]
        blocks.append((products_of(head.W_V[rows], head.W_K, pairs, rows, len(head.W_V)), decay))
    factors = assemble(head, head.W_Q, blocks)
    order = [int(i) for rows, _ in head.groups() for i in rows]
    labels = tuple(f"{head.prefix}kv[{i},{j}]" for i in order for j in range(d_k))
    return replace(factors, memory_labels=labels)


def products_of(
    values: np.ndarray, keys: np.ndarray, pairs: list[tuple[int, int]], rows: np.ndarray, d_v: int
) -> Block:
    """One product per pair (i, j): value row i times key row j, read by query j, sent to row i."""
    i, j = (np.array([pair[side] for pair in pairs], int) for side in (0, 1))
    D = np.zeros((d_v, len(pairs)))
    D[rows[i], np.arange(len(pairs))] = 1
    return Block(values[i], keys[j], pairs, np.eye(len(pairs)), np.eye(len(keys))[j], D)


def low_rank(head: Head, single: bool) -> Factors:
    """Singular vectors in place of rows and columns (Appendix A.4, with its transposes right)."""
    U, s, Vt = np.linalg.svd(head.M)
    r = rank(s, head.M.shape, head.eps, head.noise)
    keys, queries = (U[:, :r] * s[:r]).T, Vt[:r]
    blocks = []
    for rows, decay in head.groups():
        U_V, s_V, Vt_V = np.linalg.svd(head.W_V[rows], full_matrices=False)
        r_V = rank(s_V, head.W_V.shape, head.eps)
        pairs = [(i, j) for i in range(r_V) for j in range(r)]
        local = products_of(s_V[:r_V, None] * Vt_V[:r_V], keys, pairs, np.arange(r_V), r_V)
        D = np.zeros((len(head.W_V), len(pairs)))
        D[rows] = U_V[:, :r_V] @ local.D
        blocks.append((replace(local, D=D), decay))
    return drop_idle_queries(assemble(head, queries, blocks))


def drop_idle_queries(factors: Factors) -> Factors:
    """Without memory there is nothing to query."""
    if len(factors.values):
        return factors
    return replace(factors, queries=factors.queries[:0], query_labels=(), R_q=factors.R_q[:, :0])


def compact(head: Head, single: bool) -> Factors:
    """Symmetric key-values, when W_V or W_K can be inverted (Appendix A.3)."""
    groups = list(head.groups())
    inverses = {
        name: np.linalg.inv(W)
        for name, W in (("W_V", head.W_V), ("W_K", head.W_K))
        if W.shape[0] == W.shape[1]
        and rank(np.linalg.svd(W, compute_uv=False), W.shape, head.eps) == len(W)
        and (name == "W_K" or len(groups) == 1)
    }
    if not inverses:
        raise ImpossibleConstruction("the compact form", compact_reasons(head, len(groups)))
    if "W_V" in inverses:
        basis, queries = head.W_V, inverses["W_V"].T @ head.M
        outputs = np.eye(len(head.W_V))
    else:
        basis, queries = head.W_K, head.W_Q
        outputs = head.W_V @ inverses["W_K"]
    blocks = []
    for rows, decay in groups:
        D = np.zeros_like(outputs)
        D[rows] = outputs[rows]
        blocks.append((symmetric(basis, D, single), decay))
    return assemble(head, queries, blocks)


def compact_reasons(head: Head, groups: int) -> list[str]:
    """Why neither W_V nor W_K can be inverted."""
    reasons = []
    for name, W in (("W_V", head.W_V), ("W_K", head.W_K)):
        r = rank(np.linalg.svd(W, compute_uv=False), W.shape, head.eps)
        shape = f"{W.shape[0]}×{W.shape[1]}"
        if name == "W_V" and groups > 1:
            reasons.append(f"{name} would have to be inverted for each of {groups} decays alone.")
        else:
            reasons.append(f"{name} ({shape}) has rank {r}, so no inverse.")
    return reasons


def symmetric(basis: np.ndarray, D: np.ndarray, single: bool) -> Block:
    """S w for S = Σ (basis x)(basis x)ᵀ, which d(d+1)/2 variables hold.

    With `single` every product reads one variable:
    (S w)_i = Σ_{j≠i} S_ij (w_i + w_j) + (S_ii − Σ_{j≠i} S_ij) w_i,
    where S_ij serves rows i and j at once and S_ii − Σ S_ij = Σ (b_i x)((b_i − Σ b_j) x) is a
    product of two linear forms again. Otherwise it is the paper's d² products S_ij w_j.
    """
    d = len(basis)
    pairs = [(i, j) for i in range(d) for j in range(i, d)]
    index = {pair: p for p, pair in enumerate(pairs)}
    i, j = (np.array([pair[side] for pair in pairs], int) for side in (0, 1))
    keys = basis[j]
    if single:
        diagonal = i == j
        keys = np.where(diagonal[:, None], 2 * basis[i] - basis.sum(axis=0), keys)
        R_q = np.eye(d)[i] + np.where(diagonal[:, None], 0, np.eye(d)[j])
        return Block(basis[i], keys, pairs, np.eye(len(pairs)), R_q, D @ R_q.T)
    R_m = np.zeros((d * d, len(pairs)))
    for row in range(d):
        for column in range(d):
            R_m[row * d + column, index[min(row, column), max(row, column)]] = 1
    return Block(basis[i], keys, pairs, R_m, np.tile(np.eye(d), (d, 1)), np.repeat(D, d, axis=1))
