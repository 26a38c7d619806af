"""What a cluster costs and gains, on this machine: speed-up, overhead per unit, ten thousand units.

    python benchmarks/cluster.py [speedup overhead many]

A real scheduler and real workers on loopback, each worker on a core of its own.

speedup    24 units of training, one member each, on one worker and then on two, twice over; workers
           have compiled before. Ratios inside one run.
overhead   units that do nothing, on one worker: the time that each adds, and where it goes.
many       10,000 units that do nothing: resident memory of client and scheduler on the way.
"""

import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cloudpickle
import jax

import underhood as uh
from underhood.sweeps import Study, sweep
from underhood.sweeps.dask.cluster import Cluster
from underhood.sweeps.store import Store
from underhood.sweeps.units import Unit

cloudpickle.register_pickle_by_value(sys.modules[__name__])

UNITS, TINY, MANY = 24, 400, 10_000
TASK = uh.tasks.TeacherStudent.random(3, length=16, key=jax.random.key(0))


def gated(width, *, key):
    return uh.GatedRNN.init(d_in=3, hidden=width, gated=width, d_out=3, key=key)


def study(seeds: int, steps: int = 1_500, key: int = 0) -> Study:
    return Study(TASK, {"gated": gated}, uh.Recipe.fast(steps=steps), (16,), seeds, key=key)


def nothing(study, unit: Unit, **_) -> dict[str, bytes]:
    rows = [{"student": "gated", "address": address, "loss": 0.0} for address in unit.addresses]
    return {"members.json": json.dumps({"rows": rows}).encode()}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Machine:
    """A scheduler, and workers that can be added."""

    def __init__(self):
        self.port = free_port()
        self.processes = [self.start("scheduler", str(self.port))]

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def start(self, module: str, *words: str) -> subprocess.Popen:
        command = [sys.executable, "-m", f"underhood.sweeps.dask.{module}"]
        command += [*words, "--with-parent", str(os.getpid())]
        return subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def add_worker(self) -> None:
        core = sorted(os.sched_getaffinity(0))[len(self.processes) - 1]
        words = ("worker", self.address, "--cores", str(core), "--name", f"core-{core}")
        self.processes.append(self.start(*words))

    @contextlib.contextmanager
    def opened(self):
        try:
            yield self
        finally:
            for process in self.processes:
                process.kill()
                process.wait()


def wait_for(cluster: Cluster, workers: int) -> None:
    while len(cluster.dispatcher.offers()) < workers:
        time.sleep(0.1)


def speedup(folder: Path) -> None:
    with Machine().opened() as machine:
        machine.add_worker()
        with Cluster(address=machine.address).opened() as cluster:
            sweep(study(2, key=100), folder / "warm1", cluster, most=1)
            alone = [timed(folder / f"one{place}", cluster, place) for place in range(2)]
            machine.add_worker()
            wait_for(cluster, 2)
            # Enough that the second worker gets some, and compiles.
            sweep(study(8, key=101), folder / "warm2", cluster, most=1)
            both = [timed(folder / f"two{place}", cluster, place) for place in range(2)]
    print(f"{UNITS} units on one worker: {', '.join(f'{seconds:.1f}' for seconds in alone)} s")
    print(f"{UNITS} units on two workers: {', '.join(f'{seconds:.1f}' for seconds in both)} s")
    print(f"speed-up: {sum(alone) / sum(both):.2f}")


def timed(folder: Path, cluster: Cluster, key: int) -> float:
    done = sweep(study(UNITS, key=key), folder, cluster, most=1)
    assert done.complete and done.done == UNITS
    return done.seconds


def overhead(folder: Path) -> None:
    with Machine().opened() as machine:
        machine.add_worker()
        with Cluster(address=machine.address, work=nothing).opened() as cluster:
            sweep(study(20, key=1), folder / "warm", cluster, most=1)
            done = sweep(study(TINY), folder / "tiny", cluster, most=1)
            another = dataclasses.replace(study(TINY), key=2)
            addresses = another.addresses("gated").values()
            units = [Unit("gated", 16, (0,), (address,)) for address in addresses]
            began = time.perf_counter()
            with Store(folder / "disk").opened({}) as store:
                for unit in units:
                    store.write(unit, nothing(another, unit))
            writing = time.perf_counter() - began
    print(f"{TINY} units that do nothing: {1e3 * done.seconds / TINY:.1f} ms each,")
    print(f"of which writing them to the disk takes {1e3 * writing / TINY:.1f} ms")


def resident(number: int) -> float:
    """MiB of a process."""
    text = Path(f"/proc/{number}/status").read_text()
    line = next(line for line in text.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def many(folder: Path) -> None:
    with Machine().opened() as machine:
        machine.add_worker()
        machine.add_worker()
        with Cluster(address=machine.address, work=nothing).opened() as cluster:
            wait_for(cluster, 2)
            ended = 0
            marks: list[tuple[int, float, float]] = []
            scheduler = machine.processes[0].pid

            def watch(unit, what, where):
                nonlocal ended
                ended += what == "done"
                if what == "done" and ended % (MANY // 10) == 0:
                    marks.append((ended, resident(os.getpid()), resident(scheduler)))

            done = sweep(study(MANY), folder / "many", cluster, most=1, watch=watch)
    assert done.done == MANY
    print(f"{MANY:,} units in {done.seconds:.0f} s, {1e3 * done.seconds / MANY:.1f} ms each")
    print("units done   client MiB   scheduler MiB")
    for count, client, other in marks:
        print(f"{count:>10,}   {client:>10.0f}   {other:>13.0f}")


def main(names: list[str]) -> None:
    parts = {"speedup": speedup, "overhead": overhead, "many": many}
    with tempfile.TemporaryDirectory() as folder:
        for name in names or parts:
            parts[name](Path(folder))
            print(flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
