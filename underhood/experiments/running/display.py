"""What a person sees while experiments run: one line each, and the time that is left.

The time left is what the budgets of the experiments that wait add up to, plus what the running one
still needs; both are scaled by how this machine has kept its budgets so far. Without a terminal
there is one line when an experiment starts and one when it ends.
"""

import sys
import time
from typing import Any

from underhood.experiments.running.setting import Tick

WAITING, RUNNING, FAILED = "waits", "runs", "failed"


class Display:
    """The experiments by name, with their budgets of seconds."""

    def __init__(self, budgets: dict[str, int]):
        self.budgets = budgets
        self.states = dict.fromkeys(budgets, WAITING)
        self.shares = dict.fromkeys(budgets, 0.0)
        self.seconds: dict[str, float] = {}
        self.began: dict[str, float] = {}
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

    def start(self, name: str) -> Tick:
        """An experiment begins; the function that it reports its progress to."""
        self.states[name], self.began[name] = RUNNING, time.monotonic()
        if self.live is None:
            print(f"{name}: runs, {self.left()} left in all", file=sys.stderr, flush=True)

        def tick(done: float, total: float) -> None:
            self.shares[name] = min(max(done / total if total else 1.0, 0.0), 1.0)

        return tick

    def finish(self, name: str, state: str) -> None:
        """An experiment has ended."""
        self.states[name], self.shares[name] = state, 1.0
        # One that failed says nothing about the pace.
        if name in self.began and state != FAILED:
            self.seconds[name] = time.monotonic() - self.began[name]
        if self.live is None:
            took = f" after {self.seconds[name]:.0f} s" if name in self.seconds else ""
            print(f"{name}: {state}{took}", file=sys.stderr, flush=True)

    def left(self) -> str:
        """The time left, for people."""
        spent = sum(self.seconds.values())
        foreseen = sum(self.budgets[name] for name in self.seconds)
        pace = spent / foreseen if foreseen else 1.0
        rest = 0.0
        for name, state in self.states.items():
            if state == WAITING:
                rest += pace * self.budgets[name]
            elif state == RUNNING:
                gone, share = time.monotonic() - self.began[name], self.shares[name]
                # Early on the budget says more than a share of almost nothing.
                own = (
                    gone * (1 - share) / share if share > 0.2 else pace * self.budgets[name] - gone
                )
                rest += max(own, 0.0)
        return f"about {rest / 60:.0f} min" if rest >= 90 else f"about {rest:.0f} s"

    def table(self) -> Any:
        """One line per experiment, drawn anew a few times a second."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        grid = Table.grid(padding=(0, 1))
        for name, state in self.states.items():
            gone = self.seconds.get(name)
            if state == RUNNING:
                gone = time.monotonic() - self.began[name]
            bar = ProgressBar(total=1.0, completed=self.shares[name], width=24)
            grid.add_row(name, bar, "" if gone is None else f"{gone:4.0f} s", state)
        done = sum(state not in (WAITING, RUNNING) for state in self.states.values())
        bar = ProgressBar(total=len(self.states), completed=done, width=24)
        grid.add_row(f"{done} of {len(self.states)}", bar, "", f"{self.left()} left")
        return grid
