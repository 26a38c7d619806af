"""Up to which length a certificate keeps its promise."""

from collections.abc import Callable

import numpy as np

from underhood.analysis.decompilation.bounding.rounding import geometric_sum, safe_norm
from underhood.analysis.forms.quadratic import products, quadratic_form
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
    form = quadratic_form(attention)
    written = products(radius * directions / scale) @ form.reads.T

    def reach(time: int) -> float:
        states = written * geometric_sum(form.decay, time)
        outputs = np.einsum("bi,oij,bj->bo", states, form.kernels, states)
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
