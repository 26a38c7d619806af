"""The settings of a run: everything that decides its result, as JSON; arrays by their checksums."""

import dataclasses
import hashlib
import json
from pathlib import Path
from types import CodeType

import jax
import numpy as np
from jaxtyping import PyTree

from underhood.common.errors import BadInput
from underhood.common.files import Json, as_json
from underhood.common.provenance import provenance
from underhood.layers.files import take_apart
from underhood.training.ensemble import Ensemble
from underhood.training.storage import folder as storage
from underhood.training.storage.checksums import sketch, sketches_agree, tree_checksum

# What another checksum means to people.
MEANINGS = {
    "task.numbers": "the task has another teacher",
    "students": "make_student gives another kind of student",
    "first_weights": "make_student gives other first weights (does it use its key alone?)",
}
CHECKSUMS = {"task.numbers", "first_weights"}
# Where a run began, and what depends on that.
NOT_COMPARED = ("grouping", "sketch", "version", "begun")
# What runs did before a setting existed.
BEFORE: Json = {"recipe.decay": "decoupled"}


class OtherSettings(BadInput):
    """A folder holds a run with other settings."""


def settings_of(ensemble: Ensemble) -> Json:
    """Return what decides a run, without its grouping."""
    tensors: dict[str, np.ndarray] = {}
    task = take_apart(ensemble.task, "task", tensors)
    numbers = [tensors, list(ensemble.teachers)]
    first = [(parts.weights, parts.fixed) for parts in ensemble.students]
    kinds = (take_apart(parts.joined(), "", {}) for parts in ensemble.students)
    settings = {
        "recipe": as_setting(ensemble.recipe),
        "task": {"what": task, "numbers": tree_checksum(numbers)},
        "members": [dataclasses.asdict(member) for member in ensemble.members],
        "key": np.asarray(jax.random.key_data(ensemble.key)).tolist(),
        "students": sorted({json.dumps(kind, default=as_setting) for kind in kinds}),
        "first_weights": tree_checksum(first),
        "sketch": {"task.numbers": sketch(numbers), "first_weights": sketch(first)},
    }
    if ensemble.shrunk is not None:
        settings = {"shrunk": ensemble.shrunk, **settings}
    return json.loads(json.dumps(settings, default=as_setting))


def settings_file(settings: Json, begun: Json) -> bytes:
    """Return settings.json of a run; `begun` is the provenance of its beginning."""
    return as_json({"version": storage.VERSION, "begun": begun, **settings})


def read_settings(folder: Path) -> Json:
    """Read the settings of a run, and under "begun" where it began."""
    advice = "choose another folder, or remove this one to start anew"
    return storage.read_run_json(folder / storage.SETTINGS, fields={"grouping"}, advice=advice)


def check_same_settings(folder: Path, settings: Json, *, rounded: bool = False) -> Json | None:
    """Return the settings of the run in a folder, None if it holds none; refuse other settings.

    On another device random numbers differ in their last digit, and with them the checksums of
    weights and teachers. There it is enough that their sketches agree.

    rounded  the sketches are enough on the same device too, for a run that is only read
    """
    if not (folder / storage.SETTINGS).exists():
        if storage.checkpoints(folder):
            raise BadInput(f"{folder} holds checkpoints but no settings; choose another folder.")
        return None
    stored = read_settings(folder)
    then, now = (
        flat({name: value for name, value in data.items() if name not in NOT_COMPARED})
        for data in (stored, settings)
    )
    then = BEFORE | then
    # In the order of `settings_of`: what was asked for comes before what follows from it.
    different = [name for name in {**now, **then} if then.get(name) != now.get(name)]
    elsewhere = (stored.get("begun") or {}).get("device") != provenance()["device"]
    same_but_rounding = (rounded or elsewhere) and sketches_agree(
        stored.get("sketch"), settings.get("sketch")
    )
    if different and not (set(different) <= CHECKSUMS and same_but_rounding):
        first, more = different[0], len(different) - 1
        before, after = (str(flattened.get(first))[:60] for flattened in (then, now))
        change = MEANINGS.get(first) or f"{first} was {before} and is now {after}"
        change += f" (and {more} more)" if more else ""
        advice = "Use the old settings to go on, or another folder to start anew"
        raise OtherSettings(
            f"The run in {folder} was begun with other settings: {change}. {advice}."
        )
    return stored


def flat(data: PyTree, name: str = "") -> Json:
    """Return nested settings as one level of dotted names."""
    if not isinstance(data, dict):
        return {name: data}
    return {
        inner: value
        for key, nested in data.items()
        for inner, value in flat(nested, f"{name}.{key}" if name else str(key)).items()
    }


def as_setting(value: PyTree) -> PyTree:
    """Return a frozen dataclass as JSON with the names of its kinds, other objects by name."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (field.name for field in dataclasses.fields(value))
        kind = {"kind": type(value).__name__}
        return kind | {name: as_setting(getattr(value, name)) for name in fields}
    if isinstance(value, tuple):
        return [as_setting(part) for part in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    name = getattr(value, "__qualname__", type(value).__qualname__)
    code = getattr(value, "__code__", None)
    # A function by its name and its instructions, so that an edited one is noticed.
    return name if code is None else f"{name} {code_checksum(code)}"


def code_checksum(code: CodeType) -> str:
    """Return a checksum of a function's instructions that is the same in every process."""
    constants = [
        code_checksum(constant)
        if isinstance(constant, CodeType)
        else repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)
        for constant in code.co_consts
    ]
    text = f"{code.co_code.hex()} {code.co_names} {constants}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]
