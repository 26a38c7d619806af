"""How the process of a command ends: Ctrl-C is one line on stderr and status 130, always."""

import atexit
import contextlib
import os
import signal
import sys
from types import CodeType, FrameType

# What an interrupted command leaves behind.
KEPT = {
    "discover": "; no picture was written",
    "plant": "; networks written so far are whole; start again with --force",
    "reproduce": "; finished work is kept; continue with --resume",
    "sweep": "; finished work is kept; continue with the same command",
}


class Ending:
    """Hears Ctrl-C from now on until this process ends.

    The first Ctrl-C raises KeyboardInterrupt, so that files and workers are closed on the way out.
    It ends the process at once while Python imports a module, where libraries lose exceptions, and
    when the program has returned. A second Ctrl-C always ends the process at once.

    words    the command and its options
    program  code of the function that catches KeyboardInterrupt
    """

    # Of a program that has returned.
    status: int | None = None
    pressed = False

    def __init__(self, words: list[str], program: CodeType):
        self.kept = KEPT.get(words[0], "") if words else ""
        self.program = program
        self.report_dropped = sys.unraisablehook
        # Python calls what was registered first last.
        atexit.register(self.finish)
        # `nohup` and jobs in the background have Ctrl-C ignored; leave that as it is.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self.hear)
            sys.unraisablehook = self.hear_dropped

    def hear(self, number: int, frame: FrameType | None) -> None:
        codes = []
        while frame is not None:
            codes.append(frame.f_code)
            frame = frame.f_back
        importing = any(code.co_filename.startswith("<frozen importlib") for code in codes)
        if self.pressed or importing or self.program not in codes:
            self.leave()
        self.pressed = True
        raise KeyboardInterrupt

    def hear_dropped(self, dropped: "sys.UnraisableHookArgs") -> None:
        """Handle an exception that Python drops, as it does while it frees an object."""
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            self.leave()
        self.report_dropped(dropped)

    def leave(self) -> None:
        """Print one line and end this process now; never return."""
        # Not SIG_IGN: Python would report a second Ctrl-C that it has received but not handled.
        signal.signal(signal.SIGINT, lambda number, frame: None)
        self.status = 130
        self.finish(f"underhood: interrupted{self.kept}.\n")

    def finish(self, line: str = "") -> None:
        """End this process, if it has a status, before Python frees JAX and waits for threads."""
        if self.status is not None:
            # A handler may run inside a write to these streams, which then refuse another one.
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            with contextlib.suppress(OSError):
                os.write(2, line.encode())
            os._exit(self.status)
