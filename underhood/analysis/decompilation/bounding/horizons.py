"""Up to which length a certificate keeps its promise."""

from collections.abc import Callable

import numpy as np

from underhood.analysis.decompilation.bounding.rounding import geometric_sum, safe_norm
from underhood.layers import LinearAttention, MultiHead

# Longer promises are not looked for.
LONGEST_HORIZON = 1 << 20
# Directions of tokens that are tried for a large output of the attention.
REACH_TRIED = 256


def reach_of(attention: LinearAttention | MultiHead, radius: float) -> Callable[[int], float]:
    """Return, for a length, an output that the attention reaches on tokens of norm `radius`.

    It is a lower bound on the largest output: constant sequences are tried in many directions.
    """
    directions = np.random.default_rng(0).normal(size=(REACH_TRIED, attention.d_in))
    scale = np.linalg.norm(directions, axis=1, keepdims=True)
    xs = radius * directions / scale
    z = np.hstack([xs, np.ones((len(xs), 1))])
    heads = attention.heads if isinstance(attention, MultiHead) else (attention,)
    weights = [(head.augmented(), np.asarray(head.decays, float)) for head in heads]
    # One token's V z (K z · Q z), for the rows of all heads.
    rows = np.hstack(
        [(z @ V.T) * np.sum((z @ K.T) * (z @ Q.T), axis=1)[:, None] for (V, K, Q), _ in weights]
    )
    decay = np.concatenate([decays for _, decays in weights])
    W_O = attention.W_O if isinstance(attention, MultiHead) else None

    def reach(time: int) -> float:
        outputs = rows * geometric_sum(decay, time)
        outputs = outputs if W_O is None else outputs @ np.asarray(W_O, float).T
        return float(np.max(safe_norm(outputs, axis=1)))

    return reach


def longest(kept: Callable[[int], bool], start: int) -> int:
    """Return the largest length at which a promise is kept, to three digits; 0 if none is.

    A promise that is broken at one length counts as broken at all longer ones.
    """
    low, high = 0, max(start, 1)
    while high < LONGEST_HORIZON and kept(high):
        low, high = high, 2 * high
    if high >= LONGEST_HORIZON:
        high = LONGEST_HORIZON
        if kept(high):
            return high
    while high - low > max(1, low // 1000):
        middle = (low + high) // 2
        low, high = (middle, high) if kept(middle) else (low, middle)
    return low
