"""Longer faults, to a real scheduler and real workers: `make chaos`.

After each, every other result is there exactly once, and no file is half-written.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import swept

from underhood.common.errors import BadInput
from underhood.sweeps.dask.cluster import Cluster
from underhood.sweeps.engines import Local
from underhood.sweeps.store import Store
from underhood.sweeps.sweeping import sweep

pytestmark = pytest.mark.chaos

KILLS = 20


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What the local engine finds."""
    folder = tmp_path_factory.mktemp("local")
    sweep(swept.small_study(), folder, Local(), most=1)
    return swept.losses_in(folder)


def agrees(folder, expected) -> None:
    swept.all_there_once(folder, swept.small_study())
    losses = swept.losses_in(folder)
    assert losses.keys() == expected.keys()
    for address, loss in losses.items():
        assert loss == pytest.approx(expected[address], rel=1e-6)


def completes_beside(act, folder, expected, count=2) -> None:
    """A sweep whose workers something happens to."""
    with Cluster(count=count, work=swept.slow).opened() as cluster, swept.beside(act, cluster):
        assert sweep(swept.small_study(), folder, cluster, most=1).complete
    agrees(folder, expected)


def test_workers_killed_at_twenty_random_moments(tmp_path, expected) -> None:
    draw, killed = random.Random(1), []

    def killer(cluster, stop):
        while len(killed) < KILLS and not stop.wait(draw.uniform(0.5, 6)):
            name = draw.choice(("worker-0", "worker-1"))
            swept.kill(cluster, name)
            killed.append(name)

    # More rounds, because these deaths are no unit's fault.
    with Cluster(count=2, work=swept.slow, rounds=20).opened() as cluster:
        number = 0
        # A study may end before twenty kills; what is killed then is the next one.
        with swept.beside(killer, cluster):
            while len(killed) < KILLS:
                done = sweep(swept.small_study(), tmp_path / str(number), cluster, most=1)
                assert done.complete, done.failed
                number += 1
        restarts = cluster.processes.restarts
    assert restarts >= KILLS / 2
    for place in range(number):
        agrees(tmp_path / str(place), expected)


def test_a_worker_that_joins_late_gets_its_share(tmp_path, expected) -> None:
    joined = []

    def join(cluster, stop):
        stop.wait(3)
        command = [sys.executable, "-m", "underhood.sweeps.dask.worker", cluster.processes.address]
        command += ["--name", "late", "--with-parent", str(os.getpid())]
        joined.append(subprocess.Popen(command))

    try:
        completes_beside(join, tmp_path, expected, count=1)
    finally:
        for process in joined:
            process.kill()
            process.wait()
    origins = [path.read_text() for path in tmp_path.glob("units/*/origin.json")]
    late = sum('"late"' in text for text in origins)
    assert 3 <= late < swept.UNITS


def test_a_worker_frozen_for_a_minute(tmp_path, expected) -> None:
    frozen = []

    def freezer(cluster, stop):
        stop.wait(4)
        process = cluster.processes.running["worker-0"]
        frozen.append(process.pid)
        process.send_signal(signal.SIGSTOP)
        # It wakes when its unit has long been given to another.
        time.sleep(60)
        process.send_signal(signal.SIGCONT)
        time.sleep(5)

    completes_beside(freezer, tmp_path, expected)
    assert frozen


def test_the_scheduler_is_killed_three_times(tmp_path, expected) -> None:
    killed = []

    def killer(cluster, stop):
        for _ in range(3):
            if stop.wait(5):
                return
            swept.kill(cluster, "scheduler")
            killed.append(1)

    completes_beside(killer, tmp_path, expected)
    assert killed


CLIENT = """
import sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
import swept
from underhood.sweeps.sweeping import sweep
with swept.Cluster(count=2, work=swept.tiny).opened() as cluster:
    print(*(process.pid for process in cluster.processes.running.values()), flush=True)
    sweep(swept.small_study(), Path(sys.argv[1]), cluster, most=1)
"""


def test_a_killed_client_leaves_no_processes_and_its_successor_goes_on(tmp_path) -> None:
    study = swept.small_study()
    words = [sys.executable, "-c", CLIENT, str(tmp_path), str(Path(__file__).parents[1])]
    client = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    children = [f"/proc/{number}" for number in client.stdout.readline().split()]
    written = "units/[!.]*/members.json"
    swept.wait_until(lambda: client.poll() is not None or len(list(tmp_path.glob(written))) >= 3)
    assert client.poll() is None
    client.kill()
    client.wait()
    client.stdout.close()
    # Workers do not outlive their client.
    swept.wait_until(lambda: not any(map(os.path.exists, children)), seconds=10)
    before = len(Store(tmp_path).finished())
    assert 3 <= before < swept.UNITS
    with Cluster(count=2, work=swept.tiny).opened() as cluster:
        done = sweep(study, tmp_path, cluster, most=1)
    assert (done.before, done.done) == (before, swept.UNITS - before)
    swept.all_tiny_there_once(tmp_path, study)


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 200 KiB, where that is allowed."""
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(folder)]
    if subprocess.run(words, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_the_writers_disk_is_full(small_disk, expected) -> None:
    ballast = small_disk / "ballast"
    folder = small_disk / "study"
    folder.mkdir()
    ballast.write_bytes(bytes(100 * 1024))
    with Cluster(count=2).opened() as cluster:
        with pytest.raises(OSError, match="No space left"):
            sweep(swept.small_study(), folder, cluster, most=1)
        before = len(Store(folder).finished())
        assert 0 < before < swept.UNITS
        assert not list((folder / "units").glob(".*"))
        # Some room is made, and the same sweep goes on; the rest does not fit, or it does.
        subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
        ballast.unlink()
        done = sweep(swept.small_study(), folder, cluster, most=1)
    assert (done.before, done.done) == (before, swept.UNITS - before)
    agrees(folder, expected)


def test_no_scheduler_any_more_is_one_line(tmp_path, monkeypatch) -> None:
    with Cluster(count=1, work=swept.slow).opened() as inner:
        other = Cluster(address=inner.processes.address, work=swept.slow)

        def end(cluster, stop):
            # All are found by now.
            monkeypatch.setattr("underhood.sweeps.dask.dispatch.SCHEDULER_PATIENCE", 5)
            stop.wait(4)
            inner.processes.closing.set()
            for name in inner.processes.words:
                swept.kill(inner, name)

        with (
            other.opened() as cluster,
            swept.beside(end, cluster),
            pytest.raises(BadInput, match="scheduler does not answer"),
        ):
            sweep(swept.small_study(), tmp_path, cluster, most=1)
    assert not list((tmp_path / "units").glob(".*"))
