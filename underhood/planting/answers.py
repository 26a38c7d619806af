"""A method's answer about one network: a verdict, W_V and M of every head, roles of neurons."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from underhood.common.errors import BadInput, check_name
from underhood.common.files import Json
from underhood.common.tensors import UnreadableTensors, read_tensors

VERDICTS = ("attention", "not attention", "undecided")
FIELDS = ("verdict", "heads", "roles", "W_V", "M")
# What a neuron can be for; "" says nothing about a neuron.
ROLE_KINDS = ("memory", "query", "copy", "product", "hold", "dead")


@dataclass(frozen=True)
class MethodAnswer:
    """What a method says; an empty answer says nothing."""

    verdict: str | None = None
    heads: tuple[tuple[np.ndarray, np.ndarray], ...] = ()
    roles: tuple[str, ...] = ()


def read_answer(folder: Path, name: str, d: int) -> MethodAnswer:
    """Read NAME.json or NAME.safetensors in a folder; an empty answer if there is neither.

    d  numbers per token, for the shapes of W_V and M
    """
    text, tensors = folder / f"{name}.json", folder / f"{name}.safetensors"
    if text.is_file() and tensors.is_file():
        raise BadInput(f"{text} and {tensors} answer the same question; remove one of them.")
    try:
        if text.is_file():
            return parsed(json.loads(text.read_text(encoding="utf-8")), text, d)
        if tensors.is_file():
            return parsed(tensor_answer(tensors), tensors, d)
    except (json.JSONDecodeError, UnicodeDecodeError, UnreadableTensors) as error:
        path = text if text.is_file() else tensors
        raise BadInput(f"{path} cannot be read: {error}.") from None
    return MethodAnswer()


def tensor_answer(path: Path) -> Json:
    """Return the fields of a safetensors file: heads.0.W_V, …, and its metadata."""
    arrays, metadata = read_tensors(path)
    fields: Json = {name: arrays.pop(name) for name in ("W_V", "M") if name in arrays}
    if arrays:
        count = 1 + max(
            (int(p[1]) for n in arrays if (p := n.split("."))[1:2] and p[1].isdigit()), default=-1
        )
        expected = {f"heads.{i}.{symbol}" for i in range(count) for symbol in ("W_V", "M")}
        if set(arrays) != expected:
            raise BadInput(f"{path}: tensors are heads.0.W_V, heads.0.M, … and no others.")
        fields["heads"] = [
            {symbol: arrays[f"heads.{i}.{symbol}"] for symbol in ("W_V", "M")} for i in range(count)
        ]
    if "verdict" in metadata:
        fields["verdict"] = metadata["verdict"]
    if "roles" in metadata:
        fields["roles"] = json.loads(metadata["roles"])
    return fields


def parsed(fields: Any, path: Path, d: int) -> MethodAnswer:  # Any: JSON that somebody else wrote
    """Check an answer and return it."""
    if not isinstance(fields, dict) or not set(fields) <= set(FIELDS):
        raise BadInput(f"{path}: an answer is an object with verdict, heads and roles.")
    verdict = fields.get("verdict")
    if verdict not in (None, *VERDICTS):
        raise BadInput(f"{path}: verdict is {str(verdict)[:40]!r}; use {' or '.join(VERDICTS)}.")
    heads = fields.get("heads", [])
    if "W_V" in fields or "M" in fields:
        heads = [{name: fields.get(name) for name in ("W_V", "M")}]
    roles = fields.get("roles", [])
    if not isinstance(roles, list) or not all(isinstance(role, str) for role in roles):
        raise BadInput(f"{path}: roles is a list of words, one per neuron.")
    for place, role in enumerate(roles):
        if role:
            check_name(f"role of neuron {place} in {path}", role, ROLE_KINDS)
    if not isinstance(heads, list):
        raise BadInput(f"{path}: heads is a list of objects with W_V and M.")
    return MethodAnswer(verdict, tuple(checked_head(head, path, d) for head in heads), tuple(roles))


def checked_head(head: Any, path: Path, d: int) -> tuple[np.ndarray, np.ndarray]:  # Any: JSON
    """Return W_V and M of one head as arrays [d, d]."""
    matrices = []
    for name in ("W_V", "M"):
        try:
            W = np.asarray(head[name], float)
        except (TypeError, ValueError, KeyError, IndexError):
            raise BadInput(f"{path}: a head needs W_V and M, matrices of numbers.") from None
        if W.shape != (d, d) or not np.all(np.isfinite(W)):
            shape = "×".join(map(str, W.shape)) or "a number"
            raise BadInput(f"{path}: {name} is {shape}; give {d}×{d} finite numbers.")
        matrices.append(W)
    return matrices[0], matrices[1]
