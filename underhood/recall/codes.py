"""Codes for keys and values, their crosstalk, and the decoder (docs/recall.md).

    dense  keys: a tight frame of unit vectors in dk numbers; values: random unit vectors in dv
    hash   keys: one-hot codes of dk buckets; values: points of a circle (dv = 2) or a line (dv = 1)

Welch floor: whatever the codes of n keys are, the mean square crosstalk of linear attention is at
least w = (n − dk)/(dk (n − 1)). Tight frames of unit vectors attain it, and so does a balanced hash
when dk divides n.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

DENSE_CODES, HASH_CODES = "dense", "hash"
CODES = (DENSE_CODES, HASH_CODES)
# The bias of a token that is never the answer.
NEVER = -1e6


@dataclass(frozen=True)
class Codes:
    """Codes of all keys and values; row i belongs to key or value i."""

    keys: Float[np.ndarray, "all_keys dk"]
    values: Float[np.ndarray, "all_values dv"]
    # Scores of the values: W y + b.
    W: Float[np.ndarray, "all_values dv"]
    b: Float[np.ndarray, " all_values"]


def make_codes(
    kind: str, *, all_keys: int, all_values: int, keys: int, values: int, rng: np.random.Generator
) -> Codes:
    """Return codes of `keys` and `values` numbers for all keys and all values."""
    if kind == HASH_CODES:
        key_codes = np.eye(keys)[hash_buckets(all_keys, keys, rng)]
        value_codes = line_codes(all_values) if values == 1 else circle_codes(all_values, values)
    else:
        key_codes = tight_frame(all_keys, keys, rng)
        drawn = rng.normal(size=(all_values, values))
        value_codes = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    # The nearest code has the largest ψ·y − |ψ|²/2.
    return Codes(key_codes, value_codes, value_codes, -0.5 * np.sum(value_codes**2, axis=1))


def welch_floor(count: int, dimension: int) -> float:
    """Return the least mean square crosstalk of `count` keys in `dimension` numbers."""
    if dimension >= count:
        return 0.0
    return (count - dimension) / (dimension * (count - 1))


def mean_square_crosstalk(keys: np.ndarray, queries: np.ndarray | None = None) -> float:
    """Return the mean of (q_a·k_b)² over a ≠ b, with q_a·k_a scaled to 1."""
    queries = keys if queries is None else queries
    G = queries @ keys.T
    G = G / np.diag(G)[:, None]
    return float((np.sum(G**2) - len(G)) / (len(G) * (len(G) - 1)))


def tight_frame(count: int, dimension: int, rng: np.random.Generator) -> np.ndarray:
    """Return `count` unit vectors in `dimension` numbers whose columns are orthogonal.

    Columns are cosines and sines of distinct random frequencies. Each pair of columns adds the
    same to every row's norm, so all rows are unit vectors. Columns of the discrete Fourier
    transform are orthogonal. An odd dimension takes the constant column, and the alternating one
    of an even count serves where the frequencies are used up.
    """
    assert dimension <= count
    frequencies = (count - 1) // 2
    pairs = min(dimension // 2, frequencies)
    columns = []
    chosen = rng.permutation(frequencies)[:pairs] + 1
    angles = 2 * np.pi * np.outer(np.arange(count), chosen) / count
    columns += [np.sqrt(2) * np.cos(angles), np.sqrt(2) * np.sin(angles)]
    left = dimension - 2 * pairs
    columns += [np.ones((count, 1)), (-1.0) ** np.arange(count)[:, None]][:left]
    frame = np.concatenate(columns, axis=1) / np.sqrt(dimension)
    return frame


def hash_buckets(count: int, buckets: int, rng: np.random.Generator) -> np.ndarray:
    """Return the bucket of every key; sizes differ by at most 1."""
    return rng.permutation(count) % buckets


def circle_codes(count: int, dimension: int) -> np.ndarray:
    """Return points of the unit circle, in the first two of `dimension` numbers."""
    angles = 2 * np.pi * np.arange(count) / count
    points = np.zeros((count, dimension))
    points[:, 0], points[:, 1] = np.cos(angles), np.sin(angles)
    return points


def line_codes(count: int) -> np.ndarray:
    """Return the numbers 1, …, count, divided by count."""
    return np.arange(1, count + 1)[:, None] / count
