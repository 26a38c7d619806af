"""What training gives back: the trained students, their losses, and how to redo them."""

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from jaxtyping import PyTree

from underhood.common.errors import BadInput
from underhood.common.files import Json, as_json
from underhood.common.tensors import Tensors, read_tensors
from underhood.layers.files import put_together, take_apart
from underhood.training.ensemble import StudentMaker, is_ours
from underhood.training.storage import folder as storage
from underhood.training.storage.settings import read_settings, settings_file

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, repr=False)
class Run:
    """A finished ensemble.

    rows        one dictionary per member; `members` is the same as a pandas table
    steps       [windows]           the last step of each window of the loss curves
    losses      [members, windows]  mean training loss in each window; NaN once a member is lost
    models      the trained students, in the order of the rows
    settings    everything that decides the result
    provenance  commit, versions, device, bytes and seconds
    """

    rows: tuple[Json, ...]
    steps: np.ndarray
    losses: np.ndarray
    models: list[PyTree]
    settings: Json = field(default_factory=dict)
    provenance: Json = field(default_factory=dict)

    @property
    def members(self) -> "pandas.DataFrame":
        """The members as a table: seed, width, axes, final losses."""
        import pandas

        return pandas.DataFrame(list(self.rows))

    def best(self) -> PyTree:
        """Return the student with the lowest final loss."""
        losses = [row["loss"] if row["loss"] is not None else np.inf for row in self.rows]
        if not np.isfinite(np.min(losses)):
            raise BadInput("All members of this run diverged; lower the learning rate.")
        return self.models[int(np.argmin(losses))]

    def __repr__(self) -> str:
        losses = [row["loss"] for row in self.rows if row["loss"] is not None]
        lost = len(self.rows) - len(losses)
        best = f"best loss {min(losses):.3g}" if losses else "no loss is finite"
        return f"<Run of {len(self.rows)} members, {best}{f', {lost} lost' if lost else ''}>"

    @classmethod
    def load(cls, folder: str | Path, make_student: StudentMaker | None = None) -> "Run":
        """Read a finished run, or a finished unit of a sweep.

        make_student  needed again for students of foreign kinds
        """
        folder = storage.run_folder(folder)
        if not storage.is_finished(folder):
            begun = (folder / storage.SETTINGS).exists()
            state = "is not finished; call train again to go on" if begun else "holds no run"
            raise BadInput(f"{folder} {state}.")
        advice = "remove it and train again to write it anew"
        fields = {"rows", "sha256", "provenance"}
        table = storage.read_run_json(folder / storage.MEMBERS, fields=fields, advice=advice)
        settings = read_settings(folder)
        del settings["version"]
        settings.pop("begun", None)
        curves = read_checked(folder / storage.LOSSES, table["sha256"]).arrays
        models = read_models(folder, table, make_student)
        rows, origin = tuple(table["rows"]), table["provenance"]
        return cls(rows, curves["steps"], curves["losses"], models, settings, origin)

    def save(self, folder: Path) -> None:
        """Write all that `load` reads; settings.json stays as the run began."""
        for name, data in self.files().items():
            if name != storage.SETTINGS or not (folder / storage.SETTINGS).exists():
                storage.write_run_file(folder / name, data)

    def files(self) -> dict[str, bytes]:
        """Return the files of the run; the table comes last, because it says that all is there."""
        tensors: dict[str, np.ndarray] = {}
        structures: list[PyTree] = []
        for number, model in enumerate(self.models):
            name, ours = f"{number:05d}", is_ours(model)
            structures.append(take_apart(model, name, tensors) if ours else None)
            arrays = [] if ours else jax.tree.leaves(eqx.filter(model, is_any_array))
            for place, array in enumerate(arrays):
                tensors[f"{name}[{place}]"] = np.asarray(array)
        files = {
            storage.LOSSES: safetensors.numpy.save({"steps": self.steps, "losses": self.losses}),
            storage.MODELS: safetensors.numpy.save(tensors, {"structures": json.dumps(structures)}),
        }
        table = {
            "version": storage.VERSION,
            "provenance": self.provenance,
            "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
            "rows": list(self.rows),
        }
        settings = settings_file(self.settings, self.provenance)
        return {storage.SETTINGS: settings, **files, storage.MEMBERS: as_json(table)}


def is_any_array(leaf: PyTree) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray)


def as_stored(array: np.ndarray) -> jax.Array:
    """Return a JAX array of the same type, float64 too."""
    with jax.enable_x64(True):
        return jnp.asarray(array)


def read_checked(path: Path, checksums: Mapping[str, str]) -> Tensors:
    """Read a safetensors file of a run; refuse one that is not what was written."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        if hashlib.sha256(path.read_bytes()).hexdigest() == checksums[path.name]:
            return read_tensors(path)
    advice = f"remove {path.parent / storage.MEMBERS} and train again to write it anew"
    raise BadInput(f"{path} is missing or damaged; {advice}.")


def read_models(folder: Path, table: Json, make_student: StudentMaker | None) -> list[PyTree]:
    """Return a run's students: our own by what the file says, others by making them again."""
    tensors, metadata = read_checked(folder / storage.MODELS, table["sha256"])
    models = []
    for number, structure in enumerate(json.loads(metadata["structures"])):
        name = f"{number:05d}"
        if structure is not None:
            # Not checked, because a member that was lost may hold anything.
            model = put_together(structure, name, tensors, 0, checked=False)
            models.append(jax.tree.map(as_stored, model))
        elif make_student is None:
            raise BadInput(f"{folder} holds students of a foreign kind; give make_student= too.")
        else:
            count = sum(stored.startswith(f"{name}[") for stored in tensors)
            arrays = [tensors[f"{name}[{place}]"] for place in range(count)]
            made = make_student(table["rows"][number]["width"], key=jax.random.key(0))
            replaced, kept = eqx.partition(made, is_any_array)
            leaves, frame = jax.tree.flatten(replaced)
            if [array.shape for array in arrays] != [leaf.shape for leaf in leaves]:
                raise BadInput(f"The students in {folder} do not match this make_student.")
            stored = jax.tree.unflatten(frame, map(as_stored, arrays))
            models.append(eqx.combine(stored, kept))
    return models
