"""Engines train: the work units of a sweep, in any order, or one run as a whole.

Local     in this process, one unit after the other; what was stopped goes on where it was
Processes in several processes of this machine (`processes.py`)
Cluster   on dask.distributed (`dask/cluster.py`)
Stored    nowhere: finished runs are read, and nothing is trained or written
"""

import errno
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from underhood.common.errors import BadInput, reason_of
from underhood.sweeps.store import Store
from underhood.sweeps.study import Study
from underhood.sweeps.units import Unit, work
from underhood.training.deadline import Deadline
from underhood.training.device import free_memory
from underhood.training.run import Run
from underhood.training.storage.folder import SETTINGS, is_finished
from underhood.training.training import read_members, train_members

# Called with (unit, event, worker); events are planned, running, done, retried and failed.
Watch = Callable[[Unit, str, str], None]
# Called with (done so far, all there is to do).
Progress = Callable[[float, float], None]


@dataclass(frozen=True)
class UnitOutcome:
    """A unit's files, or why it has none; where it ran, for how long, and how often."""

    unit: Unit
    files: dict[str, bytes] | None
    reason: str = ""
    worker: str = "here"
    seconds: float = 0.0
    attempts: int = 1


# One for every unit, as they finish.
Outcomes = Iterator[UnitOutcome]


@runtime_checkable
class Engine(Protocol):
    """What trains."""

    @property
    def concurrent(self) -> bool:
        """Whether several runs are best trained at the same time."""

    @property
    def workers(self) -> int:
        """How many units can run at once."""

    @property
    def memory(self) -> int | None:
        """Bytes that a unit may take where there is least; None: not known."""

    @property
    def deadline(self) -> Deadline | None:
        """When runs stop and raise OutOfTime; None: never. Units of a sweep know no deadline."""

    def run(self, study: Study, units: Sequence[Unit], store: Store, tell: Watch) -> Outcomes:
        """Yield the outcome of every unit, as they finish."""

    def train(self, study: Study, folder: Path, progress: Progress) -> Run:
        """Train the one student of a study, or go on; the folder is the same whoever trains."""


class Local:
    """Training in this process."""

    workers, concurrent = 1, False
    deadline: Deadline | None = None

    def __init__(self, deadline: Deadline | None = None):
        self.deadline = deadline

    @property
    def memory(self) -> int | None:
        return free_memory()

    def run(self, study: Study, units: Sequence[Unit], store: Store, tell: Watch) -> Outcomes:
        """Train one unit after the other; a unit that fails does not stop the rest."""
        for unit in units:
            tell(unit, "running", "here")
            began = time.monotonic()
            try:
                files = work(study, unit, out=store.scratch(unit))
            except Exception as error:
                # A disk that is full for one unit is full for all.
                if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                    error.filename = error.filename or str(store.folder)
                    raise
                yield UnitOutcome(unit, None, reason_of(error))
            else:
                yield UnitOutcome(unit, files, seconds=time.monotonic() - began)

    def train(self, study: Study, folder: Path, progress: Progress) -> Run:
        (student,) = study.students
        ensemble, deadline = study.ensemble(student), self.deadline
        run = train_members(ensemble, out=folder, progress=progress, deadline=deadline)
        progress(1.0, 1.0)
        return run


class MissingRun(BadInput):
    """A run was to be read, and there is none, or it is not finished."""

    def __init__(self, folder: Path):
        state = "is not finished" if (folder / SETTINGS).exists() else "is missing"
        super().__init__(f"The run {folder.name} {state}.")


class Stored:
    """Reads runs that were trained before; the disk may be read-only."""

    workers, concurrent, memory, deadline = 1, False, None, None

    def run(self, study: Study, units: Sequence[Unit], store: Store, tell: Watch) -> Outcomes:
        """Fail every unit, because nothing is trained."""
        for unit in units:
            yield UnitOutcome(unit, None, "runs are only read here, and nothing is trained")

    def train(self, study: Study, folder: Path, progress: Progress) -> Run:
        """Read the finished run in a folder; refuse a run of another study."""
        if not is_finished(folder):
            raise MissingRun(folder)
        (student,) = study.students
        run = read_members(study.ensemble(student), folder)
        progress(1.0, 1.0)
        return run
