"""What a person sees while long work runs: a live table on a terminal, lines elsewhere."""

import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import rich.console
    import rich.live

Entered = TypeVar("Entered", bound="LiveDisplay")


class LiveDisplay(ABC):
    """A table on stderr, redrawn four times a second while the display is entered.

    shown  whether to show the table; None: where stderr is a terminal
    """

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

            self.live = Live(
                console=Console(stderr=True), get_renderable=self.table, refresh_per_second=4
            )
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
