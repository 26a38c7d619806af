"""What a person sees while experiments run: a line for each, and the time that is left.

The time left is the sum of the budgets of the experiments that wait, plus what the running ones
still need. Both are scaled by how this machine has kept its budgets so far. Without a terminal a
line is printed when an experiment starts and another when it ends.
"""

import time
from typing import TYPE_CHECKING

from underhood.common.live import LiveDisplay, duration_in_words
from underhood.sweeps.engines import Progress

if TYPE_CHECKING:
    import rich.table

WAITING, RUNNING, FAILED, OUT_OF_TIME = "waits", "runs", "failed", "out of time"


class ExperimentsDisplay(LiveDisplay):
    """Experiments by name, with their budgets of seconds."""

    def __init__(self, budgets: dict[str, int]):
        super().__init__()
        self.budgets = budgets
        self.states = dict.fromkeys(budgets, WAITING)
        self.shares = dict.fromkeys(budgets, 0.0)
        self.seconds: dict[str, float] = {}
        self.began: dict[str, float] = {}

    def start(self, name: str) -> Progress:
        """Begin an experiment; return the function that it reports its progress to."""
        self.states[name], self.began[name] = RUNNING, time.monotonic()
        self.say(f"{name}: runs, {self.left()} left in all")

        def tick(done: float, total: float) -> None:
            self.shares[name] = min(max(done / total if total else 1.0, 0.0), 1.0)

        return tick

    def finish(self, name: str, state: str) -> None:
        """End an experiment; `state` is its verdict, FAILED, or begins with OUT_OF_TIME."""
        self.states[name], self.shares[name] = state, 1.0
        # An experiment that is not finished tells nothing about the pace.
        if name in self.began and not state.startswith((FAILED, OUT_OF_TIME)):
            self.seconds[name] = time.monotonic() - self.began[name]
        took = f" after {self.seconds[name]:.0f} s" if name in self.seconds else ""
        self.say(f"{name}: {state}{took}")

    def left(self) -> str:
        budget = sum(self.budgets[name] for name in self.seconds)
        pace = sum(self.seconds.values()) / budget if budget else 1.0
        rest = 0.0
        for name, state in self.states.items():
            if state in (WAITING, RUNNING):
                gone, share = self.gone(name) or 0.0, self.shares[name]
                # Early on the budget is the better guide.
                by_budget = pace * self.budgets[name] - gone
                rest += max(gone * (1 - share) / share if share > 0.2 else by_budget, 0.0)
        return duration_in_words(rest)

    def gone(self, name: str) -> float | None:
        """Return the seconds an experiment runs or has taken; None if it waits or failed."""
        if self.states[name] == RUNNING:
            return time.monotonic() - self.began[name]
        return self.seconds.get(name)

    def table(self) -> "rich.table.Table":
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        grid = Table.grid(padding=(0, 1))
        for name, state in self.states.items():
            gone = self.gone(name)
            bar = ProgressBar(total=1.0, completed=self.shares[name], width=24)
            grid.add_row(name, bar, "" if gone is None else f"{gone:4.0f} s", state)
        done = sum(state not in (WAITING, RUNNING) for state in self.states.values())
        bar = ProgressBar(total=len(self.states), completed=done, width=24)
        grid.add_row(f"{done} of {len(self.states)}", bar, "", f"{self.left()} left")
        return grid
