"""Who may join a cluster, who is asked to do what, and workers that a queueing system starts."""

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import psutil
import pytest
from refusals import refused
from swept import FILE, all_tiny_there_once, small_study, tiny, wait_until

from underhood.common.errors import BadInput
from underhood.sweeps.dask import certificates
from underhood.sweeps.dask.certificates import TLSFiles, check_address
from underhood.sweeps.dask.cluster import Cluster, free_port
from underhood.sweeps.dask.queueing import Queue
from underhood.sweeps.sweeping import sweep

pytestmark = pytest.mark.slow


def wait_for(port: int) -> None:
    """Until somebody listens."""

    def answered() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    wait_until(answered)


def cannot_open(words: str, **options) -> None:
    with pytest.raises(BadInput, match=words), Cluster(**options).opened():
        pass


@contextlib.contextmanager
def process(module: str, *words: str):
    """A process of ours, that ends with the test."""
    command = [sys.executable, "-m", f"underhood.sweeps.dask.{module}"]
    command += [*words, "--with-parent", str(os.getpid())]
    started = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def options(tls: TLSFiles) -> tuple[str, ...]:
    return ("--tls-ca", tls.ca, "--tls-cert", tls.cert, "--tls-key", tls.key)


def made(folder) -> TLSFiles:
    certificates.make_certificates(folder)
    return TLSFiles(*(str(folder / name) for name in certificates.CERTIFICATE_FILES))


