"""Engines train: the work units of a sweep, in any order, or one run as a whole.

Local     in this process, one unit after the other; what was stopped goes on where it was
Cluster   on dask.distributed (`dask/cluster.py`)
"""

import errno
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax

from underhood.common.errors import reason_of
from underhood.sweeps.store import Store
from underhood.sweeps.study import Study
from underhood.sweeps.units import Unit, work
from underhood.training import Run, train
from underhood.training.device import free_memory

# Told (unit, what happened to it, where): "running", "done", "retried", "failed".
Tell = Callable[[Unit, str, str], None]
# Called with what is done so far, of how much.
Progress = Callable[[float, float], None]


@dataclass(frozen=True)
class Outcome:
    """A unit's files, or why it has none; where it ran, for how long, and how often."""

    unit: Unit
    files: dict[str, bytes] | None
    reason: str = ""
    worker: str = "here"
    seconds: float = 0.0
    attempts: int = 1


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

    def run(
        self, study: Study, units: Sequence[Unit], store: Store, tell: Tell
    ) -> Iterator[Outcome]:
        """Yield the outcome of every unit, as they finish."""

    def train(self, study: Study, folder: Path, progress: Progress) -> Run:
        """Train the one student of a study at all widths, axes and seeds, or go on, or read it.

        folder    keeps the run, whoever trains it: any engine goes on with what is finished there
        progress  called with what is done so far, of how much
        """


@dataclass(frozen=True)
class Local:
    """Units in this process."""

    workers: int = field(default=1, init=False)
    concurrent: bool = field(default=False, init=False)
    progress: Any = None

    @property
    def memory(self) -> int | None:
        return free_memory()

    def run(
        self, study: Study, units: Sequence[Unit], store: Store, tell: Tell
    ) -> Iterator[Outcome]:
        """One after the other; a unit that fails does not stop the rest."""
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
                yield Outcome(unit, None, reason_of(error))
                continue
            yield Outcome(unit, files, seconds=time.monotonic() - began)

    def train(self, study: Study, folder: Path, progress: Progress) -> Run:
        """As a whole, with checkpoints."""
        (make_student,) = study.students.values()
        run = train(
            make_student,
            study.task,
            study.recipe,
            widths=study.widths,
            seeds=study.seeds,
            axes=study.axes,
            key=jax.random.key(study.key),
            out=folder,
            progress=progress,
        )
        progress(1.0, 1.0)
        return run
