"""One thread that hands units to a scheduler and brings their outcomes back to the callers.

Several studies may ask at once. Only a few units per worker are on their way at a time: ten
thousand of them never lie in the scheduler's memory, and what comes back is written before more is
asked for.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any  # futures and clients: distributed has no types

from underhood.common.errors import BadInput, reason_of
from underhood.sweeps.engines import Outcomes, UnitOutcome, Watch
from underhood.sweeps.parcels import unwrapped
from underhood.sweeps.units import Unit

# Units on their way per worker: one that runs, and some in line so that no worker is idle.
AHEAD = 3
# Seconds to wait for a scheduler with workers, at the start and when it is lost.
SCHEDULER_PATIENCE = 60.0
# Seconds for which a count of the workers is used again.
FRESH = 1.0
DIED = "its worker died every time it was tried"


class Lost(Exception):
    """The scheduler is lost, or what it knew of our units."""


@dataclass(eq=False)
class Call:
    """One request for units, and where their outcomes go."""

    parcel: bytes
    tell: Watch
    replies: SimpleQueue[UnitOutcome | BaseException] = field(default_factory=SimpleQueue)
    over: bool = False


@dataclass(eq=False)
class Job:
    """A unit on its way: how often it was tried, raised, and its worker died."""

    call: Call
    unit: Unit
    attempts: int = 0
    failures: int = 0
    deaths: int = 0
    began: float = 0.0


@dataclass(eq=False)
class Dispatcher:
    """Takes jobs to a scheduler and back; `make_client` connects again when it is lost."""

    make_client: Callable[[], Any]  # Any: a client of distributed
    retries: int
    rounds: int
    needs: dict[str, float]

    def __post_init__(self) -> None:
        self.client: Any = None
        self.waiting: deque[Job] = deque()
        self.flying: dict[Any, Job] = {}
        self.suspects: set[Job] = set()
        self.arrived: SimpleQueue[Any] = SimpleQueue()
        self.counted, self.counted_at = 0, float("-inf")
        self.closing = threading.Event()
        self.broken: BaseException | None = None
        self.thread = threading.Thread(target=self.serve, daemon=True, name="dispatcher")

    def start(self) -> None:
        """Connect here, so that a wrong address raises in the caller, then serve."""
        self.connect()
        self.thread.start()

    def close(self) -> None:
        """Stop; calls that still wait get an error."""
        self.closing.set()
        self.arrived.put(None)
        if self.thread.is_alive():
            self.thread.join()
        self.disconnect()

    def outcomes(self, call: Call, units: Sequence[Unit]) -> Outcomes:
        """Put units in line and yield their outcomes; raise what stopped the dispatcher."""
        try:
            self.waiting.extend(Job(call, unit) for unit in units)
            self.arrived.put(None)
            for _ in units:
                reply: UnitOutcome | BaseException | None = None
                while reply is None:
                    try:
                        reply = call.replies.get(timeout=1.0)
                    except Empty:
                        reply = self.broken
                if isinstance(reply, BaseException):
                    raise reply
                yield reply
        finally:
            call.over = True

    def serve(self) -> None:
        """Serve until closed, or until no scheduler answers any more."""
        try:
            while not self.closing.is_set():
                try:
                    self.fill()
                    self.land()
                except (OSError, TimeoutError, RuntimeError, Lost):
                    # The scheduler is gone; all that was on its way is put in line again.
                    for job in reversed(self.flying.values()):
                        job.call.tell(job.unit, "retried", "")
                        self.waiting.appendleft(job)
                    self.flying.clear()
                    self.connect()
            raise BadInput("The sweep was stopped.")
        except BaseException as error:
            self.broken = error
            for job in [*self.waiting, *self.flying.values()]:
                job.call.replies.put(error)

    def fill(self) -> None:
        """Submit units while few enough are on their way."""
        for future, job in list(self.flying.items()):
            if job.call.over:
                del self.flying[future]
                self.suspects.discard(job)
                future.cancel()
        # The scheduler blames all units of a worker that died, also those that only waited there.
        # So while there are suspects, no unit waits at a worker.
        ahead = 1 if self.suspects else AHEAD
        while self.waiting and len(self.flying) < ahead * max(self.workers(), 1):
            job = self.waiting[0]
            if job.call.over:
                self.waiting.popleft()
                self.suspects.discard(job)
                continue
            key = f"unit-{job.unit.name}-{time.monotonic_ns()}"
            future = self.client.submit(
                perform, job.call.parcel, job.unit, key=key, resources=self.needs, retries=0
            )
            self.waiting.popleft()
            job.attempts, job.began = job.attempts + 1, time.monotonic()
            self.flying[future] = job
            future.add_done_callback(self.arrived.put)
            job.call.tell(job.unit, "running", "")

    def land(self) -> None:
        """Handle one unit that has come back, after waiting a moment for it."""
        try:
            future = self.arrived.get(timeout=1.0)
        except Empty:
            if self.client.status not in ("running", "connecting"):
                raise Lost from None
            return
        # None only wakes this thread; other futures may be of a scheduler that was lost since.
        if future is None or future not in self.flying:
            return
        if future.status in ("cancelled", "lost"):
            raise Lost
        job = self.flying[future]
        outcome = self.outcome_of(future, job)
        del self.flying[future]
        future.release()
        self.suspects.discard(job)
        if outcome.files is None and self.again(job, outcome.reason):
            self.waiting.append(job)
            job.call.tell(job.unit, "retried", "")
        else:
            job.call.replies.put(outcome)

    def again(self, job: Job, reason: str) -> bool:
        """Tell whether a unit that failed is tried again, after all that wait."""
        if reason != DIED:
            job.failures += 1
            return job.failures <= self.retries
        job.deaths += 1
        if job.deaths < self.rounds:
            self.suspects.add(job)
        return job.deaths < self.rounds

    def outcome_of(self, future: Any, job: Job) -> UnitOutcome:  # Any: a future
        try:
            if future.status == "error":
                error = future.exception(timeout=30)
            else:
                files, worker, seconds = future.result(timeout=60)
                return UnitOutcome(job.unit, files, "", worker, seconds, job.attempts)
        except (OSError, TimeoutError, RuntimeError):
            raise
        except asyncio.CancelledError:
            raise Lost from None
        except Exception as raised:
            # A worker that dies before its result is fetched takes the result along.
            error = raised
        reason = DIED if type(error).__name__ == "KilledWorker" else reason_of(error)
        seconds = time.monotonic() - job.began
        return UnitOutcome(job.unit, None, reason, seconds=seconds, attempts=job.attempts)

    def workers(self) -> int:
        if time.monotonic() - self.counted_at > FRESH:
            self.counted = len(self.offers())
            self.counted_at = time.monotonic()
        return self.counted

    def offers(self) -> list[dict[str, float]]:
        """Return what each worker offers that could take a unit."""
        workers = self.client.scheduler_info(n_workers=-1)["workers"].values()
        offers = [worker["resources"] for worker in workers]
        needs = self.needs.items()
        return [offer for offer in offers if all(offer.get(name, 0) >= n for name, n in needs)]

    def connect(self) -> None:
        """Make a client; wait for the scheduler, and for a first worker that fits."""
        quiet()
        self.disconnect()
        until = time.monotonic() + SCHEDULER_PATIENCE
        while not self.closing.is_set():
            try:
                self.counted_at = float("-inf")
                if self.client is None:
                    self.client = self.make_client()
                    quiet()
                if self.workers():
                    return
                wanted = ", ".join(name for name in self.needs if name != "unit")
                problem = f"has no worker that offers {wanted}" if wanted else "has no worker"
            except (OSError, TimeoutError, RuntimeError) as error:
                self.disconnect()
                problem = f"does not answer ({reason_of(error)})"
            if time.monotonic() > until:
                start = "python -m underhood.sweeps.dask.worker ADDRESS starts a worker"
                raise BadInput(f"The scheduler {problem}; check the address ({start}).")
            self.closing.wait(0.2)

    def disconnect(self) -> None:
        client, self.client = self.client, None
        if client is not None:
            with contextlib.suppress(Exception):
                client.close(timeout=2)


def quiet() -> None:
    """Silence what distributed logs about lost connections, which we handle."""
    for name in ("distributed", *logging.root.manager.loggerDict):
        if name.partition(".")[0] == "distributed":
            logging.getLogger(name).setLevel(logging.CRITICAL)


def perform(parcel: bytes, unit: Unit) -> tuple[dict[str, bytes], str, float]:
    """Do a unit on the worker: return its files, the worker's name, and the seconds it took."""
    from distributed import get_worker

    began = time.monotonic()
    study, work = unwrapped(parcel)
    files = work(study, unit, progress=False)
    return files, str(get_worker().name), time.monotonic() - began
