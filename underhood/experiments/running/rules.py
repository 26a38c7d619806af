"""Rules that judge a number against the paper's claim. A rule is written before the run.

A number is a claim of the paper's text unless it is wrapped in `ours`. What is only `shown` is not
judged. Every rule ends in `judged`. Most rules judge a median over seeds. With fewer than ENOUGH
seeds nothing is judged.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from underhood.results.files import OURS, SHOWN, Cell, Number
from underhood.results.verdicts import BETTER, DIFFERS, NOT_JUDGED, REPRODUCED

# Seeds that a verdict needs.
ENOUGH = 4
# Whether a rule holds; or the verdict, where a rule knows more than two.
Holds = bool | np.bool_ | str


def judged(
    name: str, value: Cell, rule: str, holds: Holds, *, paper: Cell, seeds: int, least: int = ENOUGH
) -> Number:
    """Return a number with its verdict; with fewer than `least` seeds nothing is judged."""
    verdict = holds if isinstance(holds, str) else REPRODUCED if holds else DIFFERS
    return Number(name, value, paper, rule, verdict if seeds >= least else NOT_JUDGED, seeds)


def ours(number: Number) -> Number:
    """Mark a number as ours: it is judged, but decides no claim of the paper."""
    return replace(number, whose=OURS)


def shown(name: str, value: Cell, *, seeds: int, paper: Cell = None) -> Number:
    """Return a number of ours that is shown and not judged."""
    return Number(name, value, paper, SHOWN, NOT_JUDGED, seeds, OURS)


def at_most(name: str, value: float, limit: float, *, what: str, paper: Cell, seeds: int) -> Number:
    """Judge one value: reproduced up to a limit."""
    rule, holds = f"{what} ≤ {limit:g}", value <= limit
    return judged(name, value, rule, holds, paper=paper, seeds=seeds, least=1)


def near(
    name: str, value: float, target: float, margin: float, *, what: str, paper: Cell, seeds: int
) -> Number:
    """Judge one value: reproduced within a margin of the target."""
    rule, holds = f"{what} = {target:g} ± {margin:g}", abs(value - target) <= margin
    return judged(name, value, rule, holds, paper=paper, seeds=seeds, least=1)


def judge_median(
    name: str, values: Sequence[float], rule: str, holds: Holds, *, paper: Cell
) -> Number:
    """Return the median over seeds with its verdict."""
    return judged(name, float(np.median(values)), rule, holds, paper=paper, seeds=len(values))


def no_more_than(
    name: str,
    values: Sequence[float],
    paper: float,
    *,
    what: str,
    factor: float = 1.0,
    highest: str = BETTER,
) -> Number:
    """Judge a median: better up to a tenth of the paper's number, reproduced up to three times.

    factor   how much larger the upper limit is, for students with far fewer updates
    highest  REPRODUCED, where a lower number is not a better one
    """
    limit = 3 * factor * paper
    median, rule = np.median(values), f"{what} ≤ {limit:.3g}"
    if highest == BETTER:
        rule += f"; better ≤ {paper / 10:.3g}"
    holds = BETTER if highest == BETTER and median <= paper / 10 else median <= limit
    return judge_median(name, values, rule, holds, paper=paper)


def equal(name: str, values: Sequence[float], paper: float) -> Number:
    """Judge a median: reproduced if it is the paper's count."""
    holds = np.median(values) == paper
    return judge_median(name, values, f"median = {paper:g}", holds, paper=paper)


def median_at_most(name: str, values: Sequence[float], limit: float, *, paper: Cell) -> Number:
    """Judge a median: reproduced up to a limit."""
    holds = np.median(values) <= limit
    return judge_median(name, values, f"median ≤ {limit:g}", holds, paper=paper)


def median_at_least(name: str, values: Sequence[float], limit: float, *, paper: Cell) -> Number:
    """Judge a median: reproduced from a limit on."""
    holds = np.median(values) >= limit
    return judge_median(name, values, f"median ≥ {limit:g}", holds, paper=paper)


def median_near(
    name: str, values: Sequence[float], target: float, share: float, *, paper: Cell
) -> Number:
    """Judge a median: reproduced within a share of the target."""
    rule = f"median = {target:.4g} within {share:.0%}"
    holds = abs(np.median(values) - target) <= share * abs(target)
    return judge_median(name, values, rule, holds, paper=paper)


def below(name: str, values: Sequence[float], line: float, *, paper: Cell) -> Number:
    """Judge a median: reproduced if three quarters of the seeds lie below a line."""
    holds = np.quantile(values, 0.75) < line
    return judge_median(name, values, f"upper quartile < {line:.4g}", holds, paper=paper)


def ordered(
    name: str, lower: Sequence[float], upper: Sequence[float], *, paper: Cell, least: float = 1.0
) -> Number:
    """Judge how many times higher the median of `upper` is, beyond the spread of the seeds.

    Reproduced: the quartiles of the two do not overlap and the ratio is more than `least`. Differs:
    they do not overlap the other way round, or the ratio is too small. Not judged: they overlap.
    """
    ratio = float(np.median(upper) / np.median(lower))
    holds: Holds = ratio > least
    if not apart(lower, upper):
        holds = DIFFERS if apart(upper, lower) else NOT_JUDGED
    rule = f"ratio of medians > {least:g}, quartiles apart"
    return judged(name, ratio, rule, holds, paper=paper, seeds=min(len(lower), len(upper)))


def similar(
    name: str, first: Sequence[float], second: Sequence[float], factor: float, *, paper: Cell
) -> Number:
    """Judge a ratio of medians: reproduced within a factor, or if the quartiles overlap."""
    ratio = float(np.median(second) / max(float(np.median(first)), 1e-300))
    rule = f"ratio of medians within a factor {factor:g}, or quartiles overlap"
    overlap = not apart(first, second) and not apart(second, first)
    holds = 1 / factor <= ratio <= factor or overlap
    return judged(name, ratio, rule, holds, paper=paper, seeds=min(len(first), len(second)))


def apart(lower: Sequence[float], upper: Sequence[float]) -> bool:
    """Tell whether the upper quartile of `lower` lies below the lower quartile of `upper`."""
    return bool(np.quantile(lower, 0.75) < np.quantile(upper, 0.25))
