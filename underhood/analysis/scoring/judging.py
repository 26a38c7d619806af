"""The nearest attention of one sample of pairs, judged on another sample.

form   1 − Σ|Δy − Δŷ|²/Σ|Δy|²        of what the past decides, the share that is attention
whole  1 − Σ|y − ŷ|²/Σ|y − mean_t|²  of the output at fixed t, the share that it explains
"""

from dataclasses import dataclass

import numpy as np

from underhood.analysis.forms.attention_fit import attention_with
from underhood.analysis.scoring.fitting import decay_error, fit_memory
from underhood.analysis.scoring.jackknife import clipped, with_error
from underhood.analysis.scoring.pairs import Sample
from underhood.analysis.scoring.problem import Problem, apply
from underhood.analysis.scoring.states import share_explained
from underhood.constructions.sources.reference import reference
from underhood.layers import LinearAttention

# Singular values of M below this part of the largest are what rounding left of a zero.
NO_KEY = 1e-10


@dataclass(frozen=True)
class Judged:
    """A fitted attention: its score, form, whole and memory in this order, and their errors."""

    attention: LinearAttention
    values: tuple[float, ...]
    errors: tuple[float, ...]
    # Of the attention without biases only.
    decay_error: float


def judge_nearest(
    fitted: Sample, judged: Sample, size: float, *, biases: bool, nothing: bool
) -> Judged:
    """Fit attention to one sample and judge it on another; zero attention if nothing is to fit.

    size  what the outputs of both samples were divided by
    """
    d_in, d_out = judged.xs.shape[2], judged.ys.shape[2]
    pairs, judged_pairs = fitted.pairs, judged.pairs
    if biases:
        pairs, judged_pairs = pairs.with_constant(), judged_pairs.with_constant()
    p = pairs.pasts.shape[2]
    W_V, M, decay, error = np.zeros((d_out, p)), np.zeros((p, p)), 1.0, 0.0
    if not nothing:
        problem = Problem(pairs, fitted.differences, fitted.outputs, 1.0)
        fit = fit_memory(problem)
        W_V, M, decay = fit.W_V, fit.M, fit.decay
        error = 0.0 if biases else decay_error(problem, fit)
    decays = np.full(d_out, decay)
    unit = attention_with(W_V, M, decays, d_in=d_in, biases=biases, noise=NO_KEY)
    ys = reference(unit, judged.xs)[judged_pairs.first, judged_pairs.place]
    V, K, Q = unit.augmented() if biases else (unit.W_V, unit.W_K, unit.W_Q)
    read = apply(judged_pairs.memories(decay).difference, judged_pairs.tokens @ (K.T @ Q).T)
    differences = read @ V.T
    columns = [
        np.sum(array**2, axis=1)
        for array in (judged.differences - differences, judged.differences, judged.outputs - ys)
    ]
    columns += [spread_at_fixed_time(judged, judged.outputs), spread_of_both(judged)]
    sums = judged.pairs.by_sequence(np.stack(columns, axis=1))
    values, errors = clipped(*with_error(no_form if nothing else form_and_whole, sums))
    attention = attention_with(size * W_V, M, decays, d_in=d_in, biases=biases, noise=NO_KEY)
    return Judged(attention, tuple(values.tolist()), tuple(errors.tolist()), error)


def form_and_whole(sums: np.ndarray) -> np.ndarray:
    """Return score, form, whole and memory.

    sums  of |Δy − Δŷ|², |Δy|², |y − ŷ|², |y − mean|², and the last one averaged over the pair
    """
    form, whole = share_explained(sums[:2]), share_explained(sums[2:4])
    return np.stack([np.minimum(form, whole), form, whole, no_form(sums)[3]])


def no_form(sums: np.ndarray) -> np.ndarray:
    """Return the same where there is nothing to fit: only memory is measured."""
    return np.array([0.0, 0.0, 0.0, 0.5 * sums[1] / (sums[4] or 1.0)])


def spread_at_fixed_time(sample: Sample, outputs: np.ndarray) -> np.ndarray:
    """Return |y − mean|² of each row; the mean is over the rows of the same time."""
    place = sample.pairs.place
    spread = np.zeros(len(outputs))
    for t in np.unique(place):
        rows = place == t
        # n − 1 of n: the mean itself was taken from these rows.
        unbiased = rows.sum() / max(rows.sum() - 1, 1)
        spread[rows] = unbiased * np.sum((outputs[rows] - outputs[rows].mean(axis=0)) ** 2, axis=1)
    return spread


def spread_of_both(sample: Sample) -> np.ndarray:
    """Return the same as the mean of both sequences of a pair.

    Large outputs of either then count above and below the line of `memory`, which steadies it.
    """
    both = (spread_at_fixed_time(sample, ys) for ys in (sample.outputs, sample.partner_ys))
    return np.mean(np.stack(list(both)), axis=0)


def memory_share(sample: Sample) -> float:
    """Return the share of the variance at fixed t that the past decides."""
    spread = float(np.sum(spread_of_both(sample)))
    return 0.5 * float(np.sum(sample.differences**2)) / (spread or 1.0)
