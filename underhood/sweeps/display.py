"""What a person sees while a study runs: units done, running, retried, failed, and by worker."""

import time
from collections import Counter
from typing import TYPE_CHECKING

from underhood.common.live import LiveDisplay, duration_in_words
from underhood.sweeps.units import Unit

if TYPE_CHECKING:
    import rich.table

# With more units than this, and no terminal, there is a line a second instead of a line per unit.
FEW_UNITS = 200


class SweepDisplay(LiveDisplay):
    """Counts of units and an estimate of the time left; give it to `sweep` as `watch`."""

    def __init__(self) -> None:
        super().__init__()
        self.counts, self.by_worker = Counter[str](), Counter[str]()
        self.running: set[str] = set()
        self.began, self.printed = time.monotonic(), 0.0

    def __call__(self, unit: Unit, event: str, worker: str) -> None:
        """Count an event: "planned", "running", "done", "retried" or "failed"."""
        self.counts[event] += 1
        (self.running.add if event == "running" else self.running.discard)(unit.name)
        if event in ("planned", "running"):
            return
        if event == "done":
            self.by_worker[worker] += 1
        now, last = time.monotonic(), self.ended == self.units
        if event == "failed" or self.units <= FEW_UNITS or now - self.printed > 1 or last:
            self.printed = now
            place = f" on {worker}" if worker not in ("", "here") else ""
            self.say(f"{unit}: {event}{place}; {self.standing()}")

    @property
    def units(self) -> int:
        return self.counts["planned"]

    @property
    def ended(self) -> int:
        return self.counts["done"] + self.counts["failed"]

    def standing(self) -> str:
        counts, ended = self.counts, self.ended
        words = [f"{ended} of {self.units} units"]
        words += [f"{counts[name]} {name}" for name in ("failed", "retried") if counts[name]]
        if 0 < ended < self.units:
            seconds = (time.monotonic() - self.began) / ended * (self.units - ended)
            words.append(f"{duration_in_words(seconds)} left")
        return ", ".join(words)

    def table(self) -> "rich.table.Table":
        from rich.table import Table

        values = {"units": self.units, "done": self.counts["done"], "running": len(self.running)}
        values |= {name: self.counts[name] for name in ("retried", "failed")}
        table = Table(box=None, caption=self.standing())
        for name in values:
            table.add_column(name, justify="right")
        table.add_row(*map(str, values.values()))
        for worker, count in sorted(self.by_worker.items()):
            table.add_row(worker, str(count))
        return table
