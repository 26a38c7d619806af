"""The scheduler of a sweep that starts its own workers.

    python -m underhood.sweeps.scheduler PORT

It listens on loopback alone, shows no dashboard, and ends with the process that started it.
"""

import asyncio
import sys

from underhood.sweeps.worker import end_with_parent

LOOPBACK = "127.0.0.1"


async def serve(port: int) -> None:
    """Until closed."""
    from distributed import Scheduler

    async with Scheduler(host=LOOPBACK, port=port, dashboard=False) as scheduler:
        await scheduler.finished()


if __name__ == "__main__":
    end_with_parent()
    asyncio.run(serve(int(sys.argv[1])))
