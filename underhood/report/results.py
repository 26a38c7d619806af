"""Result files as they lie on disk; anything missing or unreadable is said, never raised."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NEEDED = ("experiment", "scale", "verdict", "numbers", "provenance")


@dataclass(frozen=True)
class Found:
    """The results below a folder, and what could not be read of it."""

    results: tuple[dict[str, Any], ...]
    problems: tuple[str, ...]


def find(folder: Path) -> Found:
    """Every NAME/result.json below a folder."""
    results, problems = [], []
    for path in sorted(folder.glob("*/result.json")):
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
            missing = [name for name in NEEDED if name not in result]
        except (OSError, ValueError, TypeError) as error:
            problems.append(f"{path}: {type(error).__name__}, not a result file")
            continue
        if missing:
            problems.append(f"{path}: lacks {', '.join(missing)}")
        else:
            results.append(result)
    return Found(tuple(results), tuple(problems))