def test_who_has_no_certificate_cannot_join(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("underhood.sweeps.dask.dispatch.SCHEDULER_PATIENCE", 5)
    ours, others = made(tmp_path / "ours"), made(tmp_path / "others")
    port = free_port()
    address, plain = f"tls://127.0.0.1:{port}", f"tcp://127.0.0.1:{port}"
    with contextlib.ExitStack() as held:
        held.enter_context(process("scheduler", str(port), *options(ours)))
        wait_for(port)
        # Neither without any, nor with one that another authority has signed.
        bare = ("worker", plain, "--name", "bare", "--death-timeout", "3")
        foreign = ("worker", address, "--name", "foreign", "--death-timeout", "3")
        outside = [
            held.enter_context(process(*bare)),
            held.enter_context(process(*foreign, *options(others))),
        ]
        cannot_open("has no worker", address=address, tls=ours)
        for worker in outside:
            assert worker.wait(60) != 0
        # With ours it may, and clients without it still may not.
        held.enter_context(process("worker", address, "--name", "ours", *options(ours)))
        monkeypatch.setattr("underhood.sweeps.dask.dispatch.SCHEDULER_PATIENCE", 60)
        with Cluster(address=address, tls=ours, work=tiny).opened() as cluster:
            done = sweep(small_study(seeds=3), tmp_path / "out", cluster, most=1)
        assert done.complete
        monkeypatch.setattr("underhood.sweeps.dask.dispatch.SCHEDULER_PATIENCE", 1)
        for tls, where in ((others, address), (TLSFiles(), plain)):
            cannot_open("does not answer", address=where, tls=tls)
    all_tiny_there_once(tmp_path / "out", small_study(seeds=3))


REFUSED = ("tcp://10.0.0.1:8786", "tcp://0.0.0.0:8786", "tcp://example.org:1", "10.1.2.3:8786")
ALLOWED = ("tcp://127.0.0.1:8786", "127.0.0.1:8786", "tcp://localhost:1", "tcp://[::1]:8786")


def test_an_open_address_is_refused_with_the_right_way_and_loopback_allowed() -> None:
    for address in REFUSED:
        with pytest.raises(BadInput, match=r"--tls-ca, --tls-cert and --tls-key .*or --insecure"):
            check_address(address, tls=False, insecure=False)
        check_address(address, tls=False, insecure=True)
    for address in ALLOWED:
        check_address(address, tls=False, insecure=False)


def test_tls_needs_all_of_its_files() -> None:
    with pytest.raises(BadInput, match="needs --tls-ca"):
        check_address("tls://10.0.0.1:8786", tls=False, insecure=False)
    with pytest.raises(BadInput, match="three files"):
        TLSFiles(__file__, None, "key.pem")
    with pytest.raises(BadInput, match=r"--tls-key key\.pem is no file"):
        TLSFiles(__file__, __file__, "key.pem")
    check_address("tls://10.0.0.1:8786", tls=True, insecure=False)
    assert TLSFiles().security() is None


def run(module: str, *words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", f"underhood.sweeps.dask.{module}", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_scheduler_or_worker_that_others_could_reach_is_refused() -> None:
    for words in ("scheduler 8786 --host 0.0.0.0", "worker tcp://192.0.2.1:8786"):
        ended = run(*words.split())
        assert ended.returncode == 2 and ended.stderr.count("\n") == 1
        assert "is neither loopback nor protected: use tls:// with --tls-ca" in ended.stderr
        assert "underhood.sweeps.dask.certificates FOLDER" in ended.stderr


def test_what_is_no_certificate_is_refused_at_once(tmp_path) -> None:
    ours, others = made(tmp_path / "ours"), made(tmp_path / "others")
    text = tmp_path / "notes.txt"
    text.write_text("not a certificate")
    for change, said in (
        ({"ca": str(text)}, "holds no certificate"),
        ({"cert": str(text)}, "are not a certificate and its key"),
        ({"key": others.key}, "are not a certificate and its key"),
    ):
        with pytest.raises(BadInput, match=said):
            dataclasses.replace(ours, **change)


def listening(number: int) -> set[str]:
    """The addresses that a process listens on."""
    open_now = psutil.Process(number).net_connections(kind="inet")
    return {each.laddr.ip for each in open_now if each.status == psutil.CONN_LISTEN}


@pytest.mark.parametrize("protected", [False, True])
def test_nobody_listens_beyond_loopback_unless_asked(tmp_path, protected: bool) -> None:
    """Whoever reaches a worker's port can run code there, as with a scheduler's."""
    tls = made(tmp_path / "tls") if protected else TLSFiles()
    words = options(tls) if protected else ()
    port = free_port()
    address = f"{'tls' if protected else 'tcp'}://127.0.0.1:{port}"
    with contextlib.ExitStack() as held:
        both = [held.enter_context(process("scheduler", str(port), *words))]
        wait_for(port)
        both.append(held.enter_context(process("worker", address, *words)))
        with Cluster(address=address, tls=tls, work=tiny).opened() as cluster:
            assert cluster.dispatcher.workers() == 1
            assert [listening(each.pid) for each in both] == [{"127.0.0.1"}] * 2


def test_a_gpu_that_is_not_there_is_refused() -> None:
    ended = run("worker", "tcp://127.0.0.1:8786", "--gpu", "0")
    assert ended.returncode == 2 and "JAX finds no such GPU here" in ended.stderr.splitlines()[-1]


def test_a_machine_that_submits_no_jobs_is_refused(tmp_path) -> None:
    file = tmp_path / "slurm.yaml"
    file.write_text("slurm:\n  cores: 1\n  memory: 1GB\n")
    opened = Queue.read(file).opened(TLSFiles(), insecure=False)
    with pytest.raises(BadInput, match="slurm needs the command sbatch, which is not here"), opened:
        pass


@pytest.mark.chaos
def test_workers_come_back_when_their_scheduler_does(tmp_path) -> None:
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    study = small_study(seeds=20)
    # A worker as a person starts it, that does not end with us.
    command = [sys.executable, "-m", "underhood.sweeps.dask.worker", address]
    worker = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        with process("scheduler", str(port)) as scheduler:
            wait_for(port)
            with Cluster(address=address, work=tiny).opened() as cluster:
                thread = threading.Thread(
                    target=sweep, args=(study, tmp_path, cluster), kwargs={"most": 1}, daemon=True
                )
                thread.start()
                wait_until(lambda: len(list(tmp_path.glob("units/[!.]*"))) >= 3)
                scheduler.kill()
                scheduler.wait()
                time.sleep(2)
                with process("scheduler", str(port)):
                    thread.join(120)
                    assert not thread.is_alive() and worker.poll() is None
    finally:
        worker.kill()
        worker.wait()
    all_tiny_there_once(tmp_path, study)


def test_certificates_are_made_once_and_kept_private(tmp_path, capsys) -> None:
    folder = tmp_path / "tls"
    assert certificates.certificates_command([str(folder)]) == 0
    assert f"--tls-ca {folder / 'ca.pem'}" in capsys.readouterr().out
    assert os.stat(folder).st_mode & 0o077 == 0
    for name in certificates.CERTIFICATE_FILES:
        assert os.stat(folder / name).st_mode & 0o077 == 0
    assert certificates.certificates_command([str(folder)]) == 2
    assert "already holds ca.pem" in capsys.readouterr().err
    assert all(certificates.certificates_command(words) == 2 for words in ([], ["--help"]))


@pytest.mark.chaos
def test_units_go_to_workers_that_offer_what_they_need(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("underhood.sweeps.dask.dispatch.SCHEDULER_PATIENCE", 15)
    study = small_study(seeds=6)
    with Cluster(count=1, work=tiny).opened() as plain:
        address = plain.processes.address
        with process("worker", address, "--name", "big", "--offer", "big"):
            with Cluster(address=address, needs="big", work=tiny).opened() as cluster:
                assert sweep(study, tmp_path / "big", cluster, most=1).complete
            origins = [path.read_text() for path in tmp_path.glob("big/units/*/origin.json")]
            assert len(origins) == 6 and all('"big"' in text for text in origins)
            monkeypatch.setattr("underhood.sweeps.dask.dispatch.SCHEDULER_PATIENCE", 2)
            cannot_open("no worker that offers gpu", address=address, needs="gpu")


@pytest.mark.chaos
def test_jobs_of_a_queue_work_encrypted_and_are_replaced(tmp_path) -> None:
    job = {"jobs": 2, "cores": 1, "memory": "1GB", "interface": "lo"}
    job["shared-temp-directory"] = str(tmp_path)
    (tmp_path / "queue.yaml").write_text(json.dumps({"jobqueue": {"local": job}}))
    longer = FILE.replace("steps=4, batch=2", "steps=8_000, batch=8").replace("seeds=2", "seeds=5")
    (tmp_path / "mine.py").write_text(longer)
    words = "sweep mine.py --out out --most 1 --engine dask --jobqueue queue.yaml"
    client = subprocess.Popen(
        [sys.executable, "-m", "underhood", *words.split()],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        wait_until(lambda: client.poll() or list(tmp_path.glob("out/units/[!.]*")), seconds=90)
        assert client.poll() is None
        # Both jobs are killed, as a queueing system does that needs their hosts.
        jobs = jobs_of(tmp_path)
        assert len(jobs) == 2
        for number in jobs:
            os.kill(number, signal.SIGKILL)
        said = client.communicate(timeout=120)[0]
    finally:
        client.kill()
        client.communicate()
    assert client.returncode == 0, said
    assert "5 units done, 0 failed" in said and "retried" in said
    rows = (tmp_path / "out" / "table.csv").read_text().splitlines()
    assert len(rows) == 6 and not jobs_of(tmp_path)


def jobs_of(folder) -> list[int]:
    """Workers whose certificates lie in a folder."""
    pattern = f"underhood.sweeps.dask.worker tls://127.*{folder}"
    listed = subprocess.run(["pgrep", "-f", pattern], capture_output=True, text=True)
    return [int(word) for word in listed.stdout.split()]


BAD_QUEUES = {
    "slurm: [1": "is not YAML",
    "slurms:\n  cores: 1": "must name one system",
    "slurm: 3": "give slurm options",
    "slurm:\n  cores: 1": "say what a job asks for, as memory",
    "slurm:\n  cores: 1\n  memory: 1GB\n  jobs: many": "jobs is 'many'",
    "slurm:\n  cores: 1\n  memory: 1GB\n  processes: 4": "leave processes out",
}


@pytest.mark.parametrize("text", BAD_QUEUES, ids=BAD_QUEUES.values())
def test_a_queues_file_that_means_nothing_is_refused(tmp_path, text) -> None:
    file = tmp_path / "queue.yaml"
    file.write_text(text)
    with refused(BAD_QUEUES[text]):
        Queue.read(file)


def test_slurms_script_asks_for_what_the_file_says(tmp_path) -> None:
    file = tmp_path / "slurm.yaml"
    file.write_text(
        "slurm:\n  jobs: 3\n  cores: 4\n  memory: 16GB\n  walltime: '04:00:00'\n  queue: gpus\n"
        "  gpu: true\n  interface: lo\n  job-extra-directives: ['--gres=gpu:1']\n"
        f"  shared-temp-directory: {tmp_path}\n"
    )
    cluster = Queue.read(file).made(TLSFiles(), insecure=False)
    try:
        script = cluster.job_script()
    finally:
        cluster.close()
    for option in ("-p gpus", "--gres=gpu:1", "-t 04:00:00", "--cpus-per-task=4"):
        assert f"#SBATCH {option}\n" in script
    assert "-m underhood.sweeps.dask.worker tls://" in script
    assert "--gpu own" in script and "--tls-key" in script and "--insecure" not in script
