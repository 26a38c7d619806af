"""Attention, not attention, or undecided: what a residual and its rounding allow to say.

attention      the residual is within the tolerance, whatever rounding did
not attention  the residual is above it, and a proof excludes every attention (`exclusion.py`)
undecided      rounding could hide the answer, or no attention was found and none is excluded
"""

from dataclasses import dataclass

import numpy as np

from underhood.analysis.decompilation.exclusion import (
    missed_by_all,
    missed_by_heads,
    missed_by_tables,
)
from underhood.analysis.decompilation.fewest import MeasuredAttention
from underhood.analysis.decompilation.function import NetworkFunction
from underhood.analysis.decompilation.nearest import METRIC_INPUTS, Projected
from underhood.analysis.decompilation.on_task import TaskAnswer
from underhood.analysis.decompilation.projection import attention_features
from underhood.analysis.forms.quadratic import decay_groups
from underhood.tasks import Task

ATTENTION, NOT_ATTENTION, UNDECIDED = "attention", "not attention", "undecided"
# A projection onto tables of several decays has at most this many unknowns.
MOST_UNKNOWNS = 1500
# Decays that are tried for one head, with those of the network.
DECAYS_CHECKED = (1.0, 0.99, 0.97, 0.93, 0.85, 0.7, 0.5, 0.25)


@dataclass(frozen=True)
class Judgement:
    """A verdict with its reason, and the residual it rests on."""

    verdict: str
    reason: str
    residual: float


def judge(
    function: NetworkFunction,
    result: MeasuredAttention,
    projected: Projected | None,
    max_heads: int,
    tolerance: float,
    *,
    biases: bool = True,
) -> Judgement:
    """Return the verdict on a function, given the nearest attention.

    biases  whether the attention may have biases; if so, those are to be excluded too
    """
    residual = result.left / function.size if function.size else 0.0
    if function.is_zero:
        reason = "the network computes zero, and so does an attention of zeros"
        return Judgement(ATTENTION, reason, 0.0)
    if function.is_rounding:
        reason = (
            f"undecided: the network's terms cancel to {function.cancelled:.1g} of their size, "
            "and what is left may be rounding; remove neurons that cancel"
        )
        return Judgement(UNDECIDED, reason, residual)
    lowest = max(result.left - result.noise, 0.0) / (function.size + function.noise)
    highest = (result.left + result.noise) / (function.size - function.noise)
    if highest <= tolerance:
        return Judgement(
            ATTENTION, attention_reason(result, residual, tolerance, function), residual
        )
    if lowest <= tolerance:
        reason = (
            f"undecided: the residual lies between {lowest:.2g} and {highest:.2g}, and the "
            f"tolerance {tolerance:.2g} lies between them; remove neurons that cancel"
        )
        return Judgement(UNDECIDED, reason, residual)
    proof = exclusion(function, projected, biases, max_heads, tolerance)
    if proof is None:
        reason = (
            f"undecided: no attention with up to {heads_words(max_heads)} was found (the best "
            f"has residual {residual:.2g}), but none is excluded; raise max_heads or tolerance"
        )
        return Judgement(UNDECIDED, reason, residual)
    return Judgement(NOT_ATTENTION, proof, residual)


def judge_on_task(answer: TaskAnswer, task: Task, max_heads: int, tolerance: float) -> Judgement:
    """Return the verdict on a task's tokens; a number counts as certain two errors away."""
    residual, every, name = answer.residual, answer.any, type(task).__name__
    share = f"{residual.value:.2g} ± {residual.error:.1g}"
    if residual.value + 2 * residual.error <= tolerance:
        reason = (
            f"attention with {heads_words(answer.heads)} on the task's tokens: it explains all but "
            f"{share} of the outputs on {name} (tolerance {tolerance:.2g})"
        )
        return Judgement(ATTENTION, reason, residual.value)
    if every.value - 2 * every.error > tolerance:
        reason = (
            f"not attention on the task's tokens: the nearest attention has residual {share} on "
            f"{name}, and no number of heads leaves less than {every.value:.2g} ± {every.error:.1g}"
        )
        return Judgement(NOT_ATTENTION, reason, residual.value)
    reason = (
        f"undecided on the task's tokens: the nearest attention with up to "
        f"{heads_words(max_heads)} has residual {share} on {name}, and more heads could leave "
        f"{every.value:.2g}; raise max_heads or tolerance"
    )
    return Judgement(UNDECIDED, reason, residual.value)


