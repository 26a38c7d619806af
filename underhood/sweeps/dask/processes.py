"""A scheduler and workers of our own, on loopback; whichever dies is started again."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

from underhood.sweeps.dask.scheduler import LOOPBACK, SILENCE
from underhood.training.device import core_numbers


class Processes:
    """The scheduler and some workers, each a process, watched by a thread."""

    def __init__(self, workers: int, silence: str = SILENCE):
        self.count, self.silence, self.port = workers, silence, free_port()
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.restarts = 0
        self.closing = threading.Event()
        self.watcher = threading.Thread(target=self.watch, daemon=True, name="processes")

    @property
    def address(self) -> str:
        return f"tcp://{LOOPBACK}:{self.port}"

    def names(self) -> list[str]:
        return ["scheduler", *(f"worker-{place}" for place in range(self.count))]

    def start(self, name: str) -> None:
        """Start a process in a session of its own, which Ctrl-C does not reach."""
        if name == "scheduler":
            words = ["scheduler", str(self.port), "--silence", self.silence]
        else:
            share = core_share(int(name.rpartition("-")[2]), self.count)
            words = ["worker", self.address, "--name", name, "--cores", ",".join(map(str, share))]
        module, *options = words
        command = [sys.executable, "-m", f"underhood.sweeps.dask.{module}", *options]
        self.running[name] = subprocess.Popen(
            [*command, "--with-parent", str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def watch(self) -> None:
        """Start again what has died, the scheduler before its workers."""
        while not self.closing.wait(0.3):
            for name in self.names():
                if self.running[name].poll() is not None and not self.closing.is_set():
                    self.restarts += 1
                    self.start(name)

    @contextlib.contextmanager
    def opened(self) -> Iterator["Processes"]:
        try:
            for name in self.names():
                self.start(name)
            self.watcher.start()
            yield self
        finally:
            self.closing.set()
            if self.watcher.is_alive():
                self.watcher.join()
            stop(list(self.running.values()))


def stop(processes: "list[subprocess.Popen[bytes]]") -> None:
    """Ask processes to end, wait a little, then kill them; frozen ones are woken first."""
    for process in processes:
        for number in (signal.SIGCONT, signal.SIGTERM):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
    until = time.monotonic() + 3
    for process in processes:
        try:
            process.wait(max(until - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def core_share(worker: int, workers: int) -> list[int]:
    """Return the cores of one worker: all have equal shares, at least one core."""
    here = core_numbers()
    size = max(len(here) // workers, 1)
    return [here[(worker * size + place) % len(here)] for place in range(size)]
