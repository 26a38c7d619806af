"""What a person sees while training runs, and how Ctrl-C is heard."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING

import numpy as np

from underhood.common.live import LiveDisplay

if TYPE_CHECKING:
    import rich.table


@contextlib.contextmanager
def stop_on_interrupt(heard: Callable[[], None]) -> Iterator[threading.Event]:
    """Set the event at the first Ctrl-C and call `heard`; raise at once at the second."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            signal.signal(signal.SIGINT, before)
            raise KeyboardInterrupt
        stop.set()
        heard()

    signal.signal(signal.SIGINT, handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


class Bar(LiveDisplay):
    """A bar with activity, steps, losses of the best and median member, speed and time left."""

    def __init__(self, steps: int, members: int, shown: bool | Callable[[int, int], None] | None):
        super().__init__(False if callable(shown) else shown)
        self.report = shown if callable(shown) else lambda done, steps: None
        self.students = f"{members} student{'s' if members > 1 else ''}"
        self.steps, self.done, self.numbers = steps, 0, ("", "", "")
        self.activity = "compiling"

    def update(self, step: int, losses: np.ndarray, speed: float) -> None:
        """Show where the run stands; `speed` is in steps per second."""
        self.report(step, self.steps)
        finite = losses[np.isfinite(losses)]
        lost = len(losses) - len(finite)
        shown = f"best {finite.min():.1e} median {np.median(finite):.1e}" if len(finite) else ""
        left = str(timedelta(seconds=round((self.steps - step) / speed)))
        self.done, self.numbers = step, (shown, f"{speed:.0f}/s", left)
        self.activity = f"{lost} lost" if lost else ""

    def table(self) -> "rich.table.Table":
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        grid = Table.grid(padding=(0, 1), expand=True)
        for place in range(6):
            # The bar takes what the numbers leave, because the numbers are what people watch.
            grid.add_column(no_wrap=True, ratio=1 if place == 1 else None)
        activity = ", ".join(filter(None, (self.students, self.activity)))
        bar = ProgressBar(total=self.steps, completed=self.done)
        grid.add_row(activity, bar, f"{self.done}/{self.steps}", *self.numbers)
        return grid