def beyond_float64(function: NetworkFunction) -> Judgement:
    """Return the verdict on a function whose attention has weights outside of float64."""
    power = function.exponent + int(np.frexp(function.size)[1])
    reason = (
        f"undecided: the function has a size of about 2^{power}, which the weights of an attention "
        "in float64 cannot hold; rescale the weights"
    )
    return Judgement(UNDECIDED, reason, 1.0)


def not_runnable(judgement: Judgement, lost: str) -> Judgement:
    """Return the verdict on a network whose function is attention, but which cannot be run."""
    reason = (
        f"undecided: the weights compute attention, but run in float64 the network's numbers "
        f"{lost}; rescale the weights"
    )
    return Judgement(UNDECIDED, reason, judgement.residual)


def heads_words(count: int) -> str:
    return "1 head" if count == 1 else f"{count} heads"


def attention_reason(
    result: MeasuredAttention, residual: float, tolerance: float, function: NetworkFunction
) -> str:
    """Say how much is explained, by how many heads, and why not by fewer."""
    reason = (
        f"attention with {heads_words(result.heads)}: it explains all but {residual:.2g} of the "
        f"function at {function.time} tokens (tolerance {tolerance:.2g})"
    )
    if result.heads < 2:
        return reason
    if result.least >= result.heads:
        why = (
            f"fewer are impossible: a past token meets the current one through a matrix of rank "
            f"{result.least}, and each head adds one to its rank"
        )
    else:
        why = "no fewer were found"
    freedom = (
        "heads of low rank, unique in general"
        if result.unique
        else "heads of full rank can be mixed; these are orthogonal to each other"
    )
    return f"{reason}; {why}; {freedom}"


def exclusion(
    function: NetworkFunction,
    projected: Projected | None,
    biases: bool,
    max_heads: int,
    tolerance: float,
) -> str | None:
    """Return a proof that no attention is within the tolerance, as the end of a sentence.

    biases  whether the attention may have biases
    """
    given, time = function.given, function.time
    allowed = tolerance * (function.size + function.noise) + function.noise

    def share(part: float) -> str:
        return f"{part / function.size:.2g}"

    missed = missed_by_all(given, time)
    if missed > allowed:
        return (
            f"every attention, whatever its heads and decays, misses at least {share(missed)} "
            "of the function"
        )
    missed = float(np.append(missed_by_heads(given, time), np.zeros(max_heads))[max_heads])
    if missed > allowed:
        return (
            f"every attention with {heads_words(max_heads)} misses at least {share(missed)} of the "
            "function: a past token meets the current one through a matrix of higher rank, and "
            f"each head adds one to its rank (max_heads is {max_heads})"
        )
    if given.d_in > METRIC_INPUTS or projected is None:
        return None
    form = function.form
    features = attention_features(form.d_in, biases=biases)
    decays = possible_decays(function, projected)
    if len(decays) > max(MOST_UNKNOWNS // int(np.sum(features)), 1):
        return None
    if max_heads == 1:
        # A head has one decay for each output.
        decays = np.unique(np.append(decays, DECAYS_CHECKED))
        each = [missed_by_tables(form, np.array([decay]), features, time) for decay in decays]
        left = np.min(each, axis=0)
    else:
        left = missed_by_tables(form, decays, features, time)
    missed = float(np.sqrt(np.mean(left)))
    if missed > allowed:
        kind = "" if biases else " without biases"
        heads = "with one decay per output" if max_heads == 1 else "with any number of heads"
        return (
            f"every attention{kind} {heads} misses at least {share(missed)} of the function, "
            "whatever its weights"
        )
    return None


def possible_decays(function: NetworkFunction, projected: Projected) -> np.ndarray:
    """Return every decay that can help an attention to come near to a network.

    Over the lags k, what a network makes of one past token is a sum of λ_i^k and (λ_i λ_j)^k. Heads
    of these decays reach all of it that any heads reach. Heads of decay 0 hold what depends on the
    current token alone.
    """
    values = np.array(decay_groups(function.form.decay)[0])
    pairs = np.outer(values, values)[np.triu_indices(len(values))]
    return np.unique(np.concatenate([projected.decay, [0.0, 1.0], values, pairs]).round(12))
