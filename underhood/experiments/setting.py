"""What an experiment is asked for, and where runs that experiments share are kept."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from underhood.tasks import Task
from underhood.training import Recipe, Run, train

# Called with what has been done so far, of how much.
Tick = Callable[[float, float], None]


@dataclass(frozen=True)
class Setting:
    """A scale, the seeds asked for (None: the experiment's own), a folder, and a progress bar."""

    scale: str
    seeds: int | None
    folder: Path
    tick: Tick

    def count(self, default: int) -> int:
        """How many seeds to run."""
        return default if self.seeds is None else self.seeds

    def part(self, start: float, end: float) -> "Setting":
        """The same setting for a part of the experiment: its whole is ours from start to end."""

        def tick(done: float, total: float) -> None:
            self.tick(start + (end - start) * done / max(total, 1e-9), 1.0)

        return dataclasses.replace(self, tick=tick)

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
        run = train(
            make_student,
            task,
            recipe,
            widths=widths,
            seeds=seeds,
            axes=axes,
            key=jax.random.key(key),
            out=self.runs(name),
            progress=self.tick,
        )
        self.tick(1.0, 1.0)
        return run
