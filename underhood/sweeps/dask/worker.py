"""One worker: a process that runs one unit at a time on its own cores or its own GPU.

    python -m underhood.sweeps.dask.worker ADDRESS [--name NAME] [--cores 0,1] [--gpu 0]
        [--offer NAME] [--tls-ca FILE --tls-cert FILE --tls-key FILE | --insecure]

Threads are pinned before JAX starts, so that workers side by side do not fight over cores. A GPU
worker sees one GPU (`--gpu own`: the one that a queueing system has given it). It listens only
where the scheduler can reach it, and joins again if a lost scheduler is back within a minute. It
offers "unit", once, and "gpu" or "cpu"; `--offer big` adds a name (`underhood sweep --needs big`).
"""

import argparse
import asyncio
import os
import sys
from typing import Any

import threadpoolctl

from underhood.common.errors import BadInput
from underhood.sweeps.dask import certificates
from underhood.training.device import core_numbers, free_host_memory, free_memory, is_cpu

# The part of a GPU's memory that JAX may take.
GPU_FRACTION = "0.85"
OWN_GPU = "own"
# The name under which a worker offers the bytes that a unit may take.
MEMORY_OFFER = "memory"
# How long a worker waits for a scheduler that it has lost.
REJOIN_TIME = "60s"
REJOIN = "--rejoin"
# What distributed gives as the reason when it lost the scheduler.
CONNECTION_BROKEN = "worker-handle-scheduler-connection-broken"
# What dask-jobqueue sets besides; we decide it ourselves.
IGNORED = ("--nthreads", "--memory-limit", "--local-directory", "--protocol")


def worker_command(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m underhood.sweeps.dask.worker")
    parser.add_argument("address", help="of the scheduler, as tls://host:8786")
    parser.add_argument("--name", help="the worker's name in the display")
    parser.add_argument("--cores", help="the cores that it may use, as 0,1")
    parser.add_argument("--gpu", help="the number of its GPU, or own: the one that it is given")
    parser.add_argument("--interface", help="the network to listen on, as eth0")
    parser.add_argument("--death-timeout", help="how long to wait for the scheduler, as 60s")
    offer = "a name that units may need, as big"
    parser.add_argument("--offer", action="append", default=[], help=offer)
    parser.add_argument("--once", action="store_true", help="end when the scheduler is lost")
    parser.add_argument(REJOIN, action="store_true", help=argparse.SUPPRESS)
    for name in IGNORED:
        parser.add_argument(name, help=argparse.SUPPRESS)

    def serve(given: argparse.Namespace, tls: certificates.TLSFiles) -> None:
        address, insecure = given.address, given.insecure
        certificates.check_address(address, tls=tls.given, insecure=insecure, said="the address")
        pin(given.cores, given.gpu)
        resources = resources_of(given.cores, given.gpu) | dict.fromkeys(given.offer, 1.0)
        try:
            lost = asyncio.run(serve_worker(given, resources, tls))
        except OSError as error:
            raise OSError(f"cannot join {address}: {error}") from None
        if lost and given.with_parent is None and not given.once:
            # A fresh process, so that nothing of the broken connection is left.
            again = [argument for argument in arguments if argument != REJOIN]
            module = "underhood.sweeps.dask.worker"
            os.execv(sys.executable, [sys.executable, "-m", module, *again, REJOIN])

    return certificates.run_server(parser, arguments, serve)


def pin(core_list: str | None, gpu: str | None) -> None:
    """Limit this process to its cores or its GPU; JAX reads this when it starts."""
    # NumPy is loaded by now and would not look at the environment any more.
    threadpoolctl.threadpool_limits(1)
    if gpu is not None:
        if gpu != OWN_GPU:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpu
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", GPU_FRACTION)
        if is_cpu():
            raise BadInput(f"--gpu {gpu}: JAX finds no such GPU here; leave it out for a CPU.")
        return
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    # Where the system cannot do this, JAX uses all cores.
    if core_list is not None and hasattr(os, "sched_setaffinity"):
        try:
            os.sched_setaffinity(0, {int(core) for core in core_list.split(",")})
        except (ValueError, OSError):
            raise BadInput(f"--cores {core_list} are not cores of this machine, as 0,1.") from None


def resources_of(core_list: str | None, gpu: str | None) -> dict[str, float]:
    """Return what this worker has to offer; a share of the cores has that share of the memory."""
    if gpu is not None:
        return {"unit": 1.0, "gpu": 1.0, MEMORY_OFFER: float(free_memory())}
    share = 1.0 if core_list is None else min(1.0, len(core_numbers()) / (os.cpu_count() or 1))
    return {"unit": 1.0, "cpu": 1.0, MEMORY_OFFER: share * free_host_memory()}


async def serve_worker(
    given: argparse.Namespace, resources: dict[str, float], tls: certificates.TLSFiles
) -> bool:
    """Serve until closed; return whether the scheduler was lost."""
    import dask
    from distributed import Worker

    reasons: list[str] = []

    class ObservedWorker(Worker):
        async def close(self, *arguments: Any, **options: Any) -> Any:
            reasons.append(options.get("reason", ""))
            return await super().close(*arguments, **options)

    dask.config.set(certificates.NO_ROUTES)
    async with ObservedWorker(
        given.address,
        name=given.name,
        host=None if given.interface else seen_from(given.address),
        nthreads=1,
        resources=resources,
        interface=given.interface,
        death_timeout=given.death_timeout or (REJOIN_TIME if given.rejoin else None),
        security=tls.security(),
        **certificates.NO_DASHBOARD,
        # Memory is planned by `train` itself; spilling its arrays would only slow it.
        memory_limit=0,
    ) as worker:
        await worker.finished()
    return next(filter(None, reasons), "") == CONNECTION_BROKEN


def seen_from(address: str) -> str:
    """Return the address of this machine on the way to the scheduler."""
    from distributed.utils import get_ip

    host = certificates.address_parts(address).hostname or ""
    if certificates.is_loopback(host):
        return "127.0.0.1" if host == "localhost" else host
    return str(get_ip(host))


if __name__ == "__main__":
    sys.exit(worker_command(sys.argv[1:]))
