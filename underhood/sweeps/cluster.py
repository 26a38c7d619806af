"""Units on dask.distributed: workers of our own on this machine, or a scheduler that is there.

The client submits a few units per worker at a time, so that ten thousand of them never lie in the
scheduler's memory at once, and hands each result to the one who writes as it comes. What goes wrong
is met here:

a worker dies          the scheduler gives its units to others. A unit over which several workers
                       have died is suspected and tried again with nothing queued behind it; after
                       ROUNDS of that it is given up, because it probably kills them
a unit raises          it is tried again, RETRIES times, then reported
a worker is silent     after SILENCE its unit goes to another; a late second result is not kept
the scheduler dies     units that were on their way are submitted again to its successor
the client dies        what was written is found by the next sweep, the rest is done again
"""

import contextlib
import hashlib
import logging
import queue
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from underhood.layers import BadInput
from underhood.sweeps.engines import Outcome, Tell, reason_of
from underhood.sweeps.files import MODULE
from underhood.sweeps.processes import SILENCE, Processes
from underhood.sweeps.security import check_address, security_of
from underhood.sweeps.store import Store
from underhood.sweeps.study import Study
from underhood.sweeps.units import Unit, work

RETRIES = 2
ROUNDS = 3
# Units on their way per worker: one that runs, and some that wait so that no worker does.
AHEAD = 3
# Seconds to wait for a scheduler, at the start and after it was lost.
PATIENCE = 60.0


Work = Callable[..., dict[str, bytes]]


@dataclass
class Cluster:
    """Workers to run units on.

    count     start so many on this machine; or
    address   of a scheduler that is running
    rounds    how often a unit is tried over which workers have died
    silence   after how long a worker that says nothing is given up
    work      what is done with a unit
    """

    count: int | None = None
    address: str | None = None
    insecure: bool = False
    tls: tuple[str | None, str | None, str | None] = (None, None, None)
    retries: int = RETRIES
    rounds: int = ROUNDS
    silence: str = SILENCE
    work: Work = work
    client: Any = field(default=None, init=False)
    processes: Processes | None = field(default=None, init=False)
    arrived: Any = field(default_factory=queue.SimpleQueue, init=False)

    def __post_init__(self) -> None:
        require_dask()
        if (self.count is None) == (self.address is None):
            raise BadInput("Give either --workers N or --address of a scheduler.")
        if self.count is not None and self.count < 1:
            raise BadInput(f"--workers must be at least 1, not {self.count}.")
        if self.address is not None:
            check_address(self.address, tls=any(self.tls), insecure=self.insecure)

    @contextlib.contextmanager
    def opened(self) -> Iterator["Cluster"]:
        """Connect, starting what we are to start."""
        with contextlib.ExitStack() as held:
            if self.count is not None:
                self.processes = held.enter_context(Processes(self.count, self.silence).opened())
                self.address = self.processes.address
            held.callback(self.disconnect)
            self.connect()
            yield self

    def connect(self) -> None:
        """A client; waits for the scheduler, and for a first worker."""
        from distributed import Client

        # What it would say about lost connections is what we are there to mend.
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        self.disconnect()
        until = time.monotonic() + PATIENCE
        while True:
            try:
                self.client = Client(
                    self.address,
                    security=security_of(*self.tls),
                    timeout=5,
                    set_as_default=False,
                    name="underhood",
                )
                self.client.wait_for_workers(1, timeout=max(until - time.monotonic(), 1))
                return
            except (OSError, TimeoutError) as error:
                self.disconnect()
                if time.monotonic() > until:
                    raise BadInput(
                        f"No scheduler with workers answers at {self.address}; start one, or "
                        f"check the address ({reason_of(error)})."
                    ) from None
                time.sleep(0.3)

    def disconnect(self) -> None:
        if self.client is not None:
            with contextlib.suppress(Exception):
                self.client.close(timeout=2)
            self.client = None

    @property
    def workers(self) -> int:
        """How many workers there are now."""
        try:
            return max(len(self.client.scheduler_info(n_workers=-1)["workers"]), self.count or 1)
        except (OSError, TimeoutError, KeyError):
            return self.count or 1

    def run(
        self, study: Study, units: Sequence[Unit], store: Store, tell: Tell
    ) -> Iterator[Outcome]:
        """All units, as they finish."""
        parcel = wrapped(study, self.work)
        waiting = list(reversed(units))
        flying: dict[Any, tuple[Unit, float]] = {}
        suspected: dict[Unit, int] = {}
        while waiting or flying:
            try:
                # The scheduler blames all units of a worker that died, also those that only
                # waited there; with suspects about, none does.
                self.fill(parcel, waiting, flying, 1 if suspected else AHEAD, tell)
                for outcome in self.landed(flying):
                    unit = outcome.unit
                    if outcome.reason == DIED and suspected.get(unit, 0) < self.rounds - 1:
                        suspected[unit] = suspected.get(unit, 0) + 1
                        waiting.insert(0, unit)
                        tell(unit, "retried", "")
                        continue
                    suspected.pop(unit, None)
                    yield outcome
            except (OSError, TimeoutError, RuntimeError, Lost):
                # The scheduler is gone, and with it all that was on its way.
                for unit, _ in flying.values():
                    tell(unit, "retried", "")
                waiting += [unit for unit, _ in reversed(flying.values())]
                flying.clear()
                self.connect()

    def fill(
        self,
        parcel: bytes,
        waiting: list[Unit],
        flying: dict[Any, Any],
        ahead: int,
        tell: Tell,
    ) -> None:
        """Submit units while few enough are on their way."""
        while waiting and len(flying) < ahead * self.workers:
            unit = waiting[-1]
            future = self.client.submit(
                perform,
                parcel,
                unit,
                key=f"unit-{unit.name}-{time.monotonic_ns()}",
                retries=self.retries,
                resources={"unit": 1},
                pure=False,
            )
            waiting.pop()
            flying[future] = (unit, time.monotonic())
            future.add_done_callback(self.arrived.put)
            tell(unit, "running", "")

    def landed(self, flying: dict[Any, tuple[Unit, float]]) -> Iterator[Outcome]:
        """Units that have come back, after waiting a moment for one."""
        try:
            future = self.arrived.get(timeout=1.0)
        except queue.Empty:
            if self.client.status not in ("running", "connecting"):
                raise Lost from None
            return
        if future not in flying:
            # Of a scheduler that was lost since.
            return
        if future.status in ("cancelled", "lost"):
            raise Lost
        unit, began = flying[future]
        outcome = self.outcome_of(future, unit, began)
        del flying[future]
        future.release()
        yield outcome

    def outcome_of(self, future: Any, unit: Unit, began: float) -> Outcome:
        """What a future holds: files, or the reason why not."""
        if future.status == "error":
            error = future.exception(timeout=30)
            return Outcome(unit, None, told(error), seconds=time.monotonic() - began)
        files, worker, seconds = future.result(timeout=60)
        return Outcome(unit, files, worker=worker, seconds=seconds)


