"""Units on dask.distributed: workers of our own on this machine, a scheduler that is there, or jobs
of a queueing system.

What goes wrong is met here and in `dispatch.py` and `processes.py`:

a worker dies          its units are suspected, and tried again with nothing queued behind them; one
                       over which ROUNDS workers have died is given up, because it probably kills
                       them
a unit raises          it is tried again, RETRIES times, then reported
a worker is silent     after SILENCE its unit goes to another; a late second result is not kept
the scheduler dies     units that were on their way are submitted again to its successor
the client dies        what was written is found by the next sweep, the rest is done again
"""

import contextlib
import queue
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from underhood.common.errors import BadInput
from underhood.sweeps.dask.dispatch import Call, Dispatcher
from underhood.sweeps.dask.processes import Processes
from underhood.sweeps.dask.queueing import Queue
from underhood.sweeps.dask.remote import wrapped
from underhood.sweeps.dask.scheduler import SILENCE
from underhood.sweeps.dask.security import Certificates, check_address
from underhood.sweeps.dask.worker import MEMORY
from underhood.sweeps.engines import Outcome, Progress, Tell
from underhood.sweeps.runs import train_on
from underhood.sweeps.store import Store
from underhood.sweeps.study import Study
from underhood.sweeps.units import Unit, Work, work
from underhood.training import Run

RETRIES = 2
ROUNDS = 5


@dataclass
class Cluster:
    """Workers to run units on.

    count     start so many on this machine; or
    address   of a scheduler that is running; or
    queue     jobs of Slurm, PBS and the like
    needs     run on workers that offer this: gpu, cpu, or a name of one's own
    retries   how often a unit that raises is tried again
    rounds    how many workers may die over a unit
    silence   after how long a worker that says nothing is given up
    work      what is done with a unit
    """

    count: int | None = None
    address: str | None = None
    queue: Queue | None = None
    insecure: bool = False
    tls: Certificates = field(default_factory=Certificates)
    needs: str | None = None
    retries: int = RETRIES
    rounds: int = ROUNDS
    silence: str = SILENCE
    work: Work = work
    concurrent: bool = field(default=True, init=False)
    processes: Processes | None = field(default=None, init=False)
    dispatcher: Dispatcher | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        require_dask()
        if sum(one is not None for one in (self.count, self.address, self.queue)) != 1:
            raise BadInput(
                "--engine dask takes one of --workers N, --address of a scheduler, and --jobqueue "
                "FILE."
            )
        if self.count is not None and self.count < 1:
            raise BadInput(f"--workers must be at least 1, not {self.count}.")
        if self.address is not None:
            check_address(self.address, tls=self.tls.given, insecure=self.insecure)
        self.tls.check()

    @contextlib.contextmanager
    def opened(self) -> Iterator["Cluster"]:
        """Connect, starting what we are to start."""
        from distributed import Client

        with contextlib.ExitStack() as held:
            address: Any = self.address
            if self.count is not None:
                own = Processes(self.count, self.silence)
                self.processes = held.enter_context(own.opened())
                address = self.processes.address
            elif self.queue is not None:
                address = held.enter_context(self.queue.opened(self.tls, self.insecure))

            def connect() -> Client:
                return Client(
                    address,
                    security=self.tls.security() if isinstance(address, str) else None,
                    timeout=5,
                    set_as_default=False,
                    name="underhood",
                )

            needs = {"unit": 1.0} | ({} if self.needs is None else {self.needs: 1.0})
            self.dispatcher = Dispatcher(
                connect, retries=self.retries, rounds=self.rounds, needs=needs
            )
            held.callback(self.dispatcher.close)
            self.dispatcher.start()
            yield self

    @property
    def workers(self) -> int:
        """How many workers there are now, or will be."""
        asked = self.count or (self.queue.jobs if self.queue else 1)
        try:
            assert self.dispatcher is not None
            return max(self.dispatcher.workers(), asked)
        except (OSError, TimeoutError, KeyError, AttributeError):
            return asked

    @property
    def memory(self) -> int | None:
        """What the smallest worker has."""
        with contextlib.suppress(OSError, TimeoutError, KeyError, AttributeError):
            assert self.dispatcher is not None
            offers = [one[MEMORY] for one in self.dispatcher.offers() if MEMORY in one]
            return int(min(offers)) if offers else None
        return None

    def run(
        self, study: Study, units: Sequence[Unit], store: Store, tell: Tell
    ) -> Iterator[Outcome]:
        """All units, as they finish; several threads may ask at once."""
        assert self.dispatcher is not None
        call = Call(wrapped(study, self.work), tell)
        try:
            self.dispatcher.ask(call, list(units))
            for _ in units:
                yield self.next_of(call)
        finally:
            call.over = True

    def train(self, study: Study, folder: Path, progress: Progress) -> Run:
        """In units, on all workers."""
        return train_on(self, study, folder, progress)

    def next_of(self, call: Call) -> Outcome:
        """The next outcome; raises what stopped the dispatcher."""
        assert self.dispatcher is not None
        while True:
            try:
                found = call.reply.get(timeout=1.0)
            except queue.Empty:
                found = self.dispatcher.broken
            if isinstance(found, BaseException):
                raise found
            if found is not None:
                outcome: Outcome = found
                return outcome


def require_dask() -> None:
    """One line where the extra is missing."""
    try:
        import cloudpickle  # noqa: F401
        import distributed  # noqa: F401
    except ImportError:
        raise BadInput(
            "The engine dask needs the extra cluster: pip install 'underhood[cluster]'."
        ) from None
