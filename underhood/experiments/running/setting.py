"""What an experiment is asked for, where runs that experiments share are kept, and who trains."""

import dataclasses
import functools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from underhood.experiments.running.concurrency import side_by_side
from underhood.sweeps.engines import Engine
from underhood.sweeps.study import Study
from underhood.tasks import Task
from underhood.training import Recipe, Run, train

# Called with what has been done so far, of how much.
Tick = Callable[[float, float], None]
Found = TypeVar("Found")


@dataclass(frozen=True)
class Setting:
    """A scale, the seeds asked for (None: the experiment's own), a folder, and a progress bar.

    engine    who trains; None: this process
    anew      experiments that the same command runs, whose earlier results do not count
    turns     experiments that run side by side and share a run train it once
    """

    scale: str
    seeds: int | None
    folder: Path
    tick: Tick
    engine: Engine | None = None
    anew: frozenset[str] = frozenset()
    turns: defaultdict[Path, threading.Lock] = field(
        default_factory=lambda: defaultdict(threading.Lock)
    )

    def count(self, default: int) -> int:
        """How many seeds to run."""
        return default if self.seeds is None else self.seeds

    def part(self, start: float, end: float) -> "Setting":
        """The same setting for a part of the experiment: its whole is ours from start to end."""

        def tick(done: float, total: float) -> None:
            self.tick(start + (end - start) * done / max(total, 1e-9), 1.0)

        return dataclasses.replace(self, tick=tick)

    def each(self, parts: Sequence[tuple[float, Callable[["Setting"], Found]]]) -> list[Found]:
        """What parts of the experiment give, each with its weight in the progress.

        One after the other in this process; on an engine, whose workers are many, side by side.
        """
        shares = np.array([weight for weight, _ in parts], float)
        shares /= max(shares.sum(), 1e-9)
        done = np.zeros(len(parts))

        def own(place: int) -> "Setting":
            def tick(part: float, total: float) -> None:
                done[place] = part / max(total, 1e-9)
                self.tick(float(shares @ done), 1.0)

            return dataclasses.replace(self, tick=tick)

        calls = {
            place: functools.partial(call, own(place)) for place, (_, call) in enumerate(parts)
        }
        if self.engine is None:
            return [call() for call in calls.values()]
        found = dict(side_by_side(calls))
        return [found[place] for place in calls]

    def runs(self, name: str) -> Path:
        """Where a training run is kept, so that it resumes and other experiments find it.

        A run that is finished with the same settings is loaded; delete the folder to train anew.
        """
        seeds = "" if self.seeds is None else f"_{self.seeds}_seeds"
        return self.folder / "runs" / f"{name}_{self.scale}{seeds}"

    def train(
        self,
        name: str,
        make_student: Callable[..., Any],
        task: Task,
        recipe: Recipe,
        *,
        widths: int | Iterable[int],
        seeds: int,
        key: int,
        axes: Mapping[str, Iterable[Any]] | None = None,
    ) -> Run:
        """A run of this name: trained, continued, or read if it is there already."""
        out = self.runs(name)
        if self.engine is not None:
            widths = (widths,) if isinstance(widths, int) else tuple(widths)
            study = Study(
                task, {"student": make_student}, recipe, widths, seeds, dict(axes or {}), key
            )
            with self.turns[out]:
                return self.engine.train(study, out, self.tick)
        run = train(
            make_student,
            task,
            recipe,
            widths=widths,
            seeds=seeds,
            axes=axes,
            key=jax.random.key(key),
            out=out,
            progress=self.tick,
        )
        self.tick(1.0, 1.0)
        return run
