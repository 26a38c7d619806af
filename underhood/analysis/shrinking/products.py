"""Products in a subspace: rank-one matrices, and products of linear forms, that span it.

A gate can only write products. To carry a space of functions with as few gates as its dimension,
the space needs a basis of products: of u xᵀ for gate outputs (one output direction, one reading of
the current token), of (w·z)(w'·z) for neurons. A product in the subspace is a zero of P⊥(a ⊗ b),
found by damped Gauss–Newton steps from a random element; where attention is computed there are
whole families of zeros. Products are as accurate as the subspace; a well-conditioned basis is kept.
"""

import itertools
from collections.abc import Callable

import numpy as np
import scipy.linalg
from numpy.random import Generator

from underhood.common.least_squares import ResidualPoint, damped_steps
from underhood.common.linear_algebra import symmetric_products, symmetric_reads, upper

# Searches for each dimension of a space.
SEARCHES = 12
# A product this near to the space lies in it up to rounding.
EXACT_PRODUCT = 1e-13
# A search ends with a step that lowers its cost by less than this share.
SMALLEST_GAIN = 1e-6
# A row of size one that is nearer than this to the span of others is not chosen.
NEARLY_DEPENDENT = 1e-6
# Rows of more numbers than this are chosen by LAPACK.
MANY_NUMBERS = 100_000

Pair = tuple[np.ndarray, np.ndarray]
# The product of a pair as a vector, and a pair whose product is near a vector.
PairProduct = Callable[[np.ndarray, np.ndarray], np.ndarray]
Guess = Callable[[np.ndarray], Pair]


