"""Lags 0 … time − 1 through a few nodes, so that a bound over a long sequence stays a short sum.

The first lags are nodes themselves; later nodes are spaced like a geometric series. Between two
nodes λ^k is replaced by its chord, with the hat functions u_j(k) ≥ 0, Σ_j u_j(k) = 1:

    λ^k = Σ_j u_j(k) λ^{node_j} − (a remainder ≥ 0, because λ^k is convex in k).

weights    [nodes]           Σ_k u_j(k)
squares    [nodes]           Σ_k u_j(k)²
shared     [nodes − 1]       Σ_k u_j(k) u_{j+1}(k)
fading     [nodes, neurons]  λ^{node_j}
remainder  [neurons]         how far the chords lie above λ^k, summed over k

The nodes do not depend on `time`, so all of these grow with it. If every λ is 0 or 1, all lags from
1 on are alike and share one node.
"""

from dataclasses import dataclass

import numpy as np

from underhood.analysis.decompilation.bounding.rounding import geometric_sum

# Lags up to the first number are nodes; later nodes grow by the second number, a factor. Sums over
# lags take the fine spacing, sums over pairs of lags the coarse one.
FINE, COARSE = (1000, 1.01), (64, 1.15)


@dataclass(frozen=True)
class Lags:
    """The lags of a sequence, in the letters of the head of this file."""

    weights: np.ndarray
    squares: np.ndarray
    shared: np.ndarray
    fading: np.ndarray
    remainder: np.ndarray

    @property
    def different(self) -> np.ndarray:
        """Return Σ_{k≠k'} u_j(k) u_j'(k') [nodes, nodes], over pairs of different lags."""
        same = np.diag(self.squares) + np.diag(self.shared, 1) + np.diag(self.shared, -1)
        return np.maximum(np.outer(self.weights, self.weights) - same, 0.0)


def lag_nodes(decay: np.ndarray, time: int, spacing: tuple[int, float]) -> Lags:
    """Return the lags of a sequence of length `time`."""
    if np.all((decay == 0) | (decay == 1)):
        nodes = np.arange(min(time, 2))
        weights = np.array([1.0, time - 1.0])[: len(nodes)]
        nothing = np.zeros(len(nodes) - 1), decay ** nodes[:, None], np.zeros(len(decay))
        return Lags(weights, weights, *nothing)
    single, growth = spacing
    places = list(range(min(time, single + 1)))
    while places[-1] < time - 1:
        places.append(int(places[-1] * growth))
    nodes = np.array(places, float)
    # Between two nodes lie `many` lags; lag m of them has the shares 1 − m/gap and m/gap.
    gaps = np.diff(nodes)
    many = np.minimum(nodes[1:], time - 1) - nodes[:-1]
    first = many * (many + 1) / 2 / gaps
    second = many * (many + 1) * (2 * many + 1) / 6 / gaps**2
    weights = np.append(1.0, first) + np.append(many - first, 0.0)
    squares = np.append(1.0, second) + np.append(many - 2 * first + second, 0.0)
    fading = decay ** nodes[:, None]
    remainder = np.zeros(len(decay))
    if time > single + 1:
        # The second term is for rounding in the first.
        chords = weights @ fading
        remainder = np.maximum(chords - geometric_sum(decay, time), 0.0) + 1e-13 * chords
        remainder[(decay == 0) | (decay == 1)] = 0.0
    return Lags(weights, squares, first - second, fading, remainder)
