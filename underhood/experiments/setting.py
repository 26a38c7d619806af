"""What an experiment is asked for, and where runs that experiments share are kept."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# Called with what has been done so far, of how much.
Tick = Callable[[int, int], None]


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

    def runs(self, name: str) -> Path:
        """Where a training run is kept, so that it resumes and other experiments find it.

        A run that is finished with the same settings is loaded; delete the folder to train anew.
        """
        seeds = "" if self.seeds is None else f"_{self.seeds}_seeds"
        return self.folder / "runs" / f"{name}_{self.scale}{seeds}"
