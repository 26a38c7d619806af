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
