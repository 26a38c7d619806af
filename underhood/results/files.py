"""Result files: DIR/NAME/result.json, and beside it arrays.safetensors for figures.

`write_result` writes both, each whole or not at all. `find` reads what lies in a folder: files come
from other machines, other versions and other people, so it keeps only what has the right type, and
reports an unreadable file instead of raising. `finished_result` is stricter: it returns a file of
ours that lacks nothing, its arrays included.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from underhood.common.errors import BadInput
from underhood.common.files import Json, write_atomically
from underhood.common.tensors import tensor_shapes
from underhood.results.verdicts import NOT_RUN

# The newest format of result.json; a later version of underhood may have a higher one.
FORMAT = 1
RESULT, ARRAYS = "result.json", "arrays.safetensors"
NEEDED = ("experiment", "scale", "verdict", "numbers", "provenance")

# A number or text of Python or NumPy, or nothing.
Cell = None | bool | int | float | str | np.generic


@dataclass(frozen=True)
class Number:
    """One number of a result beside the paper's, with the rule that judges it."""

    name: str
    value: Cell
    paper: Cell
    rule: str
    verdict: str
    seeds: int


@dataclass(frozen=True)
class Result:
    """What an experiment found: judged numbers, a table, notes, provenance and arrays."""

    experiment: str
    scale: str
    verdict: str
    numbers: Sequence[Number]
    rows: Sequence[Json]
    notes: Sequence[str]
    provenance: Json = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


def write_result(result: Result, folder: Path) -> Json:
    """Write folder/NAME/result.json and its arrays, the arrays first; return the JSON written."""
    path = folder / result.experiment / RESULT
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {name: np.asarray(array, order="C") for name, array in result.arrays.items()}
    if arrays:
        write_atomically(path.parent / ARRAYS, safetensors.numpy.save(arrays))
    numbers = [vars(number) for number in result.numbers]
    shapes = {name: array.shape for name, array in arrays.items()}
    contents = {"format": FORMAT, **vars(result), "numbers": numbers, "arrays": shapes}
    written: Json = plain_json(contents)
    text = json.dumps(written, indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically(path, text.encode() + b"\n")
    return written


def plain_json(value: Any) -> Any:  # Any: nested lists and dicts, of NumPy's numbers too
    """Return the same with JSON's types only; numbers that are not finite become None."""
    if isinstance(value, dict):
        return {str(name): plain_json(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple | range):
        return [plain_json(entry) for entry in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value


def check_replaceable(path: Path, smaller: Sequence[str]) -> None:
    """Refuse to replace a result of a newer format or of a larger scale.

    smaller  the scales up to the one that is asked for
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


def finished_result(path: Path) -> Json | None:
    """Read a result that lacks nothing, its arrays included; None if there is none."""
    try:
        result = read_result(path, (*NEEDED, "rows", "notes", "arrays"))
    except Unreadable:
        return None
    # Figures are drawn from the arrays; without them it is not finished.
    return result if tensor_shapes(path.parent / ARRAYS) == result["arrays"] else None


@dataclass(frozen=True)
class Entry:
    """A result and the folder that holds it."""

    folder: Path
    result: Json


@dataclass(frozen=True)
class Results:
    """The results in a folder, and why others cannot be read, by the name of their folder."""

    entries: tuple[Entry, ...]
    unreadable: dict[str, str]

    @property
    def results(self) -> tuple[Json, ...]:
        return tuple(entry.result for entry in self.entries)

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(f"{name}/{RESULT}: {reason}" for name, reason in self.unreadable.items())


def find(folder: Path) -> Results:
    """Read every NAME/result.json in a folder."""
    entries, unreadable = [], {}
    for path in sorted(folder.glob(f"*/{RESULT}")):
        try:
            entries.append(Entry(path.parent, read_result(path)))
        except Unreadable as problem:
            unreadable[path.parent.name] = str(problem)
    return Results(tuple(entries), unreadable)


class Unreadable(Exception):
    """Why a file is not a result."""


def read_result(path: Path, needed: Sequence[str] = NEEDED) -> Json:
    """Return a result with all its parts, each of the right type; raise Unreadable if it is none.

    needed  parts that must be there
    """
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Unreadable(f"it cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise Unreadable("it is damaged, or not a result file") from None
    if not isinstance(read, dict):
        raise Unreadable("not a result file")
    written = read.get("format", 0)
    if isinstance(written, int) and written > FORMAT:
        raise Unreadable(f"format {written}, and this version knows {FORMAT}: update underhood")
    if missing := [name for name in needed if name not in read]:
        raise Unreadable(f"lacks {', '.join(missing)}")

    def typed(name: str, kind: type) -> Any:
        return read[name] if isinstance(read.get(name), kind) else kind()

    def objects(name: str) -> list[Json]:
        return [entry for entry in typed(name, list) if isinstance(entry, dict)]

    return {
        **{name: str(read[name]) for name in ("experiment", "scale", "verdict")},
        "numbers": [parse_number(entry) for entry in objects("numbers")],
        "rows": [{name: scalar(value) for name, value in row.items()} for row in objects("rows")],
        "notes": [str(note) for note in typed("notes", list)],
        "provenance": typed("provenance", dict),
        "arrays": typed("arrays", dict),
    }


def parse_number(read: Json) -> Json:
    """Return a judged number; what it lacks is None or empty."""
    words = {name: str(read.get(name) or "") for name in ("name", "rule")}
    values = {name: scalar(read.get(name)) for name in ("value", "paper", "seeds")}
    return {**words, **values, "verdict": str(read.get("verdict") or NOT_RUN)}


def scalar(value: Any) -> Cell:  # Any: whatever a file holds
    """Return numbers, text and None as they are, and anything else as text."""
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
