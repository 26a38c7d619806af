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
from typing import Any

from underhood.sweeps.dask.scheduler import LOOPBACK, SILENCE
from underhood.training.device import cores


class Processes:
    """The scheduler and N workers, each a process, watched by a thread."""

    def __init__(self, workers: int, silence: str = SILENCE):
        self.count = workers
        self.silence = silence
        self.port = free_port()
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.restarts = 0
        self.closing = threading.Event()
        self.watcher = threading.Thread(target=self.watch, daemon=True, name="processes")

    @property
    def address(self) -> str:
        return f"tcp://{LOOPBACK}:{self.port}"

    def names(self) -> list[str]:
        return ["scheduler", *(f"worker-{place}" for place in range(self.count))]

    def command(self, name: str) -> list[str]:
        with_us = ("--with-parent", str(os.getpid()))
        if name == "scheduler":
            words = ("underhood.sweeps.dask.scheduler", str(self.port), "--silence", self.silence)
            return [sys.executable, "-m", *words, *with_us]
        place = int(name.rpartition("-")[2])
        share = shares(self.count)[place]
        return [
            *(sys.executable, "-m", "underhood.sweeps.dask.worker", self.address),
            *("--name", name, "--cores", ",".join(map(str, share)), *with_us),
        ]

    def start(self, name: str) -> None:
        """Start a process in a session of its own: Ctrl-C is ours to hear, not theirs."""
        self.running[name] = subprocess.Popen(
            self.command(name),
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


def stop(processes: list[Any]) -> None:
    """Ask, wait a little, then insist; frozen ones are woken first."""
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
    with socket.socket() as one:
        one.bind((LOOPBACK, 0))
        return int(one.getsockname()[1])


def shares(workers: int) -> list[list[int]]:
    """Which cores each worker has: equal shares, one at least."""
    affinity = getattr(os, "sched_getaffinity", None)
    here = sorted(affinity(0)) if affinity else list(range(cores()))
    size = max(len(here) // workers, 1)
    return [
        [here[(place * size + one) % len(here)] for one in range(size)] for place in range(workers)
    ]
