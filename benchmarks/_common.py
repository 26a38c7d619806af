"""What the benchmarks share: medians of repeated timings, and where results go."""

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

OUT = Path(__file__).resolve().parent.parent / "build" / "bench"


def seconds(run: Callable[[], Any], repeats: int = 5) -> float:
    """The median time of a call, after one that does not count."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def write(name: str, data: Any) -> None:
    """build/bench/NAME.json."""
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{name}.json").write_text(json.dumps(data, indent=2) + "\n")
