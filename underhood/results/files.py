"""Result files as they lie on disk; anything missing or unreadable is said, never raised.

Files come from other machines, other versions and other people, so nothing in them is believed
but what has the right kind: names are text, numbers lists of named things; the rest is left out.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The newest format that this version reads; `experiments/results.py` writes it.
FORMAT = 1
NEEDED = ("experiment", "scale", "verdict", "numbers", "provenance")


@dataclass(frozen=True)
class Entry:
    """A result and the folder that holds it."""

    folder: Path
    result: dict[str, Any]


@dataclass(frozen=True)
class Found:
    """The results below a folder, and what could not be read, by the name of its folder."""

    entries: tuple[Entry, ...]
    unreadable: dict[str, str]

    @property
    def results(self) -> tuple[dict[str, Any], ...]:
        return tuple(entry.result for entry in self.entries)

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(f"{name}/result.json: {reason}" for name, reason in self.unreadable.items())


def find(folder: Path) -> Found:
    """Every NAME/result.json below a folder."""
    entries: list[Entry] = []
    unreadable: dict[str, str] = {}
    for path in sorted(folder.glob("*/result.json")):
        try:
            entries.append(Entry(path.parent, checked(path.read_text(encoding="utf-8"))))
        except Unreadable as problem:
            unreadable[path.parent.name] = str(problem)
        except OSError as error:
            unreadable[path.parent.name] = f"it cannot be read ({error.strerror})"
        except (ValueError, RecursionError):
            unreadable[path.parent.name] = "it is damaged, or not a result file"
    return Found(tuple(entries), unreadable)


class Unreadable(Exception):
    """Why a file is not a result."""


def checked(text: str) -> dict[str, Any]:
    """A result with all its parts, each of the right kind."""
    read = json.loads(text)
    if not isinstance(read, dict):
        raise Unreadable("not a result file")
    written = read.get("format", 0)
    if isinstance(written, int) and written > FORMAT:
        raise Unreadable(f"format {written}, and this version knows {FORMAT}: update underhood")
    missing = [name for name in NEEDED if name not in read]
    if missing:
        raise Unreadable(f"lacks {', '.join(missing)}")
    numbers, rows, notes = (read.get(name) for name in ("numbers", "rows", "notes"))
    return {
        "experiment": str(read["experiment"]),
        "scale": str(read["scale"]),
        "verdict": str(read["verdict"]),
        "numbers": [number(one) for one in listed(numbers) if isinstance(one, dict)],
        "rows": [plain(row) for row in listed(rows) if isinstance(row, dict)],
        "notes": [str(note) for note in listed(notes)],
        "provenance": read["provenance"] if isinstance(read["provenance"], dict) else {},
        "arrays": read["arrays"] if isinstance(read.get("arrays"), dict) else {},
    }


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def number(read: dict[str, Any]) -> dict[str, Any]:
    """A judged number; what it lacks is nothing."""
    told = {name: scalar(read.get(name)) for name in ("value", "paper", "seeds")}
    words = {name: str(read.get(name) or "") for name in ("name", "rule")}
    return {**words, **told, "verdict": str(read.get("verdict") or "not run")}


def plain(row: dict[str, Any]) -> dict[str, Any]:
    return {str(name): scalar(value) for name, value in row.items()}


def scalar(value: Any) -> Any:
    """Numbers, text and nothing as they are; all else as text."""
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
