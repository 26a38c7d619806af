"""Verdicts: what a number says about a claim, by a rule written before the run.

better      the claim holds and ours improves on the paper's number
reproduced  the claim holds
differs     the claim did not hold for us
refuted     the claim is false, by proof or counter-example
not judged  the scale was too small to tell
not run     there is no number
"""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

BETTER, REPRODUCED, DIFFERS, REFUTED = "better", "reproduced", "differs", "refuted"
NOT_JUDGED, NOT_RUN = "not judged", "not run"

# A whole is called by the first of these that one of its parts bears.
BY_WEIGHT = (DIFFERS, REFUTED, NOT_RUN, NOT_JUDGED, REPRODUCED, BETTER)


@dataclass(frozen=True)
class Number:
    """One number of a result beside the paper's, with the rule that judges it."""

    name: str
    value: Any
    paper: Any
    rule: str
    verdict: str
    seeds: int


def overall(verdicts: Iterable[str]) -> str:
    """The verdict on a whole."""
    found = set(verdicts)
    return next((verdict for verdict in BY_WEIGHT if verdict in found), NOT_RUN)


def at_most(name: str, value: float, limit: float, *, what: str, paper: Any, seeds: int) -> Number:
    """Reproduced if the value does not exceed the limit."""
    verdict = REPRODUCED if value <= limit else DIFFERS
    return Number(name, value, paper, f"{what} ≤ {limit:g}", verdict, seeds)


def no_more_than(name: str, values: list[float], paper: float, *, what: str) -> Number:
    """Judged by the median: better at a tenth of the paper's number, reproduced up to three times.

    Fewer than four seeds are not judged.
    """
    median = float(statistics.median(values))
    rule = f"{what} ≤ {3 * paper:.3g}; better ≤ {paper / 10:.3g}"
    verdict = BETTER if median <= paper / 10 else REPRODUCED if median <= 3 * paper else DIFFERS
    verdict = verdict if len(values) >= 4 else NOT_JUDGED
    return Number(name, median, paper, rule, verdict, len(values))


def near(
    name: str, value: float, target: float, margin: float, *, what: str, paper: Any, seeds: int
) -> Number:
    """Reproduced if the value lies within a margin of the target."""
    verdict = REPRODUCED if abs(value - target) <= margin else DIFFERS
    return Number(name, value, paper, f"{what} = {target:g} ± {margin:g}", verdict, seeds)


def ordered(
    name: str, lower: list[float], upper: list[float], *, paper: str, least: float = 1.0
) -> Number:
    """How many times higher the median of `upper` is; holds only beyond the spread of the seeds.

    Reproduced if the quartiles of the two do not overlap and the ratio is more than `least`;
    differs if they do not overlap the other way round, or the ratio is too small; with
    overlapping quartiles, or fewer than four seeds, nothing is judged.
    """
    ratio = float(np.median(upper) / np.median(lower))
    rule = f"ratio of medians > {least:g}, quartiles apart"
    if min(len(lower), len(upper)) < 4:
        verdict = NOT_JUDGED
    elif apart(lower, upper):
        verdict = REPRODUCED if ratio > least else DIFFERS
    else:
        verdict = DIFFERS if apart(upper, lower) else NOT_JUDGED
    return Number(name, ratio, paper, rule, verdict, min(len(lower), len(upper)))


def alike(name: str, one: list[float], other: list[float], factor: float, *, paper: str) -> Number:
    """Reproduced if the medians lie within a factor of each other, or the quartiles overlap."""
    ratio = float(np.median(other) / max(float(np.median(one)), 1e-300))
    rule = f"ratio of medians within a factor {factor:g}, or quartiles overlap"
    close = 1 / factor <= ratio <= factor
    overlap = not apart(one, other) and not apart(other, one)
    verdict = REPRODUCED if close or overlap else DIFFERS
    seeds = min(len(one), len(other))
    return Number(name, ratio, paper, rule, verdict if seeds >= 4 else NOT_JUDGED, seeds)


def below(name: str, values: list[float], line: float, *, paper: str) -> Number:
    """Reproduced if three quarters of the seeds lie below a line."""
    median = float(np.median(values))
    rule = f"upper quartile < {line:.4g}"
    verdict = REPRODUCED if np.quantile(values, 0.75) < line else DIFFERS
    verdict = verdict if len(values) >= 4 else NOT_JUDGED
    return Number(name, median, paper, rule, verdict, len(values))


def apart(lower: list[float], upper: list[float]) -> bool:
    """Whether the upper quartile of one lies below the lower quartile of the other."""
    return bool(np.quantile(lower, 0.75) < np.quantile(upper, 0.25))


def equal(name: str, values: list[float], paper: float) -> Number:
    """Reproduced if the median over at least four seeds is the paper's count."""
    median = float(np.median(values))
    verdict = REPRODUCED if median == paper else DIFFERS
    verdict = verdict if len(values) >= 4 else NOT_JUDGED
    return Number(name, median, paper, f"median = {paper:g}", verdict, len(values))


def median_at_most(name: str, values: list[float], limit: float, *, paper: Any) -> Number:
    """Reproduced if the median over at least four seeds does not exceed the limit."""
    median = float(np.median(values))
    verdict = REPRODUCED if median <= limit else DIFFERS
    verdict = verdict if len(values) >= 4 else NOT_JUDGED
    return Number(name, median, paper, f"median ≤ {limit:g}", verdict, len(values))


def median_at_least(name: str, values: list[float], limit: float, *, paper: Any) -> Number:
    """Reproduced if the median over at least four seeds reaches the limit."""
    median = float(np.median(values))
    verdict = REPRODUCED if median >= limit else DIFFERS
    verdict = verdict if len(values) >= 4 else NOT_JUDGED
    return Number(name, median, paper, f"median ≥ {limit:g}", verdict, len(values))


def median_near(
    name: str, values: list[float], target: float, share: float, *, paper: Any
) -> Number:
    """Reproduced if the median over at least four seeds lies within a share of the target."""
    median = float(np.median(values))
    verdict = REPRODUCED if abs(median - target) <= share * abs(target) else DIFFERS
    verdict = verdict if len(values) >= 4 else NOT_JUDGED
    spread = float(np.std(values))
    rule = f"median = {target:.4g} within {share:.0%}; spread {spread:.1e}"
    return Number(name, median, paper, rule, verdict, len(values))
