"""What a study has found, on disk. One process writes.

DIR/study.json        what is common to the study, for people; not read back
DIR/units/NAME/       a finished unit: a finished run, whose rows also have student and address
DIR/unfinished/NAME/  checkpoints of a unit that was trained here and stopped
DIR/damaged/NAME/     a unit that something else has damaged; it is trained anew
DIR/table.csv         a row per student, written anew when a sweep ends
DIR/lock              held by the process that writes

A unit is renamed into place, whole or not at all, and never written again, so it is kept once.
"""

import contextlib
import csv
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from underhood.common.files import Json, as_json, make_output_folder, write_atomically
from underhood.common.tensors import tensor_shapes
from underhood.sweeps.study import Study
from underhood.sweeps.units import Unit
from underhood.training.storage.folder import MEMBERS, locked

UNITS, UNFINISHED, DAMAGED, TABLE = "units", "unfinished", "damaged", "table.csv"
STORE_FILES = {UNITS, UNFINISHED, DAMAGED, TABLE, "study.json", "lock"}


class Store:
    """The folder of a study."""

    def __init__(self, folder: Path):
        self.folder = folder

    @contextlib.contextmanager
    def opened(self, description: Json) -> Iterator["Store"]:
        """Hold the folder for writing."""
        units = self.folder / UNITS
        make_output_folder(self.folder, ours=STORE_FILES, begun=units.exists())
        units.mkdir(exist_ok=True)
        with locked(self.folder):
            self.tidy()
            write_atomically(self.folder / "study.json", as_json(description))
            yield self

    def tidy(self) -> None:
        """Remove what a killed process left half-written; put damaged units aside."""
        for left in (self.folder / UNITS).glob(".*"):
            shutil.rmtree(left, ignore_errors=True)
        for damaged in [unit for unit in self.unit_folders() if rows_of(unit) is None]:
            aside = self.folder / DAMAGED / damaged.name
            shutil.rmtree(aside, ignore_errors=True)
            aside.parent.mkdir(exist_ok=True)
            os.rename(damaged, aside)

    def unit_folders(self) -> list[Path]:
        return sorted((self.folder / UNITS).glob("[!.]*"))

    def all_rows(self) -> Iterator[Json]:
        for folder in self.unit_folders():
            yield from rows_of(folder) or ()

    def finished(self) -> set[str]:
        return {row["address"] for row in self.all_rows()}

    def write(self, unit: Unit, files: dict[str, bytes]) -> None:
        place = self.folder / UNITS / unit.name
        if place.exists():
            return
        temporary = Path(tempfile.mkdtemp(dir=place.parent, prefix=f".{unit.name}."))
        try:
            for name, data in files.items():
                write_atomically(temporary / name, data)
            os.chmod(temporary, 0o755)
            os.rename(temporary, place)
        except BaseException as error:
            shutil.rmtree(temporary, ignore_errors=True)
            if isinstance(error, OSError):
                # A full disk does not say which.
                error.filename = error.filename or str(self.folder)
            raise
        shutil.rmtree(self.scratch(unit), ignore_errors=True)

    def scratch(self, unit: Unit) -> Path:
        """Return where a unit that is trained in this process keeps its checkpoints."""
        return self.folder / UNFINISHED / unit.name

    def rows(self, study: Study) -> list[Json]:
        """Return the rows of a study's students, in the order of their units; each once."""
        rows: dict[str, Json] = {}
        for row in self.all_rows():
            rows.setdefault(row["address"], row)
        addresses = study.all_addresses()
        return [row for address, row in rows.items() if address in addresses]

    def write_table(self, study: Study) -> Path:
        rows, text = self.rows(study), io.StringIO()
        names = dict.fromkeys(name for row in rows for name in row)
        table = csv.DictWriter(text, list(names), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
        write_atomically(self.folder / TABLE, text.getvalue().encode())
        return self.folder / TABLE

    def summary(self, study: Study) -> list[Json]:
        """Return a row per kind, width and point of the axes: the median loss and the lowest."""
        names = ("student", "width", *study.axes)
        groups: dict[tuple[str | float, ...], list[float | None]] = {}
        for row in self.rows(study):
            groups.setdefault(tuple(row[name] for name in names), []).append(row["loss"])
        rows: list[Json] = []
        for place, losses in sorted(groups.items(), key=lambda item: str(item[0])):
            finite = [loss for loss in losses if loss is not None]
            row = dict(zip(names, place, strict=True))
            row |= {"seeds": len(losses), "lost": len(losses) - len(finite)}
            row |= {"median loss": float(np.median(finite)) if finite else None}
            rows.append(row | {"lowest": min(finite, default=None)})
        return rows


def rows_of(folder: Path) -> list[Json] | None:
    """Return the rows of a finished unit; None where a file is missing, cut off or changed."""
    try:
        table = json.loads((folder / MEMBERS).read_text(encoding="utf-8"))
        # A file that was cut off has no readable shapes; its numbers are not read.
        whole = all(tensor_shapes(folder / name) for name in table.get("sha256", ()))
        rows: list[Json] = table["rows"]
        return rows if whole and all("address" in row for row in rows) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
