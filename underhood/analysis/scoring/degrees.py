"""The degrees of a layer's output in its input: y(r·x) as a polynomial in the scale r.

The polynomial has degree 5. It is fitted at Chebyshev points of [−1, 1] and judged between them.
"""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from underhood.analysis.scoring.jackknife import with_error
from underhood.analysis.scoring.layer_arrays import AnyLayer, read_layer
from underhood.analysis.scoring.states import scaled

HIGHEST_DEGREE = 5
# The degree spectrum reads this many sequences.
SCALED = 64
RADII = np.cos(np.pi * np.arange(12) / 11)
BETWEEN = np.cos(np.pi * (np.arange(11) + 0.5) / 11)
# Uncorrelated parts have squares that add up; many times more means that they are an artefact.
CANCELLING = 3.0


@dataclass(frozen=True)
class DegreeSpectrum:
    """Shares |y_k|²/Σ_j|y_j|² of the degrees 0…5, what they miss, and the errors of both."""

    shares: tuple[float, ...]
    missed: float
    share_errors: tuple[float, ...]
    missed_error: float
    cancel: bool


def degree_spectrum(layer: AnyLayer, xs: np.ndarray, counted: slice) -> DegreeSpectrum:
    """Return the shares of all degrees, and whether parts of different degree cancel.

    counted  the times at which outputs count
    """
    xs, radii, fitted = xs[:SCALED], np.concatenate([RADII, BETWEEN]), len(RADII)
    inputs = (radii[:, None, None, None] * xs).reshape(-1, *xs.shape[1:])
    ys = read_layer(layer, jnp.asarray(inputs))[:, counted]
    ys = scaled(ys).reshape(len(radii), len(xs), -1)
    powers = np.vander(radii, HIGHEST_DEGREE + 1, increasing=True)
    solve = np.linalg.pinv(powers[:fitted])
    parts = np.tensordot(solve, ys[:fitted], axes=1)
    missed = np.sum((ys[fitted:] - np.tensordot(powers[fitted:], parts, axes=1)) ** 2, axis=(0, 2))
    squares = np.sum(parts**2, axis=2)
    size = np.sum(ys[fitted:] ** 2, axis=(0, 2))
    values, errors = with_error(spectrum_shares, np.column_stack([squares.T, missed, size]))
    # RADII[0] is 1, where the parts add up to the output itself.
    cancel = bool(np.sum(squares) / (np.sum(ys[0] ** 2) or 1.0) > CANCELLING)
    shares, share_errors = (tuple(array[:-1].tolist()) for array in (values, errors))
    return DegreeSpectrum(shares, float(values[-1]), share_errors, float(errors[-1]), cancel)


def spectrum_shares(sums: np.ndarray) -> np.ndarray:
    """Return the share of each degree and of what all of them miss, from sums over sequences."""
    squares, (missed, size) = sums[:-2], sums[-2:]
    return np.append(squares / (np.sum(squares) or 1.0), missed / (size or 1.0))
