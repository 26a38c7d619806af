"""What an experiment is asked for: scale, seeds, folder, engine and progress."""

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from underhood.experiments.running.concurrency import Answer, side_by_side
from underhood.layers import Layer
from underhood.sweeps.engines import Engine, Local, Progress
from underhood.sweeps.study import Study
from underhood.tasks import Task
from underhood.training import Recipe, Run

Item = TypeVar("Item")


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
    locks: defaultdict[Path, threading.Lock] = field(
        default_factory=lambda: defaultdict(threading.Lock)
    )

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
        """Run the parts of an experiment and return their answers in order.

        Side by side if the engine is concurrent, else one after the other.

        parts   pairs of a weight in the progress and a function
        """
        shares = np.array([weight for weight, _ in parts], float)
        shares /= max(shares.sum(), 1e-9)
        done = np.zeros(len(parts))

        def setting_of(place: int) -> "Setting":
            def tick(part: float, total: float) -> None:
                done[place] = part / max(total, 1e-9)
                self.tick(float(shares @ done), 1.0)

            return replace(self, tick=tick)

        calls = [partial(call, setting_of(place)) for place, (_, call) in enumerate(parts)]
        if not self.engine.concurrent:
            return [call() for call in calls]
        answers = dict(side_by_side(dict(enumerate(calls))))
        return [answers[place] for place in range(len(calls))]

    def run_folder(self, name: str) -> Path:
        """Return the folder of a training run, where it resumes and other experiments read it.

        A run that is finished with the same settings is loaded; delete the folder to train anew.
        """
        seeds = "" if self.seeds is None else f"_{self.seeds}_seeds"
        return self.folder / "runs" / f"{name}_{self.scale}{seeds}"

    def train(
        self,
        name: str,
        make_student: Callable[..., Layer],
        task: Task,
        recipe: Recipe,
        *,
        widths: Iterable[int],
        seeds: int,
        key: int,
        axes: Mapping[str, Iterable[float]] | None = None,
    ) -> Run:
        """Train the run of this name, or continue it, or read it if it is finished."""
        students, axes = {"student": make_student}, dict(axes or {})
        study = Study(task, students, recipe, tuple(widths), seeds, axes, key)
        folder = self.run_folder(name)
        with self.locks[folder]:
            return self.engine.train(study, folder, self.tick)