DIED = "its workers died, every time it was tried"


class Lost(Exception):
    """The scheduler, or what it knew of our units."""


def told(error: Any) -> str:
    """Why a unit failed, in words."""
    if type(error).__name__ == "KilledWorker":
        return DIED
    return reason_of(error)


def wrapped(study: Study, own_work: Work) -> bytes:
    """As they travel: functions of the study's own file go along, workers need not have it.

    One parcel of bytes, which the scheduler passes on without looking inside.
    """
    import cloudpickle

    module = sys.modules.get(MODULE)
    if module is None:
        return bytes(cloudpickle.dumps((study, own_work)))
    cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps((study, own_work)))
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def perform(parcel: bytes, unit: Unit) -> tuple[dict[str, bytes], str, float]:
    """On the worker: train a unit."""
    from distributed import get_worker

    began = time.monotonic()
    study, own_work = opened(hashlib.sha256(parcel).hexdigest(), parcel)
    files = own_work(study, unit, progress=False)
    return files, str(get_worker().name), time.monotonic() - began


@lru_cache(maxsize=4)
def opened(digest: str, parcel: bytes) -> tuple[Study, Work]:
    """A study and what to do with it, as they travelled; the same ones are unpacked once."""
    import cloudpickle

    study, own_work = cloudpickle.loads(parcel)
    return study, own_work


def require_dask() -> None:
    """One line where the extra is missing."""
    try:
        import cloudpickle  # noqa: F401
        import distributed  # noqa: F401
    except ImportError:
        raise BadInput(
            "The engine dask needs the extra cluster: pip install 'underhood[cluster]'."
        ) from None
