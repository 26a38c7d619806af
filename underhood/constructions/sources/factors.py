"""Attention as memory, queries and products: what every construction starts from.

    y_t = D((R_m m_t) ⊙ (R_q q_t))    m_p(t) = Σ_{s≤t} λ_p^{t−s} (value_p·x_s)(key_p·x_s)    q = Q x

A gated RNN is this equation, with m (λ = 1) and q (λ = 0) as its neurons. With *direct reads*,
R_m = I, every product reads one memory variable; then a side-gated RNN is this equation too, and
each product is a triple (value, key, query) for the LSTM and the GRU. The forms differ in how they
write W_V (Σ x xᵀ) M x, M = W_KᵀW_Q; docs/constructions.md has them all, `minimal.py` the smallest.
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
    """The part of a head whose value rows share one decay.

    i, j  the value and the key of each product
    D     sends the products to those rows
    """

    values: np.ndarray
    keys: np.ndarray
    i: np.ndarray
    j: np.ndarray
    R_m: np.ndarray
    R_q: np.ndarray
    D: np.ndarray


def assemble(head: Head, queries: np.ndarray, block_of: Callable[[np.ndarray], Block]) -> Factors:
    """Make one head of a block per group of value rows, and the queries that the blocks share."""
    groups = list(head.groups())
    blocks = [block_of(rows) for rows, _ in groups]
    labels, outputs, row = [], [np.zeros((len(head.W_V), 0))], 0
    for (rows, _), block in zip(groups, blocks, strict=True):
        labels += [f"{head.prefix}kv[{row + i},{j}]" for i, j in zip(block.i, block.j, strict=True)]
        row += 1 + max(block.i, default=-1)
        D = np.zeros((len(head.W_V), block.D.shape[1]))
        D[rows] = block.D
        outputs.append(D)
    counts = [len(block.i) for block in blocks]
    # Without value rows there is no block, and the arrays still have their widths.
    no_rows = np.zeros((0, queries.shape[1]))
    return Factors(
        values=np.concatenate([no_rows, *(block.values for block in blocks)]),
        keys=np.concatenate([no_rows, *(block.keys for block in blocks)]),
        decay=np.repeat([decay for _, decay in groups], counts),
        memory_labels=tuple(labels),
        queries=queries,
        query_labels=tuple(f"{head.prefix}q[{j}]" for j in range(len(queries))),
        R_m=block_diag(np.zeros((0, 0)), *(block.R_m for block in blocks)),
        R_q=np.concatenate([np.zeros((0, len(queries))), *(block.R_q for block in blocks)]),
        D=head.out @ np.hstack(outputs),
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
    factors = assemble(
        head, head.W_Q, lambda rows: products_of(head.W_V[rows], head.W_K, np.eye(len(rows)))
    )
    order = [i for rows, _ in head.groups() for i in rows]
    labels = tuple(f"{head.prefix}kv[{i},{j}]" for i in order for j in range(len(head.W_K)))
    return replace(factors, memory_labels=labels)


def products_of(values: np.ndarray, keys: np.ndarray, outputs: np.ndarray) -> Block:
    """Multiply every value i by every key j, read by query j, sent to column i of the outputs."""
    i, j = np.indices((len(values), len(keys))).reshape(2, -1)
    return Block(values[i], keys[j], i, j, np.eye(len(i)), np.eye(len(keys))[j], outputs[:, i])


@per_head
def low_rank(head: Head, direct_reads: bool) -> Factors:
    """Use singular vectors as rows and columns (Appendix A.4, with its transposes corrected)."""
    U, s, Vt = np.linalg.svd(head.M)
    r = numerical_rank(s, head.M.shape, head.eps, head.noise)
    keys, queries = (U[:, :r] * s[:r]).T, Vt[:r]

    def block_of(rows: np.ndarray) -> Block:
        U, s, Vt = np.linalg.svd(head.W_V[rows], full_matrices=False)
        r = numerical_rank(s, head.W_V.shape, head.eps)
        return products_of(s[:r, None] * Vt[:r], keys, U[:, :r])

    return drop_idle_queries(assemble(head, queries, block_of))


def drop_idle_queries(factors: Factors) -> Factors:
    """Drop all queries if there is no memory to query."""
    if len(factors.values):
        return factors
    return replace(factors, queries=factors.queries[:0], query_labels=(), R_q=factors.R_q[:, :0])


@per_head
def compact(head: Head, direct_reads: bool) -> Factors:
    """Store symmetric key-values, if W_V or W_K can be inverted (Appendix A.3)."""
    if invertible(head.W_V, head.eps) and len(list(head.groups())) == 1:
        basis, queries = head.W_V, np.linalg.inv(head.W_V).T @ head.M
        outputs = np.eye(len(head.W_V))
    else:
        basis, queries = head.W_K, head.W_Q
        outputs = head.W_V @ np.linalg.inv(head.W_K)
    symmetric = symmetric_direct if direct_reads else symmetric_square
    return assemble(head, queries, lambda rows: symmetric(basis, outputs[rows]))


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
        if invertible(head.W_K, head.eps) or (invertible(head.W_V, head.eps) and groups == 1):
            continue
        for name, W in (("W_V", head.W_V), ("W_K", head.W_K)):
            rank, shape = matrix_rank(W, head.eps), f"{W.shape[0]}×{W.shape[1]}"
            if name == "W_V" and groups > 1:
                reason = f"{name} would have to be inverted for each of {groups} decays alone."
            else:
                reason = f"{name} ({shape}) has rank {rank}, so no inverse."
            reasons.append(head.prefix + reason)
    return [*reasons, "Use form='minimal', which needs no inverse."] if reasons else []


def symmetric_square(basis: np.ndarray, D: np.ndarray) -> Block:
    """Compute S w, S = Σ (basis x)(basis x)ᵀ, by the paper's d² products S_ij w_j.

    d(d+1)/2 variables hold S.
    """
    d = len(basis)
    i, j = np.triu_indices(d)
    place = np.zeros((d, d), int)
    place[i, j] = place[j, i] = np.arange(len(i))
    R_m, R_q = np.eye(len(i))[place.ravel()], np.tile(np.eye(d), (d, 1))
    return Block(basis[i], basis[j], i, j, R_m, R_q, np.repeat(D, d, axis=1))


def symmetric_direct(basis: np.ndarray, D: np.ndarray) -> Block:
    """Compute S w by d(d+1)/2 products that read one variable each.

    (S w)_i = Σ_{j≠i} S_ij (w_i + w_j) + (S_ii − Σ_{j≠i} S_ij) w_i,
    where S_ij serves rows i and j at once and S_ii − Σ S_ij = Σ (b_i x)((b_i − Σ b_j) x) is a
    product of two linear forms again.
    """
    d = len(basis)
    i, j = np.triu_indices(d)
    diagonal = (i == j)[:, None]
    keys = np.where(diagonal, 2 * basis[i] - basis.sum(axis=0), basis[j])
    R_q = np.eye(d)[i] + np.where(diagonal, 0, np.eye(d)[j])
    return Block(basis[i], keys, i, j, np.eye(len(i)), R_q, D @ R_q.T)
