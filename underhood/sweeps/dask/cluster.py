"""Units on dask.distributed: workers started here, a running scheduler, or a queueing system.

Workers, the scheduler and the client may die or fall silent at any time, and a unit may kill every
worker that takes it. docs/cluster.md says what happens then, here and in `dispatch.py`.
"""

import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from underhood.common.errors import BadInput, refuse
from underhood.common.numbers import whole_problems
from underhood.sweeps.dask.certificates import TLSFiles, check_address, require_dask
from underhood.sweeps.dask.dispatch import Call, Dispatcher
from underhood.sweeps.dask.queueing import Queue
from underhood.sweeps.dask.scheduler import LOOPBACK, SILENCE
from underhood.sweeps.dask.worker import MEMORY_OFFER
from underhood.sweeps.engines import Outcomes, Progress, Watch
from underhood.sweeps.parcels import wrapped
from underhood.sweeps.store import Store
from underhood.sweeps.study import Study
from underhood.sweeps.sweeping import train_in_units
from underhood.sweeps.units import Unit, Work, work
from underhood.training.device import core_numbers
from underhood.training.run import Run

RETRIES = 2
ROUNDS = 5


class LocalWorkers:
    """The scheduler and some workers, each a process, watched by a thread."""

    def __init__(self, workers: int, silence: str = SILENCE):
        self.address = f"tcp://{LOOPBACK}:{(port := free_port())}"
        # The scheduler comes first, because its workers need it.
        self.words = {"scheduler": ["scheduler", str(port), "--silence", silence]}
        # All workers have equal shares of the cores, at least one.
        cores = core_numbers()
        size = max(len(cores) // workers, 1)
        for place in range(workers):
            share = (cores[(place * size + n) % len(cores)] for n in range(size))
            options = ["--name", f"worker-{place}", "--cores", ",".join(map(str, share))]
            self.words[f"worker-{place}"] = ["worker", self.address, *options]
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.restarts = 0
        self.closing = threading.Event()
        self.watcher = threading.Thread(target=self.watch, daemon=True, name="processes")

    def start(self, name: str) -> None:
        """Start a process in a session of its own, which Ctrl-C does not reach."""
        module, *options = self.words[name]
        command = [sys.executable, "-m", f"underhood.sweeps.dask.{module}", *options]
        self.running[name] = subprocess.Popen(
            [*command, "--with-parent", str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def watch(self) -> None:
        while not self.closing.wait(0.3):
            for name in self.words:
                if self.running[name].poll() is not None and not self.closing.is_set():
                    self.restarts += 1
                    self.start(name)

    @contextlib.contextmanager
    def opened(self) -> Iterator["LocalWorkers"]:
        try:
            for name in self.words:
                self.start(name)
            self.watcher.start()
            yield self
        finally:
            self.closing.set()
            if self.watcher.is_alive():
                self.watcher.join()
            stop(list(self.running.values()))


def stop(processes: "list[subprocess.Popen[bytes]]") -> None:
    """Ask processes to end, wait a little, then kill them; frozen ones are woken first."""
    for process in processes:
        for number in (signal.SIGCONT, signal.SIGTERM):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
    until = time.monotonic() + 3
    for process in processes:
        try:
            process.wait(max(until - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


@dataclass
class Cluster:
    """Workers that train units; enter `opened()` first.

    count     start this many workers on this machine; or
    address   of a scheduler that is running; or
    queue     jobs of Slurm, PBS and the like
    needs     use only workers that offer this: gpu, cpu, or a name of your own
    retries   how often a unit that raises is tried again
    rounds    how many workers may die with a unit
    silence   time after which a worker that says nothing is given up
    work      what is done with a unit
    """

    count: int | None = None
    address: str | None = None
    queue: Queue | None = None
    insecure: bool = False
    tls: TLSFiles = field(default_factory=TLSFiles)
    needs: str | None = None
    retries: int = RETRIES
    rounds: int = ROUNDS
    silence: str = SILENCE
    work: Work = work
    concurrent: bool = field(default=True, init=False)
    deadline: None = field(default=None, init=False)
    processes: LocalWorkers | None = field(default=None, init=False)
    dispatcher: Dispatcher | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        require_dask()
        if sum(way is not None for way in (self.count, self.address, self.queue)) != 1:
            ways = "a number of workers, the address of a scheduler, and a jobqueue"
            raise BadInput(f"The engine dask takes one of {ways}.")
        if self.count is not None:
            refuse(whole_problems(workers=self.count), about="the engine dask")
        if self.address is not None:
            check_address(self.address, tls=self.tls.given, insecure=self.insecure)

    @contextlib.contextmanager
    def opened(self) -> Iterator["Cluster"]:
        from distributed import Client

        with contextlib.ExitStack() as held:
            address = self.address
            if self.count is not None:
                started = LocalWorkers(self.count, self.silence)
                self.processes = held.enter_context(started.opened())
                address = started.address
            elif self.queue is not None:
                address = held.enter_context(self.queue.opened(self.tls, self.insecure))
            security = self.tls.security() if isinstance(address, str) else None
            options = {"timeout": 5, "set_as_default": False, "name": "underhood"}
            connect = functools.partial(Client, address, security=security, **options)
            needs = {"unit": 1.0} | ({} if self.needs is None else {self.needs: 1.0})
            self.dispatcher = Dispatcher(connect, self.retries, self.rounds, needs)
            held.callback(self.dispatcher.close)
            self.dispatcher.start()
            yield self

    @property
    def workers(self) -> int:
        """How many workers there are now, or will be."""
        return max(len(self.offers()), self.count or (self.queue.jobs if self.queue else 1))

    @property
    def memory(self) -> int | None:
        """Bytes that the smallest worker has; None: not known."""
        offers = [offer[MEMORY_OFFER] for offer in self.offers() if MEMORY_OFFER in offer]
        return int(min(offers)) if offers else None

    def offers(self) -> list[dict[str, float]]:
        """Return what each worker offers; nothing while there is no connection."""
        with contextlib.suppress(OSError, TimeoutError, KeyError, AttributeError):
            return [] if self.dispatcher is None else self.dispatcher.offers()
        return []

    def run(self, study: Study, units: Sequence[Unit], store: Store, tell: Watch) -> Outcomes:
        """Yield the outcomes of units, as they finish; several threads may ask at once."""
        assert self.dispatcher is not None
        return self.dispatcher.outcomes(Call(wrapped(study, self.work), tell), units)

    def train(self, study: Study, folder: Path, progress: Progress) -> Run:
        return train_in_units(self, study, folder, progress)
