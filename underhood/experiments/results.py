"""Results on disk: DIR/NAME/result.json, written whole or not at all, with its provenance."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from underhood.experiments.verdicts import NOT_JUDGED, Number, overall
from underhood.layers.files import write_atomically
from underhood.training.provenance import provenance


@dataclass(frozen=True)
class Outcome:
    """What an experiment found: judged numbers, and rows of a table for people."""

    numbers: tuple[Number, ...]
    rows: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    steps: int = 0


@dataclass(frozen=True)
class Result:
    """An outcome with its name, scale and provenance."""

    experiment: str
    scale: str
    verdict: str
    numbers: tuple[Number, ...]
    rows: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]
    provenance: dict[str, Any] = field(default_factory=dict)


def judge(
    experiment: str, scale: str, outcome: Outcome, seconds: float, *, asked: int | None = None
) -> Result:
    """The result; at smoke scale nothing is judged. asked: the number of seeds on the command."""
    numbers = outcome.numbers
    if scale == "smoke":
        numbers = tuple(dataclasses.replace(one, verdict=NOT_JUDGED) for one in numbers)
    verdict = overall(one.verdict for one in numbers)
    return Result(
        experiment,
        scale,
        verdict,
        numbers,
        outcome.rows,
        outcome.notes,
        {
            **provenance(),
            "seeds": list(outcome.seeds),
            "asked": asked,
            "steps": outcome.steps,
            "seconds": round(seconds, 2),
        },
    )


def write(result: Result, folder: Path) -> Path:
    """folder/NAME/result.json."""
    path = folder / result.experiment / "result.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(dataclasses.asdict(result), indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically(path, text.encode() + b"\n")
    return path
