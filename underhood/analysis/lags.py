"""Lags 0 … time − 1 in blocks, so that a bound over a long sequence stays a short sum.

Lag 0 and the next SINGLE lags stand alone. Later blocks grow with the lag; a block stands for its
middle lag, and `spread` says how far λ^k strays from that inside it. If every λ is 0 or 1, all lags
from 1 on are alike and make one block.
"""

from dataclasses import dataclass

import numpy as np

SINGLE = 64
GROWTH = 1.02


@dataclass(frozen=True)
class Lags:
    """counts [blocks]; fading and spread [blocks, neurons]."""

    counts: np.ndarray
    fading: np.ndarray
    spread: np.ndarray


def lag_blocks(decay: np.ndarray, time: int) -> Lags:
    """The lags of a sequence of length `time`."""
    if time == 1:
        starts = [0]
    elif np.all((decay == 0) | (decay == 1)):
        starts = [0, 1]
    else:
        starts = list(range(min(time, SINGLE + 1)))
        while starts[-1] * GROWTH < time - 1 and starts[-1] + 1 < time:
            starts.append(max(starts[-1] + 1, int(starts[-1] * GROWTH)))
    ends = [*starts[1:], time]
    first, last = np.array(starts), np.array(ends) - 1
    middle = (first + last) // 2
    fading = decay ** middle[:, None]
    spread = np.maximum(decay ** first[:, None] - fading, fading - decay ** last[:, None])
    return Lags(np.array(ends) - first, fading, spread)
