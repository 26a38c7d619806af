"""One worker: a process that runs one unit at a time on its own cores or its own GPU.

    python -m underhood.sweeps.dask.worker ADDRESS [--name NAME] [--cores 0,1] [--gpu 0]
        [--offer NAME] [--tls-ca FILE --tls-cert FILE --tls-key FILE | --insecure]

Threads are pinned before JAX starts, so that workers side by side do not fight over cores; a GPU
worker sees one GPU (`--gpu own`: the one that a queueing system has given it). Matrix products are
computed in full precision, as everywhere. A worker listens where the scheduler can reach it and
nowhere else, and comes back when a scheduler that it has lost does, within a minute. It offers
"unit", once, and "gpu" or "cpu"; `--offer big` adds a name of your own, for units that need it
(`underhood sweep --needs big`).
"""

import argparse
import asyncio
import ctypes
import os
import signal
import sys
from typing import Any
from urllib.parse import urlsplit

import threadpoolctl

from underhood.common.errors import BadInput
from underhood.sweeps.dask.security import HTTP, NOBODY, Certificates, check_address, is_loopback
from underhood.training.device import cores as cores_here
from underhood.training.device import free_host_memory, free_memory, is_cpu

# Of a GPU's memory, what JAX may take.
FRACTION = "0.85"
PR_SET_PDEATHSIG = 1
# The longer names are those by which dask-jobqueue calls them.
TLS = (("--tls-ca", "--tls-ca-file"), ("--tls-cert",), ("--tls-key",))
OWN = "own"
# Under which a worker tells how many bytes a unit may take.
MEMORY = "memory"
# How long a worker waits for a scheduler that it has lost.
PATIENCE = "60s"
REJOIN = "--rejoin"
# How distributed says that it lost the scheduler, and was not told to end.
BROKEN = "worker-handle-scheduler-connection-broken"


def main(arguments: list[str]) -> int:
    """Serve until the scheduler says goodbye or is lost."""
    parser = argparse.ArgumentParser(prog="python -m underhood.sweeps.dask.worker")
    parser.add_argument("address", help="of the scheduler, as tls://host:8786")
    parser.add_argument("--name", help="by which the display calls it")
    parser.add_argument("--cores", help="that it may use, as 0,1")
    parser.add_argument("--gpu", help="the number of its GPU, or own: the one that it is given")
    parser.add_argument("--interface", help="of the network to listen on, as eth0")
    parser.add_argument("--death-timeout", help="how long to wait for the scheduler, as 60s")
    parser.add_argument(
        "--offer", action="append", default=[], help="a name that units may need, as big"
    )
    for names in TLS:
        parser.add_argument(*names, help="a file; all three, or none")
    parser.add_argument("--insecure", action="store_true", help="on a network without strangers")
    parser.add_argument("--once", action="store_true", help="end when the scheduler is lost")
    parser.add_argument(REJOIN, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--with-parent", type=int, help="end when this process does")
    # What dask-jobqueue says besides, and we decide ourselves.
    for name in ("--nthreads", "--memory-limit", "--local-directory", "--protocol"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    tls = certificates_of(given)
    try:
        tls.check()
        check_address(given.address, tls=tls.given, insecure=given.insecure, said="the address")
        resources = pinned(given.cores, given.gpu) | dict.fromkeys(given.offer, 1.0)
    except BadInput as error:
        print(f"underhood: {error}", file=sys.stderr)
        return 2
    if given.with_parent is not None:
        end_with_parent(given.with_parent)
    try:
        lost = asyncio.run(serve(given, resources, tls))
        if lost and given.with_parent is None and not given.once:
            # A fresh process, so that nothing of the broken connection is left.
            again = [one for one in arguments if one != REJOIN]
            module = "underhood.sweeps.dask.worker"
            os.execv(sys.executable, [sys.executable, "-m", module, *again, REJOIN])
    except KeyboardInterrupt:
        pass
    except (OSError, TimeoutError) as error:
        print(f"underhood: cannot join {given.address}: {error}", file=sys.stderr)
        return 1
    return 0


def certificates_of(given: argparse.Namespace) -> Certificates:
    """The three files, as options name them."""
    return Certificates(given.tls_ca, given.tls_cert, given.tls_key)


def end_with_parent(parent: int) -> None:
    """Ask Linux to kill this process when the one that started it dies, however it dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have died before we asked.
    if os.getppid() != parent:
        sys.exit(1)


def pinned(cores: str | None, gpu: str | None) -> dict[str, float]:
    """Set what JAX reads when it starts; what this worker has to offer."""
    # NumPy is loaded by now and would not look at the environment any more.
    threadpoolctl.threadpool_limits(1)
    if gpu is not None:
        if gpu != OWN:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpu
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", FRACTION)
        if is_cpu():
            raise BadInput(f"--gpu {gpu}: JAX finds no such GPU here; leave it out for a CPU.")
        return {"unit": 1.0, "gpu": 1.0, MEMORY: float(free_memory())}
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    here = None
    if cores is not None:
        here = os.cpu_count()
        try:
            os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
        except (ValueError, OSError):
            raise BadInput(f"--cores {cores} are not cores of this machine, as 0,1.") from None
        except AttributeError:
            # Not on this system; JAX then uses all cores.
            pass
    # Of the host's memory a worker with a share of its cores has the same share.
    share = 1.0 if here is None else min(1.0, cores_here() / here)
    return {"unit": 1.0, "cpu": 1.0, MEMORY: share * free_host_memory()}


async def serve(given: argparse.Namespace, resources: dict[str, float], tls: Certificates) -> bool:
    """Until closed; whether the scheduler was lost."""
    import dask
    from distributed import Worker

    why = ""

    class Told(Worker):
        async def close(self, *arguments: Any, **options: Any) -> Any:
            nonlocal why
            why = why or options.get("reason", "")
            return await super().close(*arguments, **options)

    dask.config.set(NOBODY)
    patience = PATIENCE if given.rejoin else None
    async with Told(
        given.address,
        name=given.name,
        host=None if given.interface else seen_from(given.address),
        nthreads=1,
        resources=resources,
        interface=given.interface,
        death_timeout=given.death_timeout or patience,
        security=tls.security(),
        dashboard=False,
        dashboard_address=HTTP,
        # Memory is planned by `train` itself; spilling its arrays would only slow it.
        memory_limit=0,
    ) as worker:
        await worker.finished()
    return why == BROKEN


def seen_from(address: str) -> str:
    """The address of this machine on the way to the scheduler."""
    from distributed.utils import get_ip

    host = urlsplit(address if "://" in address else f"tcp://{address}").hostname or ""
    if is_loopback(host):
        return "127.0.0.1" if host == "localhost" else host
    return str(get_ip(host))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
