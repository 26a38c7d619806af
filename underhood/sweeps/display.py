"""What a person sees while a study runs: units done, running, retried, failed, and by worker."""

import sys
import time
from collections import Counter
from typing import Any

from underhood.sweeps.units import Unit

# Units that are told about one by one where there is no terminal.
FEW = 200


class Display:
    """Counts, and an estimate of the time left; a table on a terminal, lines elsewhere."""

    def __init__(self, units: int):
        self.units = units
        self.counts: Counter[str] = Counter()
        self.by_worker: Counter[str] = Counter()
        self.running: set[str] = set()
        self.began = time.monotonic()
        self.said = 0.0
        self.live: Any = None

    def __enter__(self) -> "Display":
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self.live = Live(
                console=Console(stderr=True), get_renderable=self.table, refresh_per_second=4
            )
            self.live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self.live is not None:
            self.live.stop()

    def __call__(self, unit: Unit, what: str, where: str) -> None:
        """Something happened to a unit."""
        if what == "running":
            self.running.add(unit.name)
            return
        self.running.discard(unit.name)
        self.counts[what] += 1
        if what == "done":
            self.by_worker[where] += 1
        # Of very many units a line a second is enough, but not of those that failed.
        now = time.monotonic()
        if self.live is None and (
            what == "failed" or self.units <= FEW or now - self.said > 1 or self.ended == self.units
        ):
            self.said = now
            place = f" on {where}" if where not in ("", "here") else ""
            print(f"{unit}: {what}{place}; {self.told()}", file=sys.stderr, flush=True)

    @property
    def ended(self) -> int:
        """Units that are done, or given up."""
        return self.counts["done"] + self.counts["failed"]

    def told(self) -> str:
        """Where the study stands."""
        ended = self.ended
        told = f"{ended} of {self.units} units"
        for name in ("failed", "retried"):
            told += f", {self.counts[name]} {name}" if self.counts[name] else ""
        if ended and ended < self.units:
            left = (time.monotonic() - self.began) / ended * (self.units - ended)
            told += f", about {left / 60:.0f} min left" if left >= 90 else f", {left:.0f} s left"
        return told

    def table(self) -> Any:
        """The same for a terminal."""
        from rich.table import Table

        table = Table(box=None)
        for name in ("units", "done", "running", "retried", "failed"):
            table.add_column(name, justify="right")
        values = [self.units, self.counts["done"], len(self.running)]
        values += [self.counts["retried"], self.counts["failed"]]
        table.add_row(*map(str, values))
        for worker, count in sorted(self.by_worker.items()):
            table.add_row(worker, str(count))
        table.caption = self.told()
        return table
