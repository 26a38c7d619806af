"""Ctrl-C: one line on stderr and exit status 130, whenever it is pressed."""

import atexit
import contextlib
import os
import signal
import sys
from types import CodeType, FrameType


def hear_interrupts(message: str, program: CodeType) -> None:
    """Let Ctrl-C end this process from now on.

    The first Ctrl-C raises KeyboardInterrupt, so that files and workers are closed on the way out.
    It ends the process at once while Python imports a module, where libraries lose exceptions, and
    before or after the program, where nothing is open. A second Ctrl-C always ends it at once.

    program  the code of the function that catches KeyboardInterrupt
    """
    pressed = False

    def hear(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        codes = []
        while frame is not None:
            codes.append(frame.f_code)
            frame = frame.f_back
        importing = any(code.co_filename.startswith("<frozen importlib") for code in codes)
        if pressed or importing or program not in codes:
            leave(message)
        pressed = True
        raise KeyboardInterrupt

    # Python drops an exception that is raised while it frees an object.
    print_dropped = sys.unraisablehook

    def hear_dropped(dropped: "sys.UnraisableHookArgs") -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            leave(message)
        print_dropped(dropped)

    # `nohup` and shells that start a job in the background ignore Ctrl-C; so do we then.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, hear)
        sys.unraisablehook = hear_dropped
        # Registered first, so done last: Python then only frees its memory, and hears nothing.
        atexit.register(signal.pthread_sigmask, signal.SIG_BLOCK, {signal.SIGINT})


def leave(message: str) -> None:
    """Print one line on stderr and end this process now; never return.

    Threads that compile cannot be stopped: Python would wait for them at its end, or crash.
    """
    # SIG_IGN instead would make Python warn about a Ctrl-C that it is just about to handle.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    # A handler may run inside a write to these streams, which then refuse another one.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    with contextlib.suppress(OSError):
        os.write(2, f"underhood: {message}\n".encode())
    os._exit(130)
