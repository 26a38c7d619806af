"""What a person sees while long work runs: a live table on a terminal, lines elsewhere."""

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import rich.console
    import rich.live

Entered = TypeVar("Entered", bound="LiveDisplay")

# Unless asked for, lines begin after this many seconds of work, and come no faster than that.
QUIET_SECONDS = 2.0

LineProgress = bool | Callable[[str], None] | None


class LiveDisplay(ABC):
    """A table on stderr, redrawn while entered; `shown` None: where stderr is a terminal."""

    def __init__(self, shown: bool | None = None):
        self.shown = sys.stderr.isatty() if shown is None else shown
        self.live: rich.live.Live | None = None

    @abstractmethod
    def table(self) -> "rich.console.ConsoleRenderable":
        """Return what to draw now."""

    def __enter__(self: Entered) -> Entered:
        if self.shown:
            # Here, so that importing the package stays fast.
            from rich.console import Console
            from rich.live import Live

            stderr = Console(stderr=True)
            self.live = Live(console=stderr, get_renderable=self.table, refresh_per_second=4)
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def say(self, line: str) -> None:
        """Print a line to stderr where no table is shown."""
        if not self.shown:
            print(line, file=sys.stderr, flush=True)


def duration_in_words(seconds: float) -> str:
    """Return a rough duration: "about 40 s", or "about 3 min" from 90 s on."""
    return f"about {seconds / 60:.0f} min" if seconds >= 90 else f"about {seconds:.0f} s"


def progress_problems(progress: object) -> list[str]:
    """List what stops a value from being a choice of progress."""
    if progress is None or isinstance(progress, bool) or callable(progress):
        return []
    return [f"progress is {progress!r}; give True, False, None or a function of one line"]


class Speaker:
    """Passes lines on.

    shown  a function: called with every line; True: all lines to stderr; False: none; None: lines
           to stderr once the work has taken two seconds, and at most one in two seconds
    """

    def __init__(self, shown: LineProgress):
        self.shown = shown
        self.last = time.monotonic()

    def say(self, line: str, *, long: bool = False) -> None:
        """Pass a line on.

        long  the work that follows will take long, so the line is not held back
        """
        if callable(self.shown):
            self.shown(line)
            return
        now = time.monotonic()
        due = self.shown is None and (long or now - self.last >= QUIET_SECONDS)
        if self.shown or due:
            self.last = now
            print(line, file=sys.stderr, flush=True)
