"""Attention as memory, queries and products: what every construction starts from.

y_t = D((R_m m_t) ⊙ (R_q q_t))    m_p(t) = Σ_{s≤t} λ_p^{t−s} (value_p·x_s)(key_p·x_s),  q = Q x

A gated RNN is this equation, with m (λ = 1) and q (λ = 0) as its neurons. With *direct reads*,
R_m = I, every product reads one memory variable; then a side-gated RNN is this equation too, and
each product is a triple (value, key, query) for the LSTM and the GRU.

The forms differ in how they write W_V (Σ x xᵀ) M x, M = W_KᵀW_Q:
full       v_i k_j, all of them: d_v·d_k memory variables, d_k queries
compact    if W_V is invertible: keys = values and queries W_V^{−T}M x; if W_K is: values = keys and
           W_V W_K^{−1} in the readout. Σ k kᵀ is symmetric: d(d+1)/2 variables
low_rank   SVDs of W_V and M: rank(W_V)·rank(M) variables, rank(M) queries
minimal    in `minimal.py`
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import block_diag

from underhood.constructions.sources.heads import Attention, Head, numerical_rank


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
    """The part of a head whose value rows share one decay; pairs (i, j) are value i, key j."""

    values: np.ndarray
    keys: np.ndarray
    pairs: list[tuple[int, int]]
    R_m: np.ndarray
    R_q: np.ndarray
    D: np.ndarray


def assemble(head: Head, queries: np.ndarray, blocks: list[tuple[Block, float]]) -> Factors:
    """Make one head of its blocks, each with its decay, and the queries that they share."""
    labels, row = [], 0
    for block, _ in blocks:
        labels += [f"{head.prefix}kv[{row + i},{j}]" for i, j in block.pairs]
        row += 1 + max((i for i, _ in block.pairs), default=-1)
    # Without value rows there is no block, and the arrays still have their widths.
    no_rows = np.zeros((0, queries.shape[1]))
    return Factors(
        values=np.concatenate([no_rows, *(b.values for b, _ in blocks)]),
        keys=np.concatenate([no_rows, *(b.keys for b, _ in blocks)]),
        decay=np.concatenate([np.zeros(0), *(np.full(len(b.pairs), decay) for b, decay in blocks)]),
        memory_labels=tuple(labels),
        queries=queries,
        query_labels=tuple(f"{head.prefix}q[{j}]" for j in range(len(queries))),
        R_m=block_diag(np.zeros((0, 0)), *(b.R_m for b, _ in blocks)),
        R_q=np.concatenate([np.zeros((0, len(queries))), *(b.R_q for b, _ in blocks)]),
        D=head.out @ np.hstack([np.zeros((len(head.W_V), 0)), *(b.D for b, _ in blocks)]),
    )


def join_heads(parts: list[Factors]) -> Factors:
    """Put heads side by side in one network; their outputs add up."""
    joined = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("values", "keys", "decay", "queries")
    }
    return Factors(
        **joined,
        memory_labels=sum((part.memory_labels for part in parts), ()),
        query_labels=sum((part.query_labels for part in parts), ()),
        R_m=block_diag(*(part.R_m for part in parts)),
        R_q=block_diag(*(part.R_q for part in parts)),
        D=np.concatenate([part.D for part in parts], axis=1),
    )


def normalised(factors: Factors) -> Factors:
    """Return the same function with values, keys and queries of size one, and all scale in D.

    Layers with a tanh need small signals whatever the size of the source's weights. Powers of two
    cost no rounding, and one scale per matrix leaves equal rows equal.
    """
    matrices = {name: getattr(factors, name) for name in ("values", "keys", "queries", "R_q")}
    scales = {name: power_of_two(rows) for name, rows in matrices.items()}
    scaled = {name: rows / scales[name] for name, rows in matrices.items()}
    return replace(factors, **scaled, D=factors.D * np.prod(list(scales.values())))


def power_of_two(numbers: np.ndarray) -> float:
    """Return the power of two next to the largest of some numbers; 1 if they are all zero."""
    largest = float(np.max(np.abs(numbers), initial=0.0))
    return 2.0 ** round(np.log2(largest)) if largest > 0 else 1.0


def per_head(factor_head: Callable[[Head, bool], Factors]) -> Callable[[Attention, bool], Factors]:
    """Make a form of one head a form of all heads."""
    return lambda source, direct_reads: join_heads(
        [factor_head(head, direct_reads) for head in source.heads]
    )


@per_head
def full(head: Head, direct_reads: bool) -> Factors:
    """Store every entry of the key-value matrix (Appendix A.1)."""
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
    """Make a product per pair (i, j): value i times key j, read by query j, sent to row i."""
    i, j = (np.array([pair[side] for pair in pairs], int) for side in (0, 1))
    D = np.zeros((d_v, len(pairs)))
    D[rows[i], np.arange(len(pairs))] = 1
    return Block(values[i], keys[j], pairs, np.eye(len(pairs)), np.eye(len(keys))[j], D)


@per_head
def low_rank(head: Head, direct_reads: bool) -> Factors:
    """Use singular vectors as rows and columns (Appendix A.4, with its transposes corrected)."""
    U, s, Vt = np.linalg.svd(head.M)
    r = numerical_rank(s, head.M.shape, head.eps, head.noise)
    keys, queries = (U[:, :r] * s[:r]).T, Vt[:r]
    blocks = []
    for rows, decay in head.groups():
        U_V, s_V, Vt_V = np.linalg.svd(head.W_V[rows], full_matrices=False)
        r_V = numerical_rank(s_V, head.W_V.shape, head.eps)
        pairs = [(i, j) for i in range(r_V) for j in range(r)]
        local = products_of(s_V[:r_V, None] * Vt_V[:r_V], keys, pairs, np.arange(r_V), r_V)
        D = np.zeros((len(head.W_V), len(pairs)))
        D[rows] = U_V[:, :r_V] @ local.D
        blocks.append((replace(local, D=D), decay))
    return drop_idle_queries(assemble(head, queries, blocks))


def drop_idle_queries(factors: Factors) -> Factors:
    """Drop all queries if there is no memory to query."""
    if len(factors.values):
        return factors
    return replace(factors, queries=factors.queries[:0], query_labels=(), R_q=factors.R_q[:, :0])


@per_head
def compact(head: Head, direct_reads: bool) -> Factors:
    """Store symmetric key-values, if W_V or W_K can be inverted (Appendix A.3)."""
    groups = list(head.groups())
    if invertible(head.W_V, head.eps) and len(groups) == 1:
        basis, queries = head.W_V, np.linalg.inv(head.W_V).T @ head.M
        outputs = np.eye(len(head.W_V))
    else:
        basis, queries = head.W_K, head.W_Q
        outputs = head.W_V @ np.linalg.inv(head.W_K)
    blocks = []
    for rows, decay in groups:
        D = np.zeros_like(outputs)
        D[rows] = outputs[rows]
        blocks.append(((symmetric_direct if direct_reads else symmetric_square)(basis, D), decay))
    return assemble(head, queries, blocks)


def invertible(W: np.ndarray, eps: float) -> bool:
    return W.shape[0] == W.shape[1] == matrix_rank(W, eps)


def matrix_rank(W: np.ndarray, eps: float) -> int:
    """Count the singular values of a matrix that are more than rounding."""
    return numerical_rank(np.linalg.svd(W, compute_uv=False), W.shape, eps)


def reasons_against_compact(source: Attention) -> list[str]:
    """Say for each head why neither W_V nor W_K can be inverted."""
    reasons = []
    for head in source.heads:
        groups = len(list(head.groups()))
        matrices = {"W_V": head.W_V, "W_K": head.W_K}
        if invertible(head.W_K, head.eps) or (invertible(head.W_V, head.eps) and groups == 1):
            continue
        for name, W in matrices.items():
            rank, shape = matrix_rank(W, head.eps), f"{W.shape[0]}×{W.shape[1]}"
            if name == "W_V" and groups > 1:
                reason = f"{name} would have to be inverted for each of {groups} decays alone."
            else:
                reason = f"{name} ({shape}) has rank {rank}, so no inverse."
            reasons.append(head.prefix + reason)
    return [*reasons, "Use form='minimal', which needs no inverse."] if reasons else []


def upper_pairs(d: int) -> tuple[list[tuple[int, int]], np.ndarray, np.ndarray]:
    """Return the pairs i ≤ j below d, all i, and all j."""
    pairs = [(i, j) for i in range(d) for j in range(i, d)]
    i, j = (np.array([pair[side] for pair in pairs], int) for side in (0, 1))
    return pairs, i, j


def symmetric_square(basis: np.ndarray, D: np.ndarray) -> Block:
    """Compute S w, S = Σ (basis x)(basis x)ᵀ, by the paper's d² products S_ij w_j.

    d(d+1)/2 variables hold S.
    """
    d = len(basis)
    pairs, i, j = upper_pairs(d)
    index = {pair: p for p, pair in enumerate(pairs)}
    R_m = np.zeros((d * d, len(pairs)))
    for row in range(d):
        for column in range(d):
            R_m[row * d + column, index[min(row, column), max(row, column)]] = 1
    R_q = np.tile(np.eye(d), (d, 1))
    return Block(basis[i], basis[j], pairs, R_m, R_q, np.repeat(D, d, axis=1))


def symmetric_direct(basis: np.ndarray, D: np.ndarray) -> Block:
    """Compute S w by d(d+1)/2 products that read one variable each.

    (S w)_i = Σ_{j≠i} S_ij (w_i + w_j) + (S_ii − Σ_{j≠i} S_ij) w_i,
    where S_ij serves rows i and j at once and S_ii − Σ S_ij = Σ (b_i x)((b_i − Σ b_j) x) is a
    product of two linear forms again.
    """
    d = len(basis)
    pairs, i, j = upper_pairs(d)
    diagonal = (i == j)[:, None]
    keys = np.where(diagonal, 2 * basis[i] - basis.sum(axis=0), basis[j])
    R_q = np.eye(d)[i] + np.where(diagonal, 0, np.eye(d)[j])
    return Block(basis[i], keys, pairs, np.eye(len(pairs)), R_q, D @ R_q.T)
