"""The smallest form: rank(W_V)·rank(M) − k(k−1)/2 memory variables and as many products.

With orthonormal bases [C A'] of the row space of W_V and [C B'] of the column space of M, which
share the k columns of C, and S = Σ x xᵀ, y_t = L ([C A']ᵀ S [C B']) (R x_t), and CᵀSC is symmetric.
docs/minimal.md proves that no gated RNN with λ in [0, 1] has fewer neurons or gate outputs. For
one head nothing is inverted and nothing is amplified.

Several heads share their queries. Without direct reads they share memory too: a variable that is a
linear combination of others with the same decay is not stored but read as that combination.
"""

from dataclasses import replace

import numpy as np
import scipy.linalg

from underhood.constructions.sources import factors as forms
from underhood.constructions.sources.heads import Attention, Head, numerical_rank


def minimal(source: Attention, direct_reads: bool) -> forms.Factors:
    """Return the smallest factors.

    direct_reads  every product reads one memory variable, R_m = I
    """
    queries = query_basis(source)
    parts = [minimal_head(head, queries, direct_reads) for head in source.heads]
    factors = replace(
        forms.join_heads(parts),
        queries=queries,
        query_labels=tuple(f"q[{j}]" for j in range(len(queries))),
        R_q=np.concatenate([part.R_q for part in parts]),
    )
    # The variables of one head are independent already.
    if len(parts) > 1 and not direct_reads:
        factors = share_memory(factors)
    return forms.drop_idle_queries(factors)


def query_basis(source: Attention) -> np.ndarray:
    """Return orthonormal rows that span the queries of all heads."""
    active = [head for head in source.heads if forms.matrix_rank(head.W_V, head.eps) > 0]
    if not active:
        return np.zeros((0, source.heads[0].W_V.shape[1]))
    stacked = np.concatenate([head.M for head in active])
    _, s, Vt = np.linalg.svd(stacked)
    eps, floor = max(h.eps for h in active), max(h.noise for h in active)
    return canonical_basis(Vt[: numerical_rank(s, stacked.shape, eps, floor)].T).T


def minimal_head(head: Head, queries: np.ndarray, direct_reads: bool) -> forms.Factors:
    """Factor one head over queries that heads share."""
    U, s, _ = np.linalg.svd(head.M)
    r = numerical_rank(s, head.M.shape, head.eps, head.noise)
    B, spread = U[:, :r], (s[0] / s[r - 1] if r else 1.0)

    def block_of(rows: np.ndarray) -> forms.Block:
        block = minimal_block(head.W_V[rows], B, spread, head.eps, direct_reads)
        return replace(block, R_q=block.R_q @ (head.M @ queries.T))

    return forms.assemble(head, queries, block_of)


def minimal_block(
    W_V: np.ndarray, B: np.ndarray, spread: float, eps: float, direct_reads: bool
) -> forms.Block:
    """Return the products of one head and decay; R_q [products, d] is still to be applied to M.

    B       orthonormal basis of the column space of M
    spread  ratio of M's largest and smallest singular values
    """
    _, s, Vt = np.linalg.svd(W_V, full_matrices=False)
    r_V = numerical_rank(s, W_V.shape, eps)
    A = Vt[:r_V].T
    spread += s[0] / s[r_V - 1] if r_V else 1.0
    C, A_rest, B_rest = split_common(A, B, tolerance=10 * max(W_V.shape) * eps * spread)
    k = C.shape[1]
    A, B = np.hstack([C, A_rest]), np.hstack([C, B_rest])
    L = W_V @ A
    shared = (forms.symmetric_direct if direct_reads else symmetric_mixed)(C.T, L[:, :k])
    i, j = np.indices((A.shape[1], B.shape[1])).reshape(2, -1)
    i, j = (index[(i >= k) | (j >= k)] for index in (i, j))
    return forms.Block(
        values=np.concatenate([shared.values, A.T[i]]),
        keys=np.concatenate([shared.keys, B.T[j]]),
        i=np.concatenate([shared.i, i]),
        j=np.concatenate([shared.j, j]),
        R_m=scipy.linalg.block_diag(shared.R_m, np.eye(len(i))),
        R_q=np.concatenate([shared.R_q @ C.T, B.T[j]]),
        D=np.hstack([shared.D, L[:, i]]),
    )


