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
from underhood.results.verdicts import FAILS, HOLDS, NOT_RUN

# The newest format of result.json; a later version of underhood may have a higher one.
FORMAT = 1
RESULT, ARRAYS = "result.json", "arrays.safetensors"
# Whose claim a number is.
PAPERS, OURS = "paper", "ours"
# The rule of a number that has no verdict.
SHOWN = "shown, not judged"
NEEDED = ("experiment", "scale", "verdict", "numbers", "provenance")

# A number or text of Python or NumPy, or nothing.
Cell = None | bool | int | float | str | np.generic


@dataclass(frozen=True)
class Number:
    """One number of a result beside the paper's, with the rule that judges it.

    whose  "paper" for a claim of its text, "ours" for what we add; only the first decides the
           verdict of an experiment
    """

    name: str
    value: Cell
    paper: Cell
    rule: str
    verdict: str
    seeds: int
    whose: str = PAPERS


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
    written = result_json(result)
    text = json.dumps(written, indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically(path, text.encode() + b"\n")
    return written


def result_json(result: Result) -> Json:
    """Return what result.json holds."""
    numbers = [vars(number) for number in result.numbers]
    shapes = {name: np.shape(array) for name, array in result.arrays.items()}
    contents = {"format": FORMAT, **vars(result), "numbers": numbers, "arrays": shapes}
    written: Json = plain_json(contents)
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
class Results:
    """The results by their folders, and why others cannot be read, by the name of their folder."""

    entries: dict[Path, Json]
    unreadable: dict[str, str]

    @property
    def results(self) -> list[Json]:
        return list(self.entries.values())


def find(folder: Path) -> Results:
    entries, unreadable = {}, {}
    for path in sorted(folder.glob(f"*/{RESULT}")):
        try:
            entries[path.parent] = read_result(path)
        except Unreadable as problem:
            unreadable[path.parent.name] = str(problem)
    return Results(entries, unreadable)


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
    return parse_result(read)


def parse_result(read: Json) -> Json:
    """Return the parts of a result, each of the right type."""

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
    """Return a judged number; what it lacks is None or empty.

    Files of earlier versions do not say whose a number is. It is the paper's then, because it
    decided the verdict.
    """
    words = {name: str(read.get(name) or "") for name in ("name", "rule")}
    values = {name: scalar(read.get(name)) for name in ("value", "paper", "seeds")}
    whose = OURS if read.get("whose") == OURS else PAPERS
    return {**words, **values, "verdict": str(read.get("verdict") or NOT_RUN), "whose": whose}


def select_numbers(result: Json, whose: str) -> list[Json]:
    """Return a result's numbers that are the paper's, or ours."""
    return [number for number in result["numbers"] if number.get("whose", PAPERS) == whose]


def verdict_words(number: Json) -> str:
    """Return the verdict on a number as people read it; empty if the number is only shown.

    A number of ours reproduces nothing of the paper: its rule holds or does not.
    """
    verdict = str(number.get("verdict", NOT_RUN))
    if number.get("rule") == SHOWN:
        return ""
    if number.get("whose", PAPERS) == PAPERS:
        return verdict
    return "holds" if verdict in HOLDS else "does not hold" if verdict in FAILS else verdict


def claim_words(result: Json) -> str:
    """Return the verdict on a claim as people read it.

    An experiment of our own has no number of the paper's, and its claim holds or does not.
    """
    papers = select_numbers(result, PAPERS) or not result["numbers"]
    return verdict_words({"verdict": result["verdict"], "whose": PAPERS if papers else OURS})


def scalar(value: Any) -> Cell:  # Any: whatever a file holds
    """Return numbers, text and None as they are, and anything else as text."""
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def number_text(value: Cell) -> str:
    """Return a number for people: short, in scientific form where that is shorter."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.2e}" if value and not 1e-3 <= abs(value) < 1e4 else f"{value:.4g}"
    return str(value)


def columns_of(rows: list[Json]) -> list[str]:
    """Return the union of the rows' columns, in order of appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))
