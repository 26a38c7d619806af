"""Engines train: the work units of a sweep, in any order, or one run as a whole.

Local     in this process, one unit after the other; what was stopped goes on where it was
Cluster   on dask.distributed (`dask/cluster.py`)
"""

import contextlib
import errno
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from underhood.common.errors import BadInput, reason_of
from underhood.sweeps.store import Store
from underhood.sweeps.study import Study
from underhood.sweeps.units import Unit, work
from underhood.training.device import free_memory
from underhood.training.run import Run
from underhood.training.training import train_members

# Called with (unit, event, worker); events are planned, running, done, retried and failed.
Watch = Callable[[Unit, str, str], None]
# Called with (done so far, all there is to do).
Progress = Callable[[float, float], None]

ENGINES = ("local", "dask")
# Options of the command line that mean nothing without dask.
TLS_OPTIONS = ("tls_ca", "tls_cert", "tls_key")
DASK_OPTIONS = ("workers", "address", "jobqueue", "needs", "insecure", *TLS_OPTIONS)


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

    def run(self, study: Study, units: Sequence[Unit], store: Store, tell: Watch) -> Outcomes:
        """Yield the outcome of every unit, as they finish."""

    def train(self, study: Study, folder: Path, progress: Progress) -> Run:
        """Train the one student of a study at all widths, axes and seeds; go on if it was begun.

        folder  keeps the run in the same form whoever trains it
        """


@dataclass(frozen=True)
class Local:
    """Training in this process.

    progress  whether a bar shows the steps of a unit; None: where stderr is a terminal
    """

    progress: bool | None = None
    workers: int = field(default=1, init=False)
    concurrent: bool = field(default=False, init=False)

    @property
    def memory(self) -> int | None:
        return free_memory()

    def run(self, study: Study, units: Sequence[Unit], store: Store, tell: Watch) -> Outcomes:
        """Train one unit after the other; a unit that fails does not stop the rest."""
        for unit in units:
            tell(unit, "running", "here")
            began = time.monotonic()
            try:
                files = work(study, unit, out=store.scratch(unit), progress=self.progress)
            except Exception as error:
                # A disk that is full for one unit is full for all.
                if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                    error.filename = error.filename or str(store.folder)
                    raise
                yield UnitOutcome(unit, None, reason_of(error))
            else:
                yield UnitOutcome(unit, files, seconds=time.monotonic() - began)

    def train(self, study: Study, folder: Path, progress: Progress) -> Run:
        """Train all members by one call, with checkpoints."""
        (student,) = study.students
        run = train_members(study.ensemble(student), out=folder, progress=progress)
        progress(1.0, 1.0)
        return run


def engine_of(options: object) -> contextlib.AbstractContextManager[Engine]:
    """Return the engine that a command asks for, to be entered.

    options  an object with the fields `engine` and DASK_OPTIONS
    """
    given = vars(options)
    if given["engine"] not in ENGINES:
        raise BadInput(f"--engine is {' or '.join(ENGINES)}, not {given['engine']!r}.")
    if given["engine"] == "dask":
        # Here, because dask.distributed is an extra.
        from underhood.sweeps.dask.cluster import cluster_of

        return cluster_of(given).opened()
    for name in DASK_OPTIONS:
        if given[name] not in (None, False):
            option = name.replace("_", "-")
            raise BadInput(f"--{option} is for --engine dask; add that, or leave it out.")
    return contextlib.nullcontext(Local())
