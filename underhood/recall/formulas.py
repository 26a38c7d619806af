"""Accuracy of one answer by formula (docs/recall.md has the derivations).

    K    pairs in the sequence            C   candidates: all values
    dk   numbers of a key's code          n   all keys
    dv   numbers of a value's code        w   mean square crosstalk, the Welch floor
    s    writes after the pairs that disturb: filler that looks like a pair

dense   y = ψ* + Σ c_j ψ_j. With par along ψ* and perp across it, the answer is right if no value
        outside the sequence and none inside it has a larger score.
hash    right if no other key of the same bucket was stored.
delta   writes replace what is stored at the key: the newest of a bucket wins.
"""

import math
from functools import cache

import numpy as np
from scipy import special

from underhood.recall.codes import DENSE_CODES, HASH_CODES, welch_floor

LINEAR_RULE, DELTA_RULE = "linear", "delta"
RULES = (LINEAR_RULE, DELTA_RULE)

# Nodes of the quadrature: along ψ*, noise power, across ψ*, crosstalk, overlap of two values.
NODES = (17, 4, 4, 12, 8)
# Pairs for which the delta rule is computed; the others are interpolated.
DELTA_PLACES = 17
# Ages of the later pairs, in parts of the oldest; linear attention forgets nothing.
FADES, NOT_FADED = np.array([0.125, 0.375, 0.625, 0.875]), np.ones(1)


def cap(x: np.ndarray, dimension: float) -> np.ndarray:
    """Return P(coordinate of a uniform unit vector in ℝ^dimension > x)."""
    if dimension <= 1:
        # The sphere of ℝ¹ is ±1.
        return np.where(x < -1, 1.0, np.where(x < 1, 0.5, 0.0))
    inside = np.clip(x, -1.0, 1.0)
    half = 0.5 * special.betainc((dimension - 1) / 2, 0.5, 1 - inside**2)
    return np.where(inside >= 0, half, 1 - half)


