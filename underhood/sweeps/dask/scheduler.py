"""The scheduler of a sweep.

    python -m underhood.sweeps.dask.scheduler PORT [--host HOST]
        [--tls-ca FILE --tls-cert FILE --tls-key FILE | --insecure]

It listens on loopback, and shows no dashboard. On another host it needs certificates, because
whoever reaches a scheduler can run code on its workers.
"""

import argparse
import asyncio
import sys

from underhood.common.errors import BadInput
from underhood.sweeps.dask import certificates
from underhood.sweeps.dask.certificates import NO_DASHBOARD, TLSFiles

LOOPBACK = "127.0.0.1"
# How long a worker may be silent before its unit goes to another.
SILENCE = "30s"


def scheduler_command(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m underhood.sweeps.dask.scheduler")
    parser.add_argument("port", type=int, help="the port to listen on, as 8786")
    parser.add_argument("--host", default=LOOPBACK, help="to listen on; default: loopback")
    parser.add_argument("--silence", default=SILENCE, help="time after which a worker is given up")

    def serve(given: argparse.Namespace, tls: TLSFiles) -> None:
        scheme = "tls" if tls.given else "tcp"
        shown = f"[{given.host}]" if ":" in given.host else given.host
        address = f"{scheme}://{shown}:{given.port}"
        certificates.check_address(address, tls=tls.given, insecure=given.insecure, said="--host")
        configure(given.silence)
        try:
            asyncio.run(serve_scheduler(given, scheme, tls))
        except OSError as error:
            raise BadInput(f"cannot listen on {address}: {error.strerror or error}.") from None

    return certificates.run_server(parser, arguments, serve)


def configure(silence: str = SILENCE) -> None:
    """Set what a scheduler of sweeps does differently, before it is made."""
    import dask

    dask.config.set(
        {
            # A unit whose worker dies comes back to us; we decide and report.
            "distributed.scheduler.allowed-failures": 0,
            "distributed.scheduler.worker-ttl": silence,
            # No worker has two units while another has none.
            "distributed.scheduler.worker-saturation": 1.0,
            # Nothing grows with the number of units.
            "distributed.admin.log-length": 0,
        }
        | certificates.NO_ROUTES
    )


async def serve_scheduler(given: argparse.Namespace, scheme: str, tls: TLSFiles) -> None:
    from distributed import Scheduler

    place = {"host": given.host, "port": given.port, "protocol": f"{scheme}://"}
    async with Scheduler(**place, security=tls.security(), **NO_DASHBOARD) as scheduler:
        await scheduler.finished()


if __name__ == "__main__":
    sys.exit(scheduler_command(sys.argv[1:]))
