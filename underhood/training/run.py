"""What training gives back: the trained students, their losses, and how to redo them."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from underhood.common.errors import BadInput
from underhood.common.files import as_json
from underhood.layers.files.storage import put_together, take_apart
from underhood.training.padding import is_own
from underhood.training.storage.folder import (
    VERSION,
    folder_of,
    named_leaves,
    read_json,
    read_settings,
    write,
)

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, repr=False)
class Run:
    """A finished ensemble.

    rows      one dictionary per member; `members` is the same as a pandas table
    steps     [windows]           the last step of each window of the loss curves
    losses    [members, windows]  mean training loss in each window; NaN once a member is lost
    models    the trained students, in the order of the rows
    """

    rows: tuple[dict[str, Any], ...]
    steps: np.ndarray
    losses: np.ndarray
    models: list[Any]
    settings: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def members(self) -> "pandas.DataFrame":
        """The members as a table: seed, width, axes, final losses."""
        import pandas

        return pandas.DataFrame(list(self.rows))

    def best(self) -> Any:
        """The student with the lowest final loss."""
        losses = [row["loss"] if row["loss"] is not None else np.inf for row in self.rows]
        if not np.isfinite(np.min(losses)):
            raise BadInput("Every member of this run was lost; lower the learning rate.")
        return self.models[int(np.argmin(losses))]

    def __repr__(self) -> str:
        losses = [row["loss"] for row in self.rows if row["loss"] is not None]
        lost = len(self.rows) - len(losses)
        best = f"best loss {min(losses):.3g}" if losses else "no loss is finite"
        return f"<Run of {len(self.rows)} members, {best}{f', {lost} lost' if lost else ''}>"

    @classmethod
    def load(cls, folder: str | Path, make_student: Callable[..., Any] | None = None) -> "Run":
        """A finished run from its folder; students of foreign kinds need `make_student` again."""
        folder = folder_of(folder)
        if not (folder / "members.json").exists():
            state = (
                "is not finished; call train again to go on"
                if (folder / "settings.json").exists()
                else "holds no run"
            )
            raise BadInput(f"{folder} {state}.")
        advice = "remove it and train again to write it anew"
        table = read_json(folder / "members.json", advice=advice)
        if not {"rows", "sha256", "provenance"} <= table.keys():
            raise BadInput(f"{folder / 'members.json'} is not complete; {advice}.")
        settings = read_settings(folder)
        sums = table["sha256"]
        curves = read_tensors(folder / "losses.safetensors", sums)[0]
        tensors, metadata = read_tensors(folder / "models.safetensors", sums)
        models = read_models(tensors, metadata, table["rows"], make_student, folder)
        return cls(
            tuple(table["rows"]),
            curves["steps"],
            curves["losses"],
            models,
            settings,
            table["provenance"],
        )

    def save(self, folder: Path) -> None:
        """Write all that `load` reads; the table comes last, because it says that all is there."""
        for name, data in self.files().items():
            write(folder / name, data)

    def files(self) -> dict[str, bytes]:
        """What `save` writes, in its order."""
        curves = {"steps": self.steps, "losses": self.losses}
        tensors: dict[str, np.ndarray] = {}
        structures = []
        for number, model in enumerate(self.models):
            if is_own(model):
                structures.append(take_apart(model, f"{number:05d}", tensors))
            else:
                named = named_leaves(arrays_of(model))
                tensors |= {f"{number:05d}{name}": array for name, array in named.items()}
                structures.append(None)
        files = {
            "losses.safetensors": safetensors.numpy.save(curves),
            "models.safetensors": safetensors.numpy.save(
                tensors, {"structures": json.dumps(structures)}
            ),
        }
        table = {
            "version": VERSION,
            "provenance": self.provenance,
            "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
            "rows": list(self.rows),
        }
        return files | {"members.json": as_json(table)}


def arrays_of(model: Any) -> list[Any]:
    """The arrays of a student of any kind, in the order of its fields."""
    return [leaf for leaf in jax.tree.leaves(model) if isinstance(leaf, jax.Array | np.ndarray)]


def as_stored(array: np.ndarray) -> jax.Array:
    """A JAX array of the same type, float64 too."""
    with jax.enable_x64(True):
        return jnp.asarray(array)


def read_tensors(path: Path, sums: dict[str, str]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """A safetensors file's arrays and metadata, if it is the one that was written."""
    try:
        raw = path.read_bytes()
        if hashlib.sha256(raw).hexdigest() != sums[path.name]:
            raise ValueError
        tensors = safetensors.numpy.load(raw)
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    except Exception:
        raise BadInput(
            f"{path} is missing or damaged; remove {path.parent / 'members.json'} and train again "
            "to write it anew."
        ) from None
    return tensors, header.get("__metadata__") or {}


def read_models(
    tensors: dict[str, np.ndarray],
    metadata: dict[str, str],
    rows: Sequence[dict[str, Any]],
    make_student: Callable[..., Any] | None,
    folder: Path,
) -> list[Any]:
    """The students of a run: our own by what the file says, others by making them again."""
    models = []
    for number, structure in enumerate(json.loads(metadata["structures"])):
        if structure is not None:
            # Not checked, because a member that was lost may hold anything.
            model = put_together(structure, f"{number:05d}", tensors, 0, checked=False)
            models.append(jax.tree.map(as_stored, model))
            continue
        if make_student is None:
            raise BadInput(f"{folder} holds students of a foreign kind; give make_student= too.")
        made = make_student(rows[number]["width"], key=jax.random.key(0))
        leaves, frame = jax.tree.flatten(made)
        stored = [name for name in tensors if name.startswith(f"{number:05d}[")]
        shapes = [tensors[f"{number:05d}[{place}]"].shape for place in range(len(stored))]
        if shapes != [leaf.shape for leaf in arrays_of(made)]:
            raise BadInput(f"{folder} holds other students than this make_student makes.")
        arrays = iter(range(len(stored)))
        filled = [
            as_stored(tensors[f"{number:05d}[{next(arrays)}]"])
            if isinstance(leaf, jax.Array | np.ndarray)
            else leaf
            for leaf in leaves
        ]
        models.append(jax.tree.unflatten(frame, filled))
    return models