@cache
def normal_nodes(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return Gauss–Hermite nodes and weights for E f(z), z ~ N(0, 1)."""
    nodes, weights = special.roots_hermitenorm(count)
    return nodes, weights / weights.sum()


def chi_square_nodes(freedom: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights of χ²/freedom, by z ↦ its quantile at Φ(z)."""
    nodes, weights = normal_nodes(count)
    return 2 * special.gammaincinv(freedom / 2, special.ndtr(nodes)) / freedom, weights


def coordinate_nodes(dimension: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights of a coordinate of a uniform unit vector in ℝ^dimension."""
    nodes, weights = normal_nodes(count)
    below = special.ndtr(nodes)
    squares = special.betaincinv(0.5, max(dimension - 1, 1e-9) / 2, np.abs(2 * below - 1))
    return np.sign(nodes) * np.sqrt(squares), weights


@cache
def dense_accuracy(
    pairs: int, keys: int, values: int, *, all_keys: int, all_values: int, rule: str, extra: float
) -> float:
    """Return P(right) with dense codes; `extra` writes disturb after the pairs."""
    w = welch_floor(all_keys, keys)
    if rule == LINEAR_RULE:
        stored = pairs + extra
        return dense_answer(1.0, (stored - 1) * w, stored, keys, values, w, all_values)
    # A write makes its own key exact, so only later pairs disturb it. A few pairs, and the others
    # by interpolation.
    some = np.unique(np.linspace(1, pairs, min(pairs, DELTA_PLACES)).round())
    left = delta_moments(some, round(pairs + extra), keys)
    right = [
        dense_answer(
            *(signal, noise, later + 1, keys, values, w, all_values, wobble),
            # The crosstalk of a later pair fades like the signal, by the writes after it.
            (1 - 1 / keys) ** (later * FADES),
        )
        for later, signal, wobble, noise in zip(pairs + extra - some, *left, strict=True)
    ]
    return float(np.interp(np.arange(1, pairs + 1), some, right).mean())


def delta_moments(
    places: np.ndarray, writes: int, keys: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, for pairs at `places` after all writes, the mean and variance of what is left of the
    signal, and the power of the noise.

    A write S ← S(I − k kᵀ) + v kᵀ of a random key turns Sq into Sq − (Sk)c + v c, c = k·q. At its
    own write Sq = ψ*. Per later write, with t writes before it:
        p = E|Sq|²   p ← p (1 − 2/dk) + (E|Sk|² + 1)/dk, E|Sk|² = |S|²/dk = 1 − (1 − 1/dk)^t
        a = Sq·ψ*    E a ← E a (1 − 1/dk), since a = qᵀx with x ← (I − k kᵀ)x, x = q at first
        E a²         E a² ← E a² (1 − 2/dk + 2/(dk(dk+2))) + E|x|²/(dk(dk+2)), E|x|² = E a
    """
    kept = 1 - 1 / keys
    power, square, mean = np.ones((3, len(places)))
    for step in range(1, writes):
        later = places <= step
        grown = power * (1 - 2 / keys) + (2 - kept**step) / keys
        fourth = 1 / (keys * (keys + 2))
        faded = square * (1 - 2 / keys + 2 * fourth) + mean * fourth
        power, square = np.where(later, grown, power), np.where(later, faded, square)
        mean = np.where(later, mean * kept, mean)
    return mean, square - mean**2, power - square


def dense_answer(
    signal: float,
    noise: float,
    stored: float,
    keys: int,
    values: int,
    w: float,
    candidates: int,
    wobble: float = 0.0,
    fades: np.ndarray = NOT_FADED,
) -> float:
    """Return P(right) for signal·ψ* plus noise of mean power `noise` over `stored` values.

    wobble  variance of the signal
    fades   factors of the crosstalk, each for an equal share of the values
    """
    if noise <= 1e-12:
        return 1.0
    ratio = noise / signal**2
    along, power, across, crosstalk, overlap = NODES
    freedom = max((stored - 1) * (keys + 2) / max(keys - 1, 1), 1.0)
    spread, spread_weight = chi_square_nodes(freedom, power)
    chi, chi_weight = chi_square_nodes(max(values - 1, 1), across)
    z, z_weight = normal_nodes(along)
    deviation = np.sqrt(ratio * spread / values)[None, :, None]
    par = 1 + np.sqrt(deviation**2 + wobble / signal**2) * z[:, None, None]
    perp = deviation * np.sqrt((values - 1) * chi)
    outside = 1 - cap(par / np.hypot(par, perp), values)
    c, c_weight = coordinate_nodes(keys, crosstalk)
    c, c_weight = np.outer(fades, c).ravel(), np.tile(c_weight, len(fades)) / len(fades)
    rho, rho_weight = coordinate_nodes(values, overlap)
    lean = np.sqrt((1 - rho) / np.maximum(1 + rho, 1e-12))
    # Crosstalk of a tight frame has mean square w, not 1/dk.
    gap = (par[..., None] - c * math.sqrt(w * keys) / signal) / perp[..., None]
    beaten = np.einsum(
        "...cr,c,r->...", cap(gap[..., None] * lean, values - 1), c_weight, rho_weight
    )
    right = outside ** max(candidates - stored, 0) * (1 - beaten) ** (stored - 1)
    return float(np.einsum("zpx,z,p,x->", right, z_weight, spread_weight, chi_weight))


def hash_accuracy(
    pairs: int, keys: int, *, all_keys: int, rule: str, asked: float = 0.0, extra: float = 0.0
) -> float:
    """Return P(right) with one-hot keys.

    asked  queries so far whose filler wrote to their own bucket, an expected number
    extra  writes of random keys so far, an expected number
    """
    if keys >= all_keys:
        # No two keys share a bucket; a random filler key is the asked one with probability 1/n.
        return (1 - 1 / all_keys) ** extra
    w = welch_floor(all_keys, keys)
    free = (1 - w) ** extra
    if rule == DELTA_RULE:
        # Pair i loses to a later pair of its bucket, and to an earlier one whose own query was
        # followed by a value.
        later = np.arange(pairs)[::-1]
        again = w * asked / max(pairs - 1, 1)
        return float(free * np.mean((1 - w) ** later * (1 - again) ** (pairs - 1 - later)))
    sizes = np.bincount(np.arange(all_keys) % keys)
    total = 0.0
    for size, count in zip(*np.unique(sizes, return_counts=True), strict=True):
        others = 1 - (size - 1) / (all_keys - 1 - np.arange(pairs - 1))
        total += count * size / all_keys * float(np.prod(np.maximum(others, 0)))
    return free * total


def answer_accuracy(
    codes: str,
    rule: str,
    pairs: int,
    keys: int,
    values: int,
    *,
    all_keys: int,
    all_values: int,
    asked: float = 0.0,
    extra: float = 0.0,
) -> float:
    """Return P(right) for one query, after the filler of earlier slots has written."""
    if codes == HASH_CODES:
        return hash_accuracy(pairs, keys, all_keys=all_keys, rule=rule, asked=asked, extra=extra)
    assert codes == DENSE_CODES
    sizes = {"all_keys": all_keys, "all_values": all_values}
    return dense_accuracy(pairs, keys, values, **sizes, rule=rule, extra=asked + extra)
