"""What a layer's state holds: key-values, queries, and how many dimensions it uses.

States are [sequences, time, numbers]. Linear maps are fitted on the first sample and judged on the
second one.
"""

from dataclasses import dataclass

import numpy as np

from underhood.analysis.scoring.jackknife import clipped, group_count, jackknife_error, with_error
from underhood.common.linear_algebra import decayed_sums, solve_least_squares
from underhood.layers import LinearAttention

# A state's singular values below this share of the largest do not count for its rank.
RANK_SHARE = 1e-6


@dataclass(frozen=True)
class StateMeasures:
    """The four numbers about the state, or their errors; None for a layer that shows no state."""

    kv: float | None = None
    q: float | None = None
    dimension: float | None = None
    rank: int | None = None


def measure_states(
    hs: tuple[np.ndarray, np.ndarray],
    xs: tuple[np.ndarray, np.ndarray],
    counted: slice,
    attention: LinearAttention,
) -> tuple[StateMeasures, StateMeasures]:
    """Return the numbers about the state, and their errors.

    hs, xs     states and tokens of the fitted and of the judged sequences
    counted    the times at which they count
    attention  whose key-values and queries are looked for
    """
    hs = (scaled(hs[0])[:, counted], scaled(hs[1], hs[0])[:, counted])
    known = zip(*(targets_of(attention, tokens, counted) for tokens in xs), strict=True)
    judged = []
    for fitted_target, judged_target in known:
        size = float(np.max(np.abs(fitted_target), initial=0.0)) or 1.0
        predicted = linear_map(hs, fitted_target / size)
        judged.append(r_squared(judged_target / size, predicted))
    (kv, kv_error), (q, q_error) = judged
    dimension, dimension_error = participation(np.concatenate(hs))
    ranks = [int(np.sum(singular_values(states) > RANK_SHARE)) for states in hs]
    numbers = StateMeasures(kv, q, dimension, max(ranks))
    return numbers, StateMeasures(kv_error, q_error, dimension_error, abs(ranks[0] - ranks[1]))


def targets_of(
    attention: LinearAttention, xs: np.ndarray, counted: slice
) -> tuple[np.ndarray, np.ndarray]:
    """Return the key-values W_V S_t W_Kᵀ and the queries W_Q x_t: [sequences, time, numbers]."""
    S = decayed_sums(float(attention.decays[0]), xs[:, :, :, None] * xs[:, :, None])[:, counted]
    key_values = np.asarray(attention.W_V @ S @ attention.W_K.T)
    queries = np.asarray(xs[:, counted] @ attention.W_Q.T)
    return key_values.reshape(*queries.shape[:2], -1), queries


def linear_map(hs: tuple[np.ndarray, np.ndarray], known: np.ndarray) -> np.ndarray:
    """Fit a linear map from the first states to what is known of them; apply it to the second."""
    fitted = np.concatenate(hs[0])
    mean, size = fitted.mean(axis=0), fitted.std(axis=0)
    # Numbers of very different sizes are equally good evidence; constant ones are none.
    scale = np.where(size > 1e-12 * np.abs(mean), 1 / np.maximum(size, 1e-300), 0.0)
    offset = known.mean(axis=(0, 1))
    right = np.concatenate(known) - offset
    linear = solve_least_squares((fitted - mean) * scale, right, cutoff=1e-13)
    return np.asarray(((hs[1] - mean) * scale) @ linear + offset)


def r_squared(targets: np.ndarray, predictions: np.ndarray) -> tuple[float, float]:
    """Return the share of the targets' variance that is predicted, and its error."""
    if is_constant(targets):
        return 0.0, 0.0
    missed = np.sum((targets - predictions) ** 2, axis=(1, 2))
    spread = np.sum((targets - targets.mean(axis=(0, 1))) ** 2, axis=(1, 2))
    sums = np.stack([missed, spread], axis=1)
    value, error = clipped(*with_error(share_explained, sums))
    return float(value), float(error)


def share_explained(sums: np.ndarray) -> np.ndarray:
    """Return R² from the sums of what is missed and of what there is; 0 if there is nothing."""
    missed, size = sums
    return np.asarray(1 - missed / size if size > 0 else 0.0)


def participation(hs: np.ndarray) -> tuple[float, float]:
    """Return (Σσ²)²/Σσ⁴ of the centred states, and its error; 0 for constant states."""
    if is_constant(hs):
        return 0.0, 0.0
    groups = group_count(len(hs))
    centred = scaled(hs - hs.mean(axis=(0, 1)))
    parts = [np.concatenate(centred[group::groups]) for group in range(groups)]
    counts, means = (np.array([f(part) for part in parts]) for f in (len, lambda p: p.sum(axis=0)))
    squares = np.stack([part.T @ part for part in parts])

    def ratio(kept: np.ndarray) -> float:
        mean = means[kept].sum(axis=0)
        C = squares[kept].sum(axis=0) - np.outer(mean, mean) / counts[kept].sum()
        return float(np.trace(C) ** 2 / max(np.sum(C**2), 1e-300))

    everything = np.arange(groups)
    values = np.array([ratio(everything[everything != group]) for group in everything])
    return ratio(everything), float(jackknife_error(values))


def singular_values(hs: np.ndarray) -> np.ndarray:
    """Return those of the centred states over the largest; none if the states are constant."""
    if is_constant(hs):
        return np.zeros(0)
    flat = np.concatenate(scaled(hs))
    R = np.linalg.qr(flat - flat.mean(axis=0), mode="r")
    sigma = np.linalg.svd(R, compute_uv=False)
    return np.asarray(sigma / sigma[0])


def is_constant(values: np.ndarray) -> bool:
    """Tell whether [batch, time, numbers] are the same everywhere up to rounding."""
    return bool(np.max(np.std(scaled(values), axis=(0, 1)), initial=0.0) <= 1e-12)


def scaled(values: np.ndarray, like: np.ndarray | None = None) -> np.ndarray:
    """Divide by the largest number, or by that of another array, so that no square overflows."""
    return values / (np.max(np.abs(values if like is None else like), initial=0.0) or 1.0)
