"""Error bars: the delete-a-group jackknife over sequences.

Sequences are independent, the tokens of a sequence are not. So the sequences are dealt into at most
16 groups, and a number is computed again without each of them. With G such values θ_g,

    standard error² = (G − 1)/G · Σ_g (θ_g − mean)².

The fitted attention is held fixed: the error is that of judging it, on sequences it has not seen.
"""

from collections.abc import Callable

import numpy as np

MOST_GROUPS = 16


def group_count(sequences: int) -> int:
    """Return into how many groups the sequences are dealt, in turn."""
    return min(MOST_GROUPS, sequences)


def jackknife_error(values: np.ndarray) -> np.ndarray:
    """Return the standard error from the values without each group: [groups, …] → […]."""
    groups = len(values)
    spread = np.sum((values - values.mean(axis=0)) ** 2, axis=0)
    return np.asarray(np.sqrt((groups - 1) / groups * spread))


def clipped(values: np.ndarray, errors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cut shares to [0, 1], and errors to how far value ± error reaches inside."""
    inside, low, high = (
        np.clip(array, 0, 1) for array in (values, values - errors, values + errors)
    )
    return np.asarray(inside), np.asarray(np.maximum(high - inside, inside - low))


def with_error(
    statistic: Callable[[np.ndarray], np.ndarray], sums: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return a statistic of column sums, and its standard error.

    statistic  maps the sums [columns] to numbers
    sums       what each sequence adds to them: [sequences, columns]
    """
    groups = group_count(len(sums))
    total = sums.sum(axis=0)
    parts = np.stack([sums[group::groups].sum(axis=0) for group in range(groups)])
    values = np.stack([statistic(total - part) for part in parts])
    return statistic(total), jackknife_error(values)
