"""What an experiment is asked for: scale, seeds, folder, engine and progress; and its parts."""

import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from underhood.sweeps.engines import Engine, Local, Progress
from underhood.sweeps.study import Study
from underhood.training import Run
from underhood.training.deadline import Deadline, OutOfTime

Item = TypeVar("Item")
Name = TypeVar("Name")
Answer = TypeVar("Answer")
Locks = defaultdict[Path, threading.Lock]


@dataclass(frozen=True)
class Setting:
    """What an experiment is asked for.

    scale     smoke, quick or paper
    seeds     how many; None: the experiment's default
    folder    of the results and of the training runs
    tick      called with what is done so far, of how much
    engine    trains the students
    anew      experiments that the same command runs; their earlier results are not used
    locks     one per run, so that experiments side by side train a shared run once
    """

    scale: str
    seeds: int | None
    folder: Path
    tick: Progress
    engine: Engine = field(default_factory=Local)
    anew: frozenset[str] = frozenset()
    locks: Locks = field(default_factory=lambda: defaultdict(threading.Lock))

    def count(self, default: int) -> int:
        return default if self.seeds is None else self.seeds

    def part(self, start: float, end: float) -> "Setting":
        """Return the setting of a part, whose progress fills ours from start to end."""

        def tick(done: float, total: float) -> None:
            self.tick(start + (end - start) * done / max(total, 1e-9), 1.0)

        return replace(self, tick=tick)

    def over(self, items: Collection[Item]) -> Iterator[Item]:
        """Yield the items, and report the progress through them."""
        for done, item in enumerate(items):
            self.tick(done, len(items))
            yield item
        self.tick(1, 1)

    def each(self, parts: Sequence[tuple[float, Callable[["Setting"], Answer]]]) -> list[Answer]:
        """Run parts, each a weight in the progress and a function; return their answers in order.

        Side by side if the engine is concurrent, else one after the other.
        """
        shares = np.array([weight for weight, _ in parts], float)
        shares /= max(shares.sum(), 1e-9)
        done = np.zeros(len(parts))

        def setting_of(place: int) -> "Setting":
            def tick(part: float, total: float) -> None:
                done[place] = part / max(total, 1e-9)
                self.tick(float(shares @ done), 1.0)

            return replace(self, tick=tick)

        calls = {place: partial(call, setting_of(place)) for place, (_, call) in enumerate(parts)}
        ended = dict(answers(calls, concurrent=self.engine.concurrent))
        return [ended[place] for place in calls]

    def run_folder(self, name: str) -> Path:
        """Return the folder of the run of this name."""
        seeds = "" if self.seeds is None else f"_{self.seeds}_seeds"
        return self.folder / "runs" / f"{name}_{self.scale}{seeds}"

    def train(self, name: str, study: Study) -> Run:
        """Train the run of this name in a folder where it resumes and other experiments read it.

        A run that is finished with the same settings is loaded; delete the folder to train anew.
        """
        folder = self.run_folder(name)
        with self.locks[folder]:
            return self.engine.train(study, folder, self.tick)


def answers(
    calls: Mapping[Name, Callable[[], Answer]], *, concurrent: bool
) -> Iterator[tuple[Name, Answer]]:
    """Yield the name and the answer of every call, as they end; raise what a call raises.

    What is OutOfTime is raised at the end, when the others have stopped and kept what they did.
    """
    if not concurrent:
        yield from ((name, call()) for name, call in calls.items())
        return
    stopped: OutOfTime | None = None
    for name, answer in ended_calls(calls):
        if isinstance(answer, Raised):
            if not isinstance(answer.error, OutOfTime):
                raise answer.error
            stopped = answer.error
        else:
            yield name, answer
    if stopped is not None:
        raise stopped


@dataclass(frozen=True)
class Raised:
    """What a call raised instead of answering."""

    error: BaseException


def ended_calls(
    calls: Mapping[Name, Callable[[], Answer]],
    *,
    concurrent: bool = True,
    until: Deadline | None = None,
) -> Iterator[tuple[Name, Answer | Raised]]:
    """Run calls in threads; yield their names and answers as they end.

    concurrent  side by side, else one after the other
    until       when to stop waiting for those that go on; None: never
    """
    ended: queue.SimpleQueue[tuple[Name, Answer | Raised]] = queue.SimpleQueue()

    def make(name: Name, call: Callable[[], Answer]) -> None:
        try:
            ended.put((name, call()))
        except BaseException as error:
            ended.put((name, Raised(error)))

    # Daemons: Ctrl-C does not wait for an analysis to end.
    waiting = [
        threading.Thread(target=make, args=(name, call), name=str(name), daemon=True)
        for name, call in calls.items()
    ]
    for _ in calls:
        for thread in waiting if concurrent else waiting[:1]:
            thread.start()
        waiting = [] if concurrent else waiting[1:]
        try:
            yield ended.get(timeout=None if until is None else until.left)
        except queue.Empty:
            return
