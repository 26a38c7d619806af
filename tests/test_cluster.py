"""Sweeps on a real scheduler and real worker processes, and what happens when they die."""

import contextlib
import json
import os
import signal
import sys
import threading
import time

import cloudpickle
import jax
import pytest

import underhood as uh
from underhood.sweeps import Study
from underhood.sweeps.cluster import Cluster
from underhood.sweeps.engines import Local
from underhood.sweeps.store import Store
from underhood.sweeps.sweep import sweep

pytestmark = pytest.mark.slow

# Workers do not have this file; what is sent to them is sent whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

TASK = uh.tasks.TeacherStudent.random(1, length=4, key=jax.random.key(0))
RECIPE = uh.Recipe.fast(steps=4, batch=2)
UNITS = 24


def gated(width, *, key):
    return uh.GatedRNN.init(d_in=1, hidden=width, gated=width, d_out=1, key=key)


def study(seeds: int = UNITS) -> Study:
    return Study(TASK, {"gated": gated}, RECIPE, widths=(2,), seeds=seeds)


def tiny(study, unit, **_):
    """A unit without training: it takes a moment, and its result says whose it is."""
    time.sleep(0.25)
    return files_of(unit)


def files_of(unit) -> dict[str, bytes]:
    rows = [
        {"student": unit.student, "address": address, "seed": seed, "width": 2, "loss": seed / 7}
        for address, seed in zip(unit.addresses, unit.seeds, strict=True)
    ]
    return {"members.json": json.dumps({"rows": rows}).encode()}


def crashing(study, unit, **_):
    """Seed 5 kills whoever tries it; seed 7 raises."""
    if unit.seeds == (5,):
        os._exit(1)
    if unit.seeds == (7,):
        raise ValueError("seven is not\nwanted")
    return files_of(unit)


@contextlib.contextmanager
def beside(act, cluster: Cluster):
    """Something that happens while a sweep runs."""
    stop = threading.Event()
    thread = threading.Thread(target=act, args=(cluster, stop), daemon=True)
    thread.start()
    yield
    stop.set()
    thread.join()


def all_there_once(folder, own: Study, without: int = 0) -> None:
    """Every result exactly once, whole, and nothing else."""
    rows = [row for _, rows in Store(folder).units() for row in rows]
    addresses = set(own.addresses("gated").values())
    assert len(rows) == len({row["address"] for row in rows}) == len(addresses) - without
    assert {row["address"] for row in rows} <= addresses
    assert [row["loss"] for row in rows] == [row["seed"] / 7 for row in rows]
    assert not list((folder / "units").glob(".*"))


def kill(cluster: Cluster, name: str, number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        cluster.processes.running[name].send_signal(number)


def test_a_study_on_two_workers_is_the_local_one(tmp_path) -> None:
    own = study(seeds=1)
    local = sweep(own, tmp_path / "local", Local(progress=False), most=1)
    with Cluster(count=2).opened() as cluster:
        done = sweep(own, tmp_path / "dask", cluster, most=1)
    assert local.done == done.done == 1 and done.complete
    found, expected = (
        {row["address"]: row["loss"] for _, rows in Store(tmp_path / one).units() for row in rows}
        for one in ("dask", "local")
    )
    assert found.keys() == expected.keys()
    for address, loss in found.items():
        assert loss == pytest.approx(expected[address], rel=1e-6)
    again = sweep(own, tmp_path / "dask", Local(progress=False))
    assert (again.before, again.done) == (1, 0)


def test_workers_and_the_scheduler_are_killed(tmp_path) -> None:
    own = study()

    def killer(cluster, stop):
        for name in ("worker-0", "worker-1", "scheduler", "worker-0"):
            if stop.wait(0.9):
                return
            kill(cluster, name)

    with Cluster(count=2, work=tiny).opened() as cluster:
        with beside(killer, cluster):
            done = sweep(own, tmp_path, cluster, most=1)
        restarts = cluster.processes.restarts
    assert done.complete and restarts >= 2
    all_there_once(tmp_path, own)


@pytest.mark.chaos
def test_a_frozen_worker_is_given_up_and_its_late_result_is_not_kept_twice(tmp_path) -> None:
    own = study(seeds=8)

    def freezer(cluster, stop):
        kill(cluster, "worker-0", signal.SIGSTOP)
        stop.wait(12)
        kill(cluster, "worker-0", signal.SIGCONT)

    frozen = Cluster(count=2, work=tiny, silence="4s")
    with frozen.opened() as cluster, beside(freezer, cluster):
        done = sweep(own, tmp_path, cluster, most=1)
    assert done.complete
    all_there_once(tmp_path, own)


def test_units_that_always_fail_are_reported_and_the_rest_completes(tmp_path) -> None:
    own = study(seeds=10)
    with Cluster(count=2, work=crashing, rounds=2).opened() as cluster:
        done = sweep(own, tmp_path, cluster, most=1)
    reasons = {unit.seeds[0]: reason for unit, reason in done.failed.items()}
    assert reasons == {
        5: "its workers died, every time it was tried",
        7: "ValueError: seven is not wanted",
    }
    all_there_once(tmp_path, own, without=2)


CLIENT = """
import sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
import test_cluster as tests
with tests.Cluster(count=2, work=tests.tiny).opened() as cluster:
    print(*(one.pid for one in cluster.processes.running.values()), flush=True)
    tests.sweep(tests.study(), Path(sys.argv[1]), cluster, most=1)
"""


@pytest.mark.chaos
def test_a_killed_client_leaves_no_processes_and_its_successor_goes_on(tmp_path) -> None:
    import subprocess

    own = study()
    words = [sys.executable, "-c", CLIENT, str(tmp_path), os.path.dirname(__file__)]
    client = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    children = [int(number) for number in client.stdout.readline().split()]
    until = time.monotonic() + 60
    while len(list(tmp_path.glob("units/[!.]*/members.json"))) < 3:
        assert time.monotonic() < until and client.poll() is None
        time.sleep(0.05)
    client.kill()
    client.wait()
    client.stdout.close()
    until = time.monotonic() + 10
    while any(os.path.exists(f"/proc/{number}") for number in children):
        assert time.monotonic() < until, "workers outlive their client"
        time.sleep(0.1)
    before = len(Store(tmp_path).finished())
    assert 3 <= before < UNITS
    with Cluster(count=2, work=tiny).opened() as cluster:
        done = sweep(own, tmp_path, cluster, most=1)
    assert (done.before, done.done) == (before, UNITS - before)
    all_there_once(tmp_path, own)
