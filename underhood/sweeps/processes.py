"""Training in several processes of this machine.

One student leaves most of an accelerator idle, and one process trains one run at a time. So several
processes share the device; each trains the next run, or the next unit of a sweep. This process
plans, reads and judges.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from queue import Empty
from typing import Any  # what a queue between processes is, has no public type

from underhood.common.errors import BadInput, reason_of, refuse
from underhood.common.numbers import whole_problems
from underhood.sweeps.engines import Local, Outcomes, Progress, Stored, UnitOutcome, Watch
from underhood.sweeps.parcels import unwrapped, wrapped
from underhood.sweeps.store import Store
from underhood.sweeps.study import Study
from underhood.sweeps.units import Unit, work
from underhood.training.deadline import Deadline
from underhood.training.device import free_memory
from underhood.training.run import Run

# Each process takes device memory as it needs it. JAX's default gives the first process most of it.
SHARE_THE_DEVICE = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
SECONDS_BETWEEN_REPORTS = 0.5
ENDED = "A training process ended early, perhaps for want of memory; use fewer --workers, then run \
the same command again. Finished work is kept."


class Processes:
    """An engine of `count` processes, which run while it is opened."""

    concurrent = True

    def __init__(self, count: int, deadline: Deadline | None = None):
        refuse(whole_problems(**{"--workers": count}), about="processes")
        self.workers, self.deadline = count, deadline
        self.listeners: dict[str, Progress] = {}

    @property
    def memory(self) -> int | None:
        free = free_memory()
        return None if free is None else free // self.workers

    @contextlib.contextmanager
    def opened(self) -> Iterator["Processes"]:
        """Start the processes, and end them at the end; what they trained is on the disk."""
        context = multiprocessing.get_context("spawn")
        self.reports = context.Queue()
        pool = ProcessPoolExecutor(self.workers, context, begin_process, (self.reports,))
        over = threading.Event()
        # A process starts when it is first needed, and inherits this environment.
        before = dict(os.environ)
        os.environ.update({name: os.environ.get(name, of) for name, of in SHARE_THE_DEVICE.items()})
        threading.Thread(target=self.pass_on, args=(over,), daemon=True).start()
        self.pool = pool
        try:
            yield self
        finally:
            over.set()
            os.environ.clear()
            os.environ.update(before)
            running = list((pool._processes or {}).values())
            pool.shutdown(wait=False, cancel_futures=True)
            for process in running:
                process.terminate()

    def pass_on(self, over: threading.Event) -> None:
        """Call whoever waits for a run with the progress that its process reports."""
        while not over.is_set():
            with contextlib.suppress(Empty):
                folder, done, total = self.reports.get(timeout=SECONDS_BETWEEN_REPORTS)
                self.listeners.get(folder, lambda done, total: None)(done, total)

    def train(self, study: Study, folder: Path, progress: Progress) -> Run:
        """Train a run in the next free process, and read it."""
        self.listeners[str(folder)] = progress
        try:
            self.pool.submit(train_run, wrapped(study, work), folder, self.deadline).result()
        except BrokenProcessPool:
            raise BadInput(ENDED) from None
        finally:
            del self.listeners[str(folder)]
        return Stored().train(study, folder, progress)

    def run(self, study: Study, units: Sequence[Unit], store: Store, tell: Watch) -> Outcomes:
        """Train the units as processes become free; a unit that fails does not stop the rest."""
        parcel, began = wrapped(study, work), time.monotonic()
        futures: dict[Future[dict[str, bytes]], Unit] = {}
        for unit in units:
            tell(unit, "running", "a process")
            futures[self.pool.submit(train_unit, parcel, unit, store.scratch(unit))] = unit
        for future in as_completed(futures):
            try:
                files = future.result()
            except BrokenProcessPool:
                raise BadInput(ENDED) from None
            except Exception as error:
                yield UnitOutcome(futures[future], None, reason_of(error), "a process")
            else:
                seconds = time.monotonic() - began
                yield UnitOutcome(futures[future], files, worker="a process", seconds=seconds)


# Set in each process by `begin_process`. Any: as above.
reports_to_parent: Any = None


def begin_process(reports: Any) -> None:  # Any: as above
    """Leave Ctrl-C to the parent, and end with it."""
    global reports_to_parent
    reports_to_parent = reports
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None, "a process of the pool has a parent"

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def train_run(parcel: bytes, folder: Path, deadline: Deadline | None) -> None:
    """Train the run of a study into a folder; a finished one stays as it is."""
    study, _ = unwrapped(parcel)
    report = rarely(lambda *now: reports_to_parent.put((str(folder), *now)))
    Local(deadline).train(study, folder, report)


def train_unit(parcel: bytes, unit: Unit, scratch: Path) -> dict[str, bytes]:
    """Train a unit of a sweep and return its files."""
    study, do = unwrapped(parcel)
    return do(study, unit, out=scratch, progress=False)


def rarely(report: Callable[[float, float], None]) -> Progress:
    """Return a report of progress that is passed on twice a second at most."""
    last = 0.0

    def tick(done: float, total: float) -> None:
        nonlocal last
        if time.monotonic() - last > SECONDS_BETWEEN_REPORTS:
            last = time.monotonic()
            report(done, total)

    return tick
