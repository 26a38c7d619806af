"""Grades of answers about planted networks.

The function is y_o = Σ_abc T_oabc (Σ_s λ^{t−s} x_a x_b) x_c with T = Σ_h W_V^h ⊗ M^h. The sum is
symmetric in a and b, so only the symmetric part of T counts:

    error = |S(T) − S(T*)| / |S(T*)|,    S(T)_oabc = (T_oabc + T_obac)/2.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from underhood.common.errors import BadInput
from underhood.common.files import Json
from underhood.planting.answers import MethodAnswer, read_answer
from underhood.planting.folders import KEYS, PLANTED_INDEX

# A network whose attention is known this well counts as solved.
SOLVED = 0.01


@dataclass(frozen=True)
class Mark:
    """How good one answer is.

    verdict  whether it is right
    error    of W_V ⊗ M, relative; None for decoys
    roles    share of neurons with the right kind of role; None for decoys
    """

    name: str
    decoy: str | None
    verdict: bool
    error: float | None
    roles: float | None

    @property
    def solved(self) -> bool:
        """Whether the verdict is right, and for attention W_V ⊗ M too."""
        return self.verdict and (self.error is None or self.error <= SOLVED)

    def row(self) -> Json:
        return {
            "network": self.name,
            "inside": "attention" if self.decoy is None else f"decoy, {self.decoy}",
            "verdict": "right" if self.verdict else "wrong",
            "error": self.error,
            "roles": self.roles,
            "solved": "yes" if self.solved else "no",
        }


@dataclass(frozen=True)
class Marks:
    """The grades of all answers."""

    each: tuple[Mark, ...]

    def facts(self) -> Json:
        """Return the grades in all: shares, and the median error over networks with attention."""
        planted = [grade for grade in self.each if grade.decoy is None]
        errors = [grade.error for grade in planted if grade.error is not None]
        roles = [grade.roles for grade in planted if grade.roles is not None]
        return {
            "networks": len(self.each),
            "decoys": len(self.each) - len(planted),
            "verdict accuracy": float(np.mean([grade.verdict for grade in self.each])),
            "median error of W_V⊗M": float(np.median(errors)) if errors else None,
            "neurons with the right role": float(np.mean(roles)) if roles else None,
            "solved": sum(grade.solved for grade in self.each),
        }


def grade_folder(folder: Path, answers: Path) -> Marks:
    """Grade the answers in a folder about the networks in another."""
    index = read_index(folder)
    if not answers.is_dir():
        raise BadInput(f"{answers} is no folder; put the answers 000.json, 001.json, … into one.")
    grades = []
    for entry in index["networks"]:
        name, d = entry["name"], int(entry["d_in"])
        grades.append(grade(name, read_key(folder, name), read_answer(answers, name, d)))
    names = [f"{each.name}{end}" for each in grades for end in (".json", ".safetensors")]
    if not any((answers / name).is_file() for name in names):
        raise BadInput(f"{answers} holds no answer; they are called 000.json or 000.safetensors.")
    return Marks(tuple(grades))


def read_index(folder: Path) -> Json:
    """Return the index of a finished folder of planted networks."""
    try:
        index = json.loads((folder / PLANTED_INDEX).read_text(encoding="utf-8"))
        finished = index["finished"] and index["format"] == "underhood planted networks"
    except (OSError, ValueError, KeyError, TypeError):
        wanted = "make them with underhood plant"
        raise BadInput(f"{folder} holds no planted networks; {wanted}.") from None
    if not finished:
        raise BadInput(f"{folder} is not finished; make it again with underhood plant --force.")
    return index


def read_key(folder: Path, name: str) -> Json:
    """Return the key of one network."""
    path = folder / KEYS / f"{name}.json"
    try:
        key = json.loads(path.read_text(encoding="utf-8"))
        if not {"verdict", "decoy", "heads", "roles"} <= set(key):
            raise ValueError("a field is missing")
    except (OSError, ValueError, TypeError):
        raise BadInput(f"{path} is missing or damaged; plant the networks again.") from None
    return key


def grade(name: str, key: Json, answer: MethodAnswer) -> Mark:
    """Compare one answer with its key."""
    right = answer.verdict == key["verdict"]
    if key["decoy"] is not None:
        return Mark(name, key["decoy"], right, None, None)
    heads = [(np.array(head["W_V"]), np.array(head["M"])) for head in key["heads"]]
    roles = [role["kind"] for role in key["roles"]]
    if answer.roles and len(answer.roles) != len(roles):
        raise BadInput(
            f"The answer about {name} names {len(answer.roles)} roles for {len(roles)} neurons."
        )
    said = answer.roles or ("",) * len(roles)
    share = float(np.mean([a == b for a, b in zip(said, roles, strict=True)]))
    return Mark(name, None, right, function_error(answer.heads, heads), share)


Heads = Sequence[tuple[np.ndarray, np.ndarray]]


def function_error(answered: Heads, heads: Heads) -> float:
    """Return the error of W_V ⊗ M, as the head of this file says; 1 if there is no answer."""
    expected = function_tensor(heads)
    if not answered:
        return 1.0
    difference = function_tensor(answered) - expected
    return float(np.linalg.norm(difference) / np.linalg.norm(expected))


def function_tensor(heads: Heads) -> np.ndarray:
    """Return S(Σ_h W_V^h ⊗ M^h)."""
    T = sum(np.einsum("oa,bc->oabc", V, M) for V, M in heads)
    return (T + np.swapaxes(T, 1, 2)) / 2
