"""What a person sees while training runs, and how Ctrl-C is heard."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

import numpy as np

from underhood.common.live import LiveDisplay

if TYPE_CHECKING:
    import rich.console
    import rich.progress


class Stop:
    """Whether somebody asked to stop."""

    asked = False


@contextlib.contextmanager
def stop_on_interrupt(heard: Callable[[], None]) -> Iterator[Stop]:
    """Ask for a stop at the first Ctrl-C, after the chunk; stop at once at the second.

    heard  called at the first Ctrl-C
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.asked:
            signal.signal(signal.SIGINT, before)
            raise KeyboardInterrupt
        stop.asked = True
        heard()

    signal.signal(signal.SIGINT, handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


class Bar(LiveDisplay):
    """A bar with steps, losses of the best and the median member, speed and time left.

    shown  whether to show it; None: where stderr is a terminal; or a function that is called with
           (steps done, steps in all) instead
    """

    def __init__(self, steps: int, members: int, shown: bool | Callable[[int, int], None] | None):
        super().__init__(False if callable(shown) else shown)
        self.report = shown if callable(shown) else None
        self.steps, self.members = steps, members
        self.progress = self.new_progress() if self.shown else None

    def new_progress(self) -> "rich.progress.Progress":
        """Return the columns of the bar."""
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column

        def text(template: str) -> TextColumn:
            return TextColumn(template, table_column=Column(no_wrap=True))

        # The bar takes what the numbers leave, because the numbers are what people watch.
        progress = Progress(
            text("{task.description}"),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            text("{task.completed:.0f}/{task.total:.0f}"),
            text("{task.fields[losses]}"),
            text("{task.fields[speed]}"),
            TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
            expand=True,
        )
        progress.add_task(self.students("compiling"), total=self.steps, losses="", speed="")
        return progress

    def table(self) -> "rich.console.ConsoleRenderable":
        """Return the bar as it is now."""
        assert self.progress is not None
        return self.progress.make_tasks_table(self.progress.tasks)

    def update(self, step: int, losses: np.ndarray, steps_per_second: float) -> None:
        """Show where the run stands."""
        if self.report is not None:
            self.report(step, self.steps)
        if self.progress is None:
            return
        finite = losses[np.isfinite(losses)]
        lost = len(losses) - len(finite)
        shown = f"best {finite.min():.1e} median {np.median(finite):.1e}" if len(finite) else ""
        self.progress.update(
            self.progress.task_ids[0],
            completed=step,
            description=self.students(f"{lost} lost" if lost else ""),
            losses=shown,
            speed=f"{steps_per_second:.0f}/s",
        )

    def describe(self, activity: str) -> None:
        """Name what is going on, beside the bar."""
        if self.progress is not None:
            self.progress.update(self.progress.task_ids[0], description=self.students(activity))

    def students(self, more: str) -> str:
        """Return how many students there are, and more about them."""
        count = f"{self.members} student{'s' if self.members > 1 else ''}"
        return f"{count}, {more}" if more else count
