"""Verdicts on a claim of the paper, and on each of its numbers by the rule stated beside it.

better      the claim holds and ours improves on the paper's number
reproduced  the claim holds
differs     the claim did not hold for us
refuted     the claim is false, by proof or counter-example
not judged  too few seeds or steps, or spreads that overlap
not run     there is no number
"""

from collections.abc import Iterable

BETTER, REPRODUCED, DIFFERS, REFUTED = "better", "reproduced", "differs", "refuted"
NOT_JUDGED, NOT_RUN = "not judged", "not run"

# An experiment's verdict is the first in this list that any of the paper's numbers in it has.
BY_WEIGHT = (DIFFERS, REFUTED, NOT_RUN, NOT_JUDGED, REPRODUCED, BETTER)
# The claim holds; and it does not.
HOLDS, FAILS = (BETTER, REPRODUCED), (DIFFERS, REFUTED)


def overall(verdicts: Iterable[str]) -> str:
    """Return the verdict of an experiment from those of the paper's numbers in it."""
    present = set(verdicts)
    return next((verdict for verdict in BY_WEIGHT if verdict in present), NOT_RUN)
