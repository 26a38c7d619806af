"""Products in a subspace: rank-one matrices, and squares of linear forms, that span it.

A gate can only write products. To carry a space of functions with as few gates as its dimension,
the space needs a basis of products: of u xᵀ for gate outputs (one output direction, one reading of
the current token), of (w·z)(w'·z) for neurons. A product in the subspace is a zero of P⊥(a ⊗ b),
found by damped Gauss–Newton from a random element of the subspace; there are whole families of them
where attention is computed. A subspace known to some accuracy has products to that accuracy. Of the
products found, a well-conditioned basis is picked.
"""

from collections.abc import Callable

import numpy as np

from underhood.analysis.forms.quadratic import symmetric_products, upper

TRIES = 12
# A product this near to the space lies in it but for rounding.
EXACT = 1e-13

Pair = tuple[np.ndarray, np.ndarray]


def rank_one_basis(
    space: np.ndarray, rows: int, accuracy: float, rng: np.random.Generator
) -> Pair | None:
    """u [r, rows] and x [r, columns] with u_j x_jᵀ a basis of a space [r, rows × columns].

    Rows and columns are mixed first until all directions weigh the same, which turns products into
    products; in skewed coordinates the search would crawl.
    """
    columns = space.shape[1] // rows
    left, right = np.eye(rows), np.eye(columns)
    for _ in range(5):
        matrices = left @ space.reshape(-1, rows, columns) @ right.T
        left = inverse_root(np.einsum("iab,icb->ac", matrices, matrices)) @ left
        matrices = left @ space.reshape(-1, rows, columns) @ right.T
        right = inverse_root(np.einsum("iab,iac->bc", matrices, matrices)) @ right
    even = (left @ space.reshape(-1, rows, columns) @ right.T).reshape(len(space), -1)

    def product(u: np.ndarray, x: np.ndarray) -> np.ndarray:
        return np.einsum("...a,...b->...ab", u, x).reshape(*u.shape[:-1], rows * columns)

    def guess(element: np.ndarray) -> Pair:
        first, _, second = np.linalg.svd(element.reshape(rows, columns), full_matrices=False)
        return first[:, 0], second[0]

    found = product_basis(even, product, guess, accuracy, rng)
    if found is None:
        return None
    return found[0] @ np.linalg.pinv(left).T, found[1] @ np.linalg.pinv(right).T


def inverse_root(gram: np.ndarray) -> np.ndarray:
    """gram^(−½) where it is not zero."""
    values, vectors = np.linalg.eigh(gram)
    kept = values > 1e-14 * np.max(values, initial=0.0)
    return (vectors[:, kept] / np.sqrt(values[kept])) @ vectors[:, kept].T


def gate_basis(
    space: np.ndarray, size: int, accuracy: float, rng: np.random.Generator
) -> Pair | None:
    """W_m, W_x [r, size] whose products are a basis of a space [r, entries] of reads."""
    rows, columns = upper(size)
    # Weighted entries have the inner product of the symmetric matrices themselves.
    weight = np.where(rows == columns, 1.0, np.sqrt(0.5))

    def product(m: np.ndarray, x: np.ndarray) -> np.ndarray:
        return (
            symmetric_products(np.atleast_2d(m), np.atleast_2d(x)).reshape(*m.shape[:-1], len(rows))
            * weight
        )

    def guess(element: np.ndarray) -> Pair:
        matrix = np.zeros((size, size))
        matrix[rows, columns] = element / weight
        values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
        # λ₁uuᵀ − λ₂wwᵀ is the product of √λ₁u + √λ₂w and √λ₁u − √λ₂w.
        high, low = (np.sqrt(max(one, 0.0)) for one in (values[-1], -values[0]))
        if high < 1e-3 and low > 0:
            return vectors[:, 0], -vectors[:, 0]
        return high * vectors[:, -1] + low * vectors[:, 0], (
            high * vectors[:, -1] - low * vectors[:, 0]
        )

    return product_basis(space * weight, product, guess, accuracy, rng)


