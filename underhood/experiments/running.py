"""Running experiments one after the other: progress on stderr, results on disk."""

import dataclasses
import difflib
import sys
import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from underhood.experiments.registry import EXPERIMENTS
from underhood.experiments.results import judge, write
from underhood.layers.checks import BadInput


def suggest(name: str, known: Iterable[str]) -> str:
    """The nearest known name, and all of them."""
    close = difflib.get_close_matches(name, list(known), n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{hint} Known: {', '.join(known)}."


def run_all(names: list[str], scale: str, seeds: int | None, out: Path) -> list[dict[str, Any]]:
    """The results of those that did not fail, as they were written."""
    out.mkdir(parents=True, exist_ok=True)
    results = []
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f}%"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    ) as progress:
        for name in names:
            task = progress.add_task(f"{name} ({scale})", total=1)
            started = time.monotonic()
            try:
                outcome = EXPERIMENTS[name].run(
                    scale,
                    seeds,
                    lambda done, total, task=task: progress.update(  # type: ignore[misc]
                        task, completed=done, total=total
                    ),
                )
            except (BadInput, KeyboardInterrupt):
                raise
            except Exception:
                # One experiment that fails does not stop the others.
                progress.stop_task(task)
                print(f"{name} failed:\n{traceback.format_exc()}", file=sys.stderr)
                continue
            judged = judge(name, scale, outcome, time.monotonic() - started)
            write(judged, out)
            results.append(dataclasses.asdict(judged))
    return results