def rank_one_basis(space: np.ndarray, rows: int, accuracy: float, rng: Generator) -> Pair | None:
    """Return u [r, rows] and x [r, columns] with u_j x_jᵀ a basis of a space [r, rows × columns].

    Rows and columns are mixed first until all directions weigh the same. Products stay products,
    and the search is fast; in skewed coordinates it would be slow.

    accuracy  largest distance of a product of size 1 from the space
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

    basis = product_basis(even, product, guess, accuracy, rng)
    if basis is None:
        return None
    return basis[0] @ np.linalg.pinv(left).T, basis[1] @ np.linalg.pinv(right).T


def inverse_root(gram: np.ndarray) -> np.ndarray:
    """Return gram^(−½) where it is not zero."""
    values, vectors = np.linalg.eigh(gram)
    kept = values > 1e-14 * np.max(values, initial=0.0)
    return (vectors[:, kept] / np.sqrt(values[kept])) @ vectors[:, kept].T


def gate_basis(space: np.ndarray, size: int, accuracy: float, rng: Generator) -> Pair | None:
    """Return W_m, W_x [r, size] whose products are a basis of a space [r, entries] of reads."""
    weight = entry_weights(size)

    def product(m: np.ndarray, x: np.ndarray) -> np.ndarray:
        return symmetric_products(m, x) * weight

    def guess(element: np.ndarray) -> Pair:
        values, vectors = np.linalg.eigh(symmetric_reads(element / weight, size))
        # λ₁uuᵀ − λ₂wwᵀ is the product of √λ₁u + √λ₂w and √λ₁u − √λ₂w.
        high, low = (np.sqrt(max(value, 0.0)) for value in (values[-1], -values[0]))
        if high < 1e-3 and low > 0:
            return vectors[:, 0], -vectors[:, 0]
        u, w = high * vectors[:, -1], low * vectors[:, 0]
        return u + w, u - w

    return product_basis(space * weight, product, guess, accuracy, rng)


def entry_weights(size: int) -> np.ndarray:
    """Return weights of entries that give them the inner product of symmetric matrices."""
    rows, columns = upper(size)
    return np.where(rows == columns, 1.0, np.sqrt(0.5))


def product_basis(
    space: np.ndarray, product: PairProduct, guess: Guess, accuracy: float, rng: Generator
) -> Pair | None:
    """Return products that are a basis of the space; None where too few are found."""
    dimension = len(space)
    if dimension == 0:
        a, b = guess(np.ones(space.shape[1]))
        return np.zeros((0, len(a))), np.zeros((0, len(b)))
    basis = np.linalg.svd(space, full_matrices=False)[2]
    guesses = (guess(rng.normal(size=dimension) @ basis) for _ in range(SEARCHES * dimension))
    searches = (refine_product(*pair, basis, product) for pair in guesses)
    good = ((pair, misfit) for pair, misfit in searches if misfit <= accuracy)
    results = list(itertools.islice(good, 4 * dimension))
    if len(results) < dimension:
        return None
    pairs, misfits = zip(*results, strict=True)
    a, b = (np.array(factors) for factors in zip(*pairs, strict=True))
    # Few good products may span the space badly; many fair ones span it well.
    best, chosen = np.inf, None
    for share in (0.25, 0.5, 0.75, 1.0):
        level = max(float(np.quantile(misfits, share)), EXACT_PRODUCT)
        near = np.flatnonzero(np.array(misfits) <= level)
        picked = spanning_rows(product(a[near], b[near]) @ basis.T, dimension)
        if picked is not None:
            vectors = product(a[near[picked]], b[near[picked]]) @ basis.T
            error = level / np.linalg.svd(vectors, compute_uv=False)[-1]
            if error < best:
                best, chosen = error, near[picked]
    return None if chosen is None else (a[chosen], b[chosen])


def refine_product(
    a: np.ndarray, b: np.ndarray, basis: np.ndarray, product: PairProduct
) -> tuple[Pair, float]:
    """Move a and b until their product is near the space; return them and its distance."""

    def outside(vectors: np.ndarray) -> np.ndarray:
        return vectors - (vectors @ basis.T) @ basis

    def point_at(*factors: np.ndarray) -> ResidualPoint:
        a, b = (factor / max(float(np.linalg.norm(factor)), 1e-300) for factor in factors)
        return ResidualPoint((a, b), outside(product(a, b)))

    def linearise(point: ResidualPoint) -> Callable[[float], ResidualPoint]:
        a, b = point.unknowns
        by_a = outside(product(np.eye(len(a)), np.broadcast_to(b, (len(a), len(b)))))
        by_b = outside(product(np.broadcast_to(a, (len(b), len(a))), np.eye(len(b))))
        J = np.vstack([by_a, by_b])

        def step(damping: float) -> ResidualPoint:
            by = np.linalg.solve(J @ J.T + damping * np.eye(len(J)), -J @ point.residual)
            return point_at(a + by[: len(a)], b + by[len(a) :])

        return step

    point = point_at(a, b)
    steps = damped_steps(point, linearise, damping=1e-3, factor=5, least=1e-15, most=1e3, tries=200)
    for after in steps if point.cost >= EXACT_PRODUCT**2 else ():
        gained, point = 1 - after.cost / point.cost, after
        if gained < SMALLEST_GAIN or point.cost < EXACT_PRODUCT**2:
            break
    size = float(np.linalg.norm(product(*point.unknowns)))
    return point.unknowns, float(np.linalg.norm(point.residual)) / max(size, 1e-300)


def spanning_rows(vectors: np.ndarray, count: int) -> np.ndarray | None:
    """Pick `count` rows that span, each the farthest from those before it; None if none do."""
    left = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-300)
    if left.size > MANY_NUMBERS:
        # A factorisation with pivots makes the same choice, but for rows that are equally far.
        R, order = scipy.linalg.qr(left.T, mode="r", pivoting=True, check_finite=False)
        distances = np.abs(np.diag(R))[:count]
        enough = len(distances) == count and bool(np.all(distances >= NEARLY_DEPENDENT))
        return order[:count] if enough else None
    chosen = []
    for _ in range(count):
        sizes = np.linalg.norm(left, axis=1)
        best = int(np.argmax(sizes))
        if sizes[best] < NEARLY_DEPENDENT:
            return None
        chosen.append(best)
        direction = left[best] / sizes[best]
        left = left - np.outer(left @ direction, direction)
    return np.array(chosen)