def symmetric_mixed(basis: np.ndarray, D: np.ndarray) -> forms.Block:
    """Change `symmetric_direct` so that S_ii is the variable and the sum stands in R_m."""
    block = forms.symmetric_direct(basis, D)
    i, j, R_m = block.i, block.j, block.R_m.copy()
    for p in np.flatnonzero(i == j):
        R_m[p, ((i == i[p]) | (j == i[p])) & (i != j)] = -1
    return replace(block, keys=basis[j], R_m=R_m)


def split_common(
    A: np.ndarray, B: np.ndarray, *, tolerance: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return orthonormal bases of A∩B, and of what A and B have besides it."""
    # Columns of B that leave A by a sine below the tolerance are in A.
    _, sines, Vt = np.linalg.svd(B - A @ (A.T @ B))
    sines = np.concatenate([sines, np.zeros(B.shape[1] - len(sines))])
    common = sines <= tolerance
    C, B_rest = B @ Vt[common].T, B @ Vt[~common].T
    # What is orthogonal to C inside A: the last left singular vectors of AᵀC.
    A_rest = A @ np.linalg.svd(A.T @ C)[0][:, C.shape[1] :]
    return canonical_basis(C), canonical_basis(A_rest), canonical_basis(B_rest)


def canonical_basis(basis: np.ndarray) -> np.ndarray:
    """Return the orthonormal basis [d, k] of the same space that the space alone decides.

    Singular vectors of equal singular values are chosen by rounding, and so differ from processor
    to processor. Here the coordinate axis nearest to the space is projected into it, then the axis
    nearest to what is left, and so on. The whole space gets the axes themselves.
    """
    if basis.shape[0] == basis.shape[1]:
        return np.eye(len(basis))
    left, columns = basis @ basis.T, np.zeros_like(basis)
    for place in range(basis.shape[1]):
        sizes = np.linalg.norm(left, axis=0)
        # Of axes that are equally near up to rounding, the first.
        axis = int(np.argmax(sizes > 0.999 * sizes.max()))
        # Once more, against what rounding left of earlier columns.
        column = left[:, axis] - columns @ (columns.T @ left[:, axis])
        columns[:, place] = column / np.linalg.norm(column)
        left = left - np.outer(columns[:, place], columns[:, place] @ left)
    return columns


def share_memory(factors: forms.Factors) -> forms.Factors:
    """Drop memory variables that are linear combinations of others with the same decay."""
    kept: list[int] = []
    expand = np.zeros((len(factors.values), len(factors.values)))
    for decay in np.unique(factors.decay):
        members = np.flatnonzero(factors.decay == decay)
        forms = quadratic_forms(factors.values[members], factors.keys[members])
        # Pivoting picks actual variables to keep, so that labels stay true.
        _, R, order = scipy.linalg.qr(forms.T, mode="economic", pivoting=True)
        r = int(np.sum(np.abs(np.diag(R)) > max(forms.shape) * 1e-15 * 100 * abs(R[0, 0])))
        basis, rest = members[order[:r]], members[order[r:]]
        expand[basis, basis] = 1
        expand[np.ix_(rest, basis)] = scipy.linalg.solve_triangular(R[:r, :r], R[:r, r:]).T
        kept += [int(b) for b in basis]
    kept.sort()
    return replace(
        factors,
        values=factors.values[kept],
        keys=factors.keys[kept],
        decay=factors.decay[kept],
        memory_labels=tuple(factors.memory_labels[p] for p in kept),
        R_m=factors.R_m @ expand[:, kept],
    )


def quadratic_forms(values: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Return the upper triangles of ½(v kᵀ + k vᵀ), scaled so that they keep inner products."""
    forms = np.einsum("ni,nj->nij", values, keys)
    forms = (forms + forms.transpose(0, 2, 1)) / 2
    upper = np.triu_indices(values.shape[1])
    return forms[:, upper[0], upper[1]] * np.where(upper[0] == upper[1], 1, np.sqrt(2))
