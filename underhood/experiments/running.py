"""Running experiments one after the other: progress, results on disk, the verdict table."""

import dataclasses
import difflib
import sys
import time
import traceback
from collections.abc import Iterable
from pathlib import Path

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from underhood.experiments.registry import EXPERIMENTS
from underhood.experiments.results import judge, write
from underhood.experiments.verdicts import DIFFERS
from underhood.layers.checks import BadInput
from underhood.report.terminal import console, plain_table, verdict_table


def suggest(name: str, known: Iterable[str]) -> str:
    """The nearest known name, and all of them."""
    close = difflib.get_close_matches(name, list(known), n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{hint} Known: {', '.join(known)}."


def run_all(names: list[str], scale: str, seeds: int | None, out: Path) -> tuple[int, int]:
    """Run, write and show; returns how many failed and how many differ."""
    out.mkdir(parents=True, exist_ok=True)
    screen = console()
    results, failed = [], 0
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f}%"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console(stderr=True),
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
                failed += 1
                progress.stop_task(task)
                print(f"{name} failed:\n{traceback.format_exc()}", file=sys.stderr)
                continue
            judged = judge(name, scale, outcome, time.monotonic() - started)
            write(judged, out)
            results.append(dataclasses.asdict(judged))
    for result in results:
        if result["rows"]:
            screen.print(f"\n{result['experiment']}: {EXPERIMENTS[result['experiment']].claim}")
            screen.print(plain_table(list(result["rows"])))
        for note in result["notes"]:
            screen.print(f"- {note}")
    screen.print("\nVerdicts")
    screen.print(verdict_table(results))
    return failed, sum(result["verdict"] == DIFFERS for result in results)
