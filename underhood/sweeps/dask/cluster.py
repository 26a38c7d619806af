"""Units on dask.distributed: workers started here, a running scheduler, or a queueing system.

Faults are handled here and in `dispatch.py` and `processes.py`:

a worker dies       its units are suspects and are tried again with nothing queued behind them; a
                    unit with which ROUNDS workers have died is given up: it probably kills them
a unit raises       it is tried again, RETRIES times, then reported
a worker is silent  after SILENCE its unit goes to another; a late second result is not kept
the scheduler dies  units that were on their way are submitted again to its successor
the client dies     what was written is found by the next sweep, the rest is done again
"""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from underhood.common.errors import BadInput, refuse
from underhood.common.files import Json
from underhood.common.numbers import whole_problems
from underhood.sweeps.dask.certificates import Certificates, check_address
from underhood.sweeps.dask.dispatch import Call, Dispatcher
from underhood.sweeps.dask.processes import Processes
from underhood.sweeps.dask.queueing import Queue
from underhood.sweeps.dask.remote import wrapped
from underhood.sweeps.dask.scheduler import SILENCE
from underhood.sweeps.dask.worker import MEMORY_OFFER
from underhood.sweeps.engines import TLS_OPTIONS, Outcomes, Progress, Watch
from underhood.sweeps.store import Store
from underhood.sweeps.study import Study
from underhood.sweeps.sweeping import train_in_units
from underhood.sweeps.units import Unit, Work, work
from underhood.training.run import Run

RETRIES = 2
ROUNDS = 5


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
        if sum(way is not None for way in (self.count, self.address, self.queue)) != 1:
            ways = "--workers N, --address of a scheduler, and --jobqueue FILE"
            raise BadInput(f"--engine dask takes one of {ways}.")
        if self.count is not None:
            refuse(whole_problems(workers=self.count), about="--engine dask")
        if self.address is not None:
            check_address(self.address, tls=self.tls.given, insecure=self.insecure)
        self.tls.check()

    @contextlib.contextmanager
    def opened(self) -> Iterator["Cluster"]:
        """Start what is to be started, and connect."""
        from distributed import Client

        with contextlib.ExitStack() as held:
            address = self.address
            if self.count is not None:
                started = Processes(self.count, self.silence)
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
        asked = self.count or (self.queue.jobs if self.queue else 1)
        return max(len(self.offers()), asked)

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


def cluster_of(options: Json) -> Cluster:
    """Return the cluster that options of the command line ask for."""
    require_dask()
    jobs = options["jobqueue"]
    return Cluster(
        count=options["workers"],
        address=options["address"],
        queue=None if jobs is None else Queue.read(jobs),
        needs=options["needs"],
        insecure=options["insecure"],
        tls=Certificates(*(options[name] for name in TLS_OPTIONS)),
    )


def require_dask() -> None:
    try:
        import cloudpickle  # noqa: F401
        import distributed  # noqa: F401
    except ImportError:
        advice = "pip install 'underhood[cluster]'"
        raise BadInput(f"The engine dask needs the extra cluster: {advice}.") from None
