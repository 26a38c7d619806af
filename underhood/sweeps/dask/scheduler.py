"""The scheduler of a sweep.

    python -m underhood.sweeps.dask.scheduler PORT [--host HOST]
        [--tls-ca FILE --tls-cert FILE --tls-key FILE | --insecure]

It listens on loopback, and shows no dashboard. On another host it wants certificates, because
whoever reaches a scheduler can run code on its workers.
"""

import argparse
import asyncio
import sys

from underhood.common.errors import BadInput
from underhood.sweeps.dask.security import HTTP, NOBODY, Certificates, check_address
from underhood.sweeps.dask.worker import TLS, certificates_of, end_with_parent

LOOPBACK = "127.0.0.1"
# How long a worker may be silent before its unit goes to another.
SILENCE = "30s"


def main(arguments: list[str]) -> int:
    """Serve until told to end."""
    parser = argparse.ArgumentParser(prog="python -m underhood.sweeps.dask.scheduler")
    parser.add_argument("port", type=int, help="to listen on, as 8786")
    parser.add_argument(
        "--host", default=LOOPBACK, help="to listen on; this machine alone if not given"
    )
    parser.add_argument("--silence", default=SILENCE, help="after which a worker is given up")
    for names in TLS:
        parser.add_argument(*names, help="a file; all three, or none")
    parser.add_argument("--insecure", action="store_true", help="on a network without strangers")
    parser.add_argument("--with-parent", type=int, help="end when this process does")
    given = parser.parse_args(arguments)
    tls = certificates_of(given)
    try:
        tls.check()
        scheme = "tls" if tls.given else "tcp"
        shown = f"[{given.host}]" if ":" in given.host else given.host
        address = f"{scheme}://{shown}:{given.port}"
        check_address(address, tls=tls.given, insecure=given.insecure, said="--host")
    except BadInput as error:
        print(f"underhood: {error}", file=sys.stderr)
        return 2
    if given.with_parent is not None:
        end_with_parent(given.with_parent)
    configure(given.silence)
    try:
        asyncio.run(serve(given.host, given.port, scheme, tls))
    except OSError as error:
        print(f"underhood: cannot listen on {address}: {error.strerror or error}.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        pass
    return 0


def configure(silence: str = SILENCE) -> None:
    """What a scheduler of sweeps does otherwise than others; before it is made."""
    import dask

    dask.config.set(
        {
            # A unit whose worker dies comes back to us, who decide and tell.
            "distributed.scheduler.allowed-failures": 0,
            "distributed.scheduler.worker-ttl": silence,
            # No worker has two units while another has none.
            "distributed.scheduler.worker-saturation": 1.0,
            # Nothing grows with the number of units.
            "distributed.admin.log-length": 0,
        }
        | NOBODY
    )


async def serve(host: str, port: int, scheme: str, tls: Certificates) -> None:
    """Until closed."""
    from distributed import Scheduler

    async with Scheduler(
        host=host,
        port=port,
        protocol=f"{scheme}://",
        security=tls.security(),
        dashboard=False,
        dashboard_address=HTTP,
    ) as scheduler:
        await scheduler.finished()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
