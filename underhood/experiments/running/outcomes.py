"""What an experiment returns, and how it becomes a judged result."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from underhood.common.files import Json
from underhood.common.provenance import provenance
from underhood.results.files import PAPERS, SHOWN, Number, Result
from underhood.results.verdicts import NOT_JUDGED, overall
from underhood.training import Run


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an experiment found.

    numbers  judged, each by its rule
    rows     of a table for people
    notes    sentences for people
    seeds    that were run
    steps    updates of each student
    arrays   what figures are drawn from
    runs     the training behind it
    earlier  provenance of training that finished results report and no run here holds
    """

    numbers: Sequence[Number] = ()
    rows: Sequence[Json] = ()
    notes: Sequence[str] = ()
    seeds: Sequence[int] = ()
    steps: int = 0
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    runs: Sequence[Run] = ()
    earlier: Sequence[Json] = ()


def judge_outcome(
    experiment: str, scale: str, outcome: Outcome, seconds: float, *, asked: int | None = None
) -> Result:
    """Return the result with its verdict and provenance; at smoke scale nothing is judged.

    seconds  how long the experiment took
    asked    the number of seeds on the command line; None: the experiment's default
    """
    numbers = outcome.numbers
    if scale == "smoke":
        numbers = [replace(number, verdict=NOT_JUDGED) for number in numbers]
    parts = ("commit", "source", "versions", "device", "seconds")
    training: list[Json] = [
        {**{name: run.provenance.get(name) for name in parts}, "students": len(run.rows)}
        for run in outcome.runs
    ]
    origin = {
        **provenance(),
        "seeds": list(outcome.seeds),
        "asked": asked,
        "steps": outcome.steps,
        "seconds": round(seconds, 2),
        "training": [*training, *outcome.earlier],
    }
    # Only an experiment of our own has no number of the paper's.
    decisive = [number for number in numbers if number.whose == PAPERS]
    decisive = decisive or [number for number in numbers if number.rule != SHOWN]
    verdict = overall(number.verdict for number in decisive)
    texts = outcome.rows, outcome.notes
    return Result(experiment, scale, verdict, numbers, *texts, origin, outcome.arrays)
