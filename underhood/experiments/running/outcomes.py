"""Results on disk: DIR/NAME/result.json, written whole or not at all, with its provenance."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from underhood.common.errors import BadInput
from underhood.common.files import write_atomically
from underhood.common.provenance import provenance
from underhood.experiments.running.rules import NOT_JUDGED, Number, overall
from underhood.training import Run

# Of result.json; a later version may count on.
FORMAT = 1
ARRAYS = "arrays.safetensors"


@dataclass(frozen=True)
class Outcome:
    """What an experiment found.

    numbers  judged, each by its rule
    rows     of a table for people
    arrays   what figures are drawn from
    runs     the training behind it
    earlier  training behind finished results that it was made from, as those tell it
    """

    numbers: tuple[Number, ...]
    rows: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    steps: int = 0
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    runs: tuple[Run, ...] = ()
    earlier: tuple[dict[str, Any], ...] = ()


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
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


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
            "training": [
                {
                    name: run.provenance.get(name)
                    for name in ("commit", "versions", "device", "seconds")
                }
                | {"students": len(run.rows)}
                for run in outcome.runs
            ]
            + list(outcome.earlier),
        },
        outcome.arrays,
    )


def write(result: Result, folder: Path) -> dict[str, Any]:
    """folder/NAME/result.json and the arrays beside it, which come first; what was written."""
    path = folder / result.experiment / "result.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {name: np.asarray(array, order="C") for name, array in result.arrays.items()}
    if arrays:
        write_atomically(path.parent / ARRAYS, safetensors.numpy.save(arrays))
    fields = {
        one.name: getattr(result, one.name)
        for one in dataclasses.fields(result)
        if one.name != "arrays"
    }
    told = {
        "format": FORMAT,
        **fields,
        "numbers": [dataclasses.asdict(number) for number in result.numbers],
        "arrays": {name: list(array.shape) for name, array in arrays.items()},
    }
    told = plain(told)
    text = json.dumps(told, indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically(path, text.encode() + b"\n")
    return told


def plain(value: Any) -> Any:
    """JSON's kinds only: NumPy's numbers become Python's, and what is not finite becomes None."""
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value


def check_replaceable(path: Path, smaller: Sequence[str]) -> None:
    """Refuse to replace a result of a later version, or by one of a smaller scale than its own.

    smaller: the scales up to the one that is asked for
    """
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        written, scale = held.get("format", 0), held.get("scale")
    except (OSError, ValueError, AttributeError):
        return
    if isinstance(written, int) and written > FORMAT:
        raise BadInput(
            f"{path} has format {written}, and this version knows {FORMAT}: update underhood, or "
            "choose another folder with --out."
        )
    if isinstance(scale, str) and scale not in smaller:
        raise BadInput(
            f"{path} is a result at {scale} scale, which one at {smaller[-1]} scale would replace: "
            "choose another folder with --out, or remove it."
        )


def whole_result(path: Path) -> dict[str, Any] | None:
    """A finished result of a version that we know; None where there is none."""
    keys = {"experiment", "scale", "verdict", "numbers", "rows", "notes", "arrays"}
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        whole = keys <= result.keys() and result.get("format", 0) <= FORMAT
        whole = whole and isinstance(result["provenance"], dict)
        # Figures are drawn from the arrays; without them it is not finished.
        whole = whole and shapes_in(path.parent / ARRAYS) == result["arrays"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return result if whole else None


def shapes_in(path: Path) -> dict[str, list[int]]:
    """Names and shapes of arrays in a file; none where it cannot be read."""
    try:
        with safetensors.safe_open(path, "np") as file:
            return {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, safetensors.SafetensorError):
        return {}
