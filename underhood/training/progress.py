"""What a person sees while training runs, and how Ctrl-C is heard."""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


class Stop:
    """Whether somebody asked to stop."""

    asked = False


@contextlib.contextmanager
def stop_on_interrupt(tell: Callable[[], None]) -> Iterator[Stop]:
    """The first Ctrl-C asks the run to stop after its chunk; the second one stops it at once."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.getsignal(signal.SIGINT)

    def hear(number: int, frame: Any) -> None:
        if stop.asked:
            signal.signal(signal.SIGINT, before)
            raise KeyboardInterrupt
        stop.asked = True
        tell()

    signal.signal(signal.SIGINT, hear)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


class Bar:
    """A bar with steps, losses of the best and the median member, speed and time left."""

    def __init__(self, steps: int, members: int, shown: bool | Callable[[int, int], None] | None):
        self.members = members
        self.told_to = shown if callable(shown) else None
        self.shown = False if callable(shown) else sys.stderr.isatty() if shown is None else shown
        self.total = steps
        self.display: Any = None

    def __enter__(self) -> "Bar":
        if self.shown:
            # Here, so that importing the package stays fast.
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
            from rich.table import Column

            def text(what: str) -> TextColumn:
                return TextColumn(what, table_column=Column(no_wrap=True))

            # The bar takes what the numbers leave, because the numbers are what people watch.
            self.display = Progress(
                text("{task.description}"),
                BarColumn(bar_width=None, table_column=Column(ratio=1)),
                text("{task.completed:.0f}/{task.total:.0f}"),
                text("{task.fields[losses]}"),
                text("{task.fields[speed]}"),
                TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
                console=Console(stderr=True),
                expand=True,
            )
            self.task = self.display.add_task(
                self.told("compiling"), total=self.total, losses="", speed=""
            )
            self.display.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self.display is not None:
            self.display.stop()

    def update(self, step: int, losses: np.ndarray, steps_per_second: float) -> None:
        """Show where the run stands."""
        if self.told_to is not None:
            self.told_to(step, self.total)
        if self.display is None:
            return
        finite = losses[np.isfinite(losses)]
        lost = len(losses) - len(finite)
        told = f"best {finite.min():.1e} median {np.median(finite):.1e}" if len(finite) else ""
        self.display.update(
            self.task,
            completed=step,
            description=self.told(f"{lost} lost" if lost else ""),
            losses=told,
            speed=f"{steps_per_second:.0f}/s",
        )

    def say(self, what: str) -> None:
        """Name what is going on, beside the bar."""
        if self.display is not None:
            self.display.update(self.task, description=self.told(what))

    def told(self, more: str) -> str:
        students = f"{self.members} student{'s' if self.members > 1 else ''}"
        return f"{students}, {more}" if more else students
