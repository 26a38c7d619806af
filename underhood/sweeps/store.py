"""What a study has found, on disk. One process writes.

DIR/study.json        what is common to the study, for people; not read back
DIR/units/NAME/       a finished unit: members.json, losses.safetensors, models.safetensors
DIR/unfinished/NAME/  checkpoints of a unit that was trained here and stopped
DIR/damaged/NAME/     a unit that something else has spoilt; it is trained anew
DIR/table.csv         a row per student, written anew when a sweep ends
DIR/lock              held by the process that writes

A unit is written under another name and renamed, so it is there whole or not at all; and one that
is there is never written again, so a unit that two workers have trained is kept once.
"""

import contextlib
import csv
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from underhood.common.errors import BadInput
from underhood.common.files import as_json, write_atomically
from underhood.sweeps.units import Unit
from underhood.training import Run
from underhood.training.storage.folder import locked

UNITS, UNFINISHED, DAMAGED, TABLE = "units", "unfinished", "damaged", "table.csv"
OURS = {UNITS, UNFINISHED, DAMAGED, TABLE, "study.json", "lock"}


class Store:
    """The folder of a study."""

    def __init__(self, folder: Path):
        self.folder = folder

    @contextlib.contextmanager
    def opened(self, description: dict[str, Any]) -> Iterator["Store"]:
        """Hold the folder for writing, and clear away what a killed process left half-written."""
        if self.folder.exists() and not self.folder.is_dir():
            raise BadInput(f"The output {self.folder} is a file; name a folder.")
        foreign = self.foreign()
        if foreign:
            raise BadInput(
                f"The output folder {self.folder} holds other things ({foreign[0]}); name a new "
                "or empty folder, or one with a study."
            )
        try:
            (self.folder / UNITS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(
                f"The output folder {self.folder} cannot be written: {error.strerror}."
            ) from None
        with locked(self.folder):
            for left in (self.folder / UNITS).glob(".*"):
                shutil.rmtree(left, ignore_errors=True)
            self.put_aside_damaged()
            write_atomically(self.folder / "study.json", as_json(description))
            yield self

    def foreign(self) -> list[str]:
        """What lies in the folder and is not ours, unless a study is there too."""
        if not self.folder.is_dir() or (self.folder / UNITS).exists():
            return []
        held = {one.name for one in self.folder.iterdir() if not one.name.startswith(".")}
        return sorted(held - OURS)

    def units(self) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Names and rows of all finished units."""
        for place in sorted((self.folder / UNITS).glob("[!.]*")):
            rows = rows_of(place)
            if rows is not None:
                yield place.name, rows

    def put_aside_damaged(self) -> None:
        """Move units that are not whole out of the way of those that replace them."""
        for place in sorted((self.folder / UNITS).glob("[!.]*")):
            if rows_of(place) is None:
                aside = self.folder / DAMAGED / place.name
                shutil.rmtree(aside, ignore_errors=True)
                aside.parent.mkdir(exist_ok=True)
                os.rename(place, aside)

    def finished(self) -> set[str]:
        """Addresses of all students that are here."""
        return {row["address"] for _, rows in self.units() for row in rows}

    def write(self, unit: Unit, files: dict[str, bytes]) -> bool:
        """Keep a unit; False where it is here already."""
        place = self.folder / UNITS / unit.name
        if place.exists():
            return False
        temporary = Path(tempfile.mkdtemp(dir=place.parent, prefix=f".{unit.name}."))
        try:
            for name, data in files.items():
                with open(temporary / name, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
            os.chmod(temporary, 0o755)
            os.rename(temporary, place)
        except BaseException as error:
            shutil.rmtree(temporary, ignore_errors=True)
            if isinstance(error, OSError):
                # A full disk does not say which.
                error.filename = error.filename or str(self.folder)
            raise
        shutil.rmtree(self.scratch(unit), ignore_errors=True)
        return True

    def scratch(self, unit: Unit) -> Path:
        """Where a unit that is trained in this process keeps its checkpoints."""
        return self.folder / UNFINISHED / unit.name

    def rows(self, addresses: set[str]) -> list[dict[str, Any]]:
        """The rows of some students, in the order of their units; each once."""
        found: dict[str, dict[str, Any]] = {}
        for _, rows in self.units():
            for row in rows:
                if row["address"] in addresses:
                    found.setdefault(row["address"], row)
        return list(found.values())

    def write_table(self, addresses: set[str]) -> Path:
        """DIR/table.csv with the rows of a study."""
        rows = self.rows(addresses)
        names = list(dict.fromkeys(name for row in rows for name in row))
        text = io.StringIO()
        table = csv.DictWriter(text, names, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
        write_atomically(self.folder / TABLE, text.getvalue().encode())
        return self.folder / TABLE

    def load(self, unit: Unit, make_student: Callable[..., Any] | None = None) -> Run:
        """A finished unit with its models and curves."""
        return Run.load(self.folder / UNITS / unit.name, make_student)


def rows_of(place: Path) -> list[dict[str, Any]] | None:
    """The rows of a finished unit; None where a file is missing, cut off, or not what it was."""
    try:
        members = json.loads((place / "members.json").read_text(encoding="utf-8"))
        whole = all(is_whole(place / name) for name in members.get("sha256", ()))
        rows: list[dict[str, Any]] = members["rows"]
        return rows if whole and all("address" in row for row in rows) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_whole(path: Path) -> bool:
    """Whether a safetensors file is as long as its header says; its numbers are not read."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size:
            return False
        header = json.loads(file.read(length))
    ends = [one["data_offsets"][1] for name, one in header.items() if name != "__metadata__"]
    return path.stat().st_size == 8 + length + max(ends, default=0)
