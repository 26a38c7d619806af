"""Small studies for tests of clusters, what may happen to them, and what must be there after."""

import contextlib
import json
import os
import signal
import sys
import threading
import time

import cloudpickle
import jax

import underhood as uh
from underhood.sweeps import Study
from underhood.sweeps.dask.cluster import Cluster
from underhood.sweeps.store import Store
from underhood.sweeps.units import work

# Workers do not have this file; what is sent to them is sent whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

TASK = uh.tasks.TeacherStudent.random(1, length=4, key=jax.random.key(0))
RECIPE = uh.Recipe.fast(steps=4, batch=2)
UNITS = 24


def gated(width, *, key):
    return uh.GatedRNN.init(d_in=1, hidden=width, gated=width, d_out=1, key=key)


# A study's file, as the command takes it.
FILE = """
import jax
import underhood as uh


def gated(width, *, key):
    return uh.GatedRNN.init(d_in=1, hidden=width, gated=width, d_out=1, key=key)


task = uh.tasks.TeacherStudent.random(1, length=4, key=jax.random.key(0))
study = uh.Study(task, {"gated": gated}, uh.Recipe.fast(steps=4, batch=2), widths=(2,), seeds=2)
"""


def small_study(seeds: int = UNITS) -> Study:
    return study_of(widths=(2,), seeds=seeds)


def study_of(**changes) -> Study:
    fields = {"students": {"gated": gated}, "widths": (2, 3), "seeds": 3} | changes
    return Study(fields.pop("task", TASK), recipe=fields.pop("recipe", RECIPE), **fields)


def tiny(study, unit, **_):
    """A unit without training: it takes a moment, and its result says whose it is."""
    time.sleep(0.25)
    return files_of(unit)


def slow(study, unit, **options):
    """A real unit that takes a little longer, so that faults find it at work."""
    time.sleep(1.5)
    return work(study, unit, **options)


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


def wait_until(happened, seconds=60) -> None:
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.05)


def all_at_once(acts) -> None:
    """Each in a thread; waits for all."""
    threads = [threading.Thread(target=act) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextlib.contextmanager
def beside(act, cluster: Cluster):
    """Something that happens while a sweep runs."""
    stop = threading.Event()
    thread = threading.Thread(target=act, args=(cluster, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def losses_in(folder) -> dict[str, float]:
    return {row["address"]: row["loss"] for row in Store(folder).all_rows()}


def all_there_once(folder, study: Study, without: int = 0) -> None:
    """Every result exactly once, whole, and nothing else."""
    rows = list(Store(folder).all_rows())
    addresses = set(study.addresses("gated").values())
    assert len(rows) == len({row["address"] for row in rows}) == len(addresses) - without
    assert {row["address"] for row in rows} <= addresses
    assert not list((folder / "units").glob(".*"))
    for path in (folder / "units").iterdir():
        assert json.loads((path / "members.json").read_text())["rows"]


def all_tiny_there_once(folder, study: Study, without: int = 0) -> None:
    """The same for `tiny`, whose results say whose they are."""
    all_there_once(folder, study, without)
    rows = list(Store(folder).all_rows())
    assert [row["loss"] for row in rows] == [row["seed"] / 7 for row in rows]


def kill(cluster: Cluster, name: str, number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        cluster.processes.running[name].send_signal(number)
