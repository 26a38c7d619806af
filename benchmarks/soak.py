"""A soak: a study repeated for half an hour while its processes are killed and frozen at random.

    python benchmarks/soak.py [MINUTES] [SEED]

Faults, one every few seconds: kill -9 of a worker or of the scheduler, a worker frozen for up to
40 seconds, a worker that joins from outside and is killed later. In every fifth round the client is
a process of its own and is killed too, and the round is finished by another. After each round every
result must be there once, equal to the local engine's to 1e-6, with nothing half-written. Resident
memory of this process is taken after each round. A line per round goes to stdout; the end says
what was lost, and the status is 1 if anything was.
"""

import collections
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import cloudpickle
import jax

import underhood as uh
from underhood.sweeps import Study, sweep
from underhood.sweeps.dask.cluster import Cluster
from underhood.sweeps.engines import Local
from underhood.sweeps.store import Store
from underhood.sweeps.units import work

cloudpickle.register_pickle_by_value(sys.modules[__name__])

UNITS, CLIENT_EVERY = 24, 5
TASK = uh.tasks.TeacherStudent.random(1, length=4, key=jax.random.key(0))


def gated(width, *, key):
    return uh.GatedRNN.init(d_in=1, hidden=width, gated=width, d_out=1, key=key)


def study() -> Study:
    return Study(TASK, {"gated": gated}, uh.Recipe.fast(steps=20, batch=4), (2,), UNITS)


def slowly(study, unit, **options):
    """A unit that is at work long enough to be hit."""
    time.sleep(0.5)
    return work(study, unit, **options)


def cluster() -> Cluster:
    # No unit is to blame for these deaths, so none is given up for them.
    return Cluster(count=2, work=slowly, rounds=100)


class Faults:
    """A thread that does harm until it is stopped."""

    def __init__(self, opened: Cluster, draw: random.Random, counts: collections.Counter):
        self.cluster, self.draw, self.counts = opened, draw, counts
        self.stop = threading.Event()
        self.joined: list[subprocess.Popen] = []
        self.thread = threading.Thread(target=self.run, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()
        self.kill_joined()

    def kill_joined(self) -> None:
        for process in self.joined:
            process.kill()
            process.wait()

    def run(self) -> None:
        kinds = {"worker killed": 6, "scheduler killed": 1, "worker frozen": 1, "worker joins": 1}
        while not self.stop.wait(self.draw.uniform(1, 8)):
            kind = self.draw.choices(list(kinds), list(kinds.values()))[0]
            self.counts[kind] += 1
            worker = f"worker-{self.draw.randrange(2)}"
            if kind == "worker killed":
                self.send(worker, signal.SIGKILL)
            elif kind == "scheduler killed":
                self.send("scheduler", signal.SIGKILL)
            elif kind == "worker frozen":
                process = self.cluster.processes.running[worker]
                process.send_signal(signal.SIGSTOP)
                self.stop.wait(self.draw.uniform(5, 40))
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGCONT)
            else:
                self.kill_joined()
                address = self.cluster.processes.address
                command = [sys.executable, "-m", "underhood.sweeps.dask.worker", address]
                self.joined = [
                    subprocess.Popen(
                        [*command, "--with-parent", str(os.getpid())], stderr=subprocess.DEVNULL
                    )
                ]

    def send(self, name: str, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.cluster.processes.running[name].send_signal(number)


def killed_client(folder: Path, draw: random.Random) -> int:
    """A client of its own, killed on its way; how many units it had finished."""
    command = [sys.executable, __file__, "--client", str(folder)]
    client = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    wanted = draw.randrange(2, UNITS - 4)
    while client.poll() is None and len(list(folder.glob("units/[!.]*"))) < wanted:
        time.sleep(0.02)
    client.kill()
    client.wait()
    return len(Store(folder).finished())


def losses(folder: Path) -> list[tuple[str, float]]:
    return sorted((row["address"], row["loss"]) for row in Store(folder).all_rows())


def check(folder: Path, expected: list[tuple[str, float]]) -> list[str]:
    """What is wrong with a round."""
    results = losses(folder)
    wrong = []
    if [address for address, _ in results] != [address for address, _ in expected]:
        wrong.append(f"{len(results)} results, not {len(expected)}")
    elif any(abs(a - b) > 1e-6 * abs(b) for (_, a), (_, b) in zip(results, expected, strict=True)):
        wrong.append("a result differs from the local engine's")
    if list((folder / "units").glob(".*")):
        wrong.append("something is half-written")
    return wrong


def resident() -> float:
    """MiB of this process."""
    text = Path("/proc/self/status").read_text()
    line = next(line for line in text.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def main(minutes: float, seed: int) -> int:
    draw, counts, wrong, memory = random.Random(seed), collections.Counter(), [], []
    until = time.monotonic() + 60 * minutes
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    sweep(study(), folder / "expected", Local(), most=1)
    expected = losses(folder / "expected")
    number = 0
    print(f"{minutes:g} minutes, seed {seed}, {UNITS} units a round, two workers", flush=True)
    try:
        while time.monotonic() < until:
            number += 1
            place = folder / str(number)
            began, before = time.monotonic(), 0
            if number % CLIENT_EVERY == 0:
                before = killed_client(place, draw)
                counts["client killed"] += 1
            with cluster().opened() as opened, Faults(opened, draw, counts):
                done = sweep(study(), place, opened, most=1)
                restarts = opened.processes.restarts
            problems = [f"{unit}: {reason}" for unit, reason in done.failed.items()]
            problems += check(place, expected)
            wrong += problems
            memory.append(resident())
            print(
                f"round {number}: {time.monotonic() - began:.0f} s, {before} units before, "
                f"{done.done} done, {restarts} restarts, {memory[-1]:.0f} MiB, "
                f"{'; '.join(problems) or 'all there'}",
                flush=True,
            )
            shutil.rmtree(place)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("faults: " + ", ".join(f"{count} × {kind}" for kind, count in sorted(counts.items())))
    print(f"{number} rounds, {number * UNITS} results, {len(wrong)} wrong or lost")
    third = max(len(memory) // 3, 1)
    first, last = (sum(part) / len(part) for part in (memory[:third], memory[-third:]))
    print(f"memory: {first:.0f} MiB in the first third, {last:.0f} MiB in the last")
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        with cluster().opened() as opened:
            sweep(study(), Path(sys.argv[2]), opened, most=1)
        sys.exit(0)
    words = [float(word) for word in sys.argv[1:]]
    sys.exit(main(words[0] if words else 30, int(words[1]) if len(words) > 1 else 0))
