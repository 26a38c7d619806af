"""One worker: a process that runs one unit at a time on its own cores or its own GPU.

    python -m underhood.sweeps.worker ADDRESS [--name NAME] [--cores 0,1] [--gpu 0]
        [--tls-ca FILE --tls-cert FILE --tls-key FILE] [--with-parent]

Threads are pinned before JAX starts, so that workers side by side do not fight over cores; a GPU
worker sees one GPU. Matrix products are computed in full precision, as everywhere.
"""

import argparse
import asyncio
import ctypes
import os
import signal
import sys

# Of a GPU's memory, what JAX may take.
FRACTION = "0.85"
PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Serve until the scheduler says goodbye or is lost."""
    parser = argparse.ArgumentParser(prog="python -m underhood.sweeps.worker")
    parser.add_argument("address")
    for name in ("--name", "--cores", "--gpu", "--tls-ca", "--tls-cert", "--tls-key"):
        parser.add_argument(name)
    parser.add_argument("--with-parent", action="store_true")
    given = parser.parse_args(arguments)
    if given.with_parent:
        end_with_parent()
    resources = pinned(given.cores, given.gpu)
    asyncio.run(serve(given, resources))
    return 0


def end_with_parent() -> None:
    """Ask Linux to kill this process when the one that started it dies, however it dies."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have died before we asked.
    if parent == 1:
        sys.exit(1)


def pinned(cores: str | None, gpu: str | None) -> dict[str, float]:
    """Set what JAX reads when it starts; what this worker has to offer."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", FRACTION)
        return {"unit": 1, "gpu": 1}
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if cores is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    return {"unit": 1, "cpu": 1}


async def serve(given: argparse.Namespace, resources: dict[str, float]) -> None:
    """Until closed."""
    from distributed import Worker

    from underhood.sweeps.security import security_of

    async with Worker(
        given.address,
        name=given.name,
        nthreads=1,
        resources=resources,
        security=security_of(given.tls_ca, given.tls_cert, given.tls_key),
        dashboard=False,
        # Memory is planned by `train` itself; spilling its arrays would only slow it.
        memory_limit=0,
    ) as worker:
        await worker.finished()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