def product_basis(
    space: np.ndarray,
    product: Callable[[np.ndarray, np.ndarray], np.ndarray],
    guess: Callable[[np.ndarray], Pair],
    accuracy: float,
    rng: np.random.Generator,
) -> Pair | None:
    """As many products as the space has dimensions, spanning it; None where none are found."""
    dimension = len(space)
    if dimension == 0:
        a, b = guess(np.ones(space.shape[1]))
        return np.zeros((0, len(a))), np.zeros((0, len(b)))
    basis = np.linalg.svd(space, full_matrices=False)[2]
    found: list[Pair] = []
    misfits: list[float] = []
    for _ in range(TRIES * dimension):
        pair, misfit = refine(*guess(rng.normal(size=dimension) @ basis), basis, product)
        if misfit <= accuracy:
            found.append(pair)
            misfits.append(misfit)
        if len(found) >= 4 * dimension:
            break
    if len(found) < dimension:
        return None
    a, b = (np.array(one) for one in zip(*found, strict=True))
    # Few good products may span the space badly; many fair ones span it well.
    best, chosen = np.inf, None
    for share in (0.25, 0.5, 0.75, 1.0):
        level = max(float(np.quantile(misfits, share)), EXACT)
        near = np.flatnonzero(np.array(misfits) <= level)
        picked = pick(product(a[near], b[near]) @ basis.T, dimension)
        if picked is not None:
            vectors = product(a[near[picked]], b[near[picked]]) @ basis.T
            error = level / np.linalg.svd(vectors, compute_uv=False)[-1]
            if error < best:
                best, chosen = error, near[picked]
    return None if chosen is None else (a[chosen], b[chosen])


def refine(
    a: np.ndarray,
    b: np.ndarray,
    basis: np.ndarray,
    product: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> tuple[Pair, float]:
    """a and b of length one with their product near the space, and how far it is from it."""

    def outside(vector: np.ndarray) -> np.ndarray:
        return vector - (vector @ basis.T) @ basis

    def normalised(a: np.ndarray, b: np.ndarray) -> Pair:
        return a / max(float(np.linalg.norm(a)), 1e-300), b / max(float(np.linalg.norm(b)), 1e-300)

    pair, damping = normalised(a, b), 1e-3
    misfit = outside(product(*pair))
    for _ in range(200):
        cost = float(misfit @ misfit)
        if cost < EXACT**2 or damping > 1e3:
            break
        a, b = pair
        by_a = outside(product(np.eye(len(a)), np.broadcast_to(b, (len(a), len(b)))))
        by_b = outside(product(np.broadcast_to(a, (len(b), len(a))), np.eye(len(b))))
        J = np.vstack([by_a, by_b])
        step = np.linalg.solve(J @ J.T + damping * np.eye(len(J)), -J @ misfit)
        moved = normalised(a + step[: len(a)], b + step[len(a) :])
        trial = outside(product(*moved))
        if trial @ trial < cost:
            gained = 1 - float(trial @ trial) / cost
            pair, misfit, damping = moved, trial, max(damping / 5, 1e-15)
            if gained < 1e-6:
                break
        else:
            damping *= 5
    size = float(np.linalg.norm(product(*pair)))
    return pair, float(np.linalg.norm(misfit)) / max(size, 1e-300)


def pick(vectors: np.ndarray, count: int) -> np.ndarray | None:
    """`count` rows that span, each the farthest from those before it; None if they do not."""
    left = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-300)
    chosen = []
    for _ in range(count):
        sizes = np.linalg.norm(left, axis=1)
        best = int(np.argmax(sizes))
        if sizes[best] < 1e-6:
            return None
        chosen.append(best)
        direction = left[best] / sizes[best]
        left = left - np.outer(left @ direction, direction)
    return np.array(chosen)
