"""Results on disk: DIR/NAME/result.json, written whole or not at all, with its provenance."""

import dataclasses
import json
import platform
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import equinox
import jax
import numpy as np

import underhood
from underhood.experiments.verdicts import NOT_JUDGED, Number, overall
from underhood.layers.files import write_atomically


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


def judge(experiment: str, scale: str, outcome: Outcome, seconds: float) -> Result:
    """The result; at smoke scale nothing is judged."""
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
        provenance(outcome, seconds),
    )


def provenance(outcome: Outcome, seconds: float) -> dict[str, Any]:
    """Where the numbers come from."""
    device = jax.devices()[0]
    return {
        "commit": commit(),
        "versions": {
            "underhood": underhood.__version__,
            "python": platform.python_version(),
            "jax": jax.__version__,
            "equinox": equinox.__version__,
            "numpy": np.__version__,
        },
        "device": f"{device.platform} ({device.device_kind})",
        "seeds": list(outcome.seeds),
        "steps": outcome.steps,
        "seconds": round(seconds, 2),
    }


def commit() -> str | None:
    """The commit of the source tree, with a + if it has been changed since; None outside git."""
    folder = Path(underhood.__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=folder, capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def write(result: Result, folder: Path) -> Path:
    """folder/NAME/result.json."""
    path = folder / result.experiment / "result.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(dataclasses.asdict(result), indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically(path, text.encode() + b"\n")
    return path
