"""Running experiments one after the other: progress on stderr, results on disk."""

import dataclasses
import difflib
import json
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
from underhood.experiments.setting import Setting
from underhood.layers.checks import BadInput
from underhood.training.provenance import provenance


def suggest(name: str, known: Iterable[str]) -> str:
    """The nearest known name, and all of them."""
    close = difflib.get_close_matches(name, list(known), n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{hint} Known: {', '.join(known)}."


def run_all(
    names: list[str], scale: str, seeds: int | None, out: Path, *, resume: bool = False
) -> list[dict[str, Any]]:
    """The results of those that did not fail, as they were written.

    resume: those that are finished, at this scale, with these seeds and by this commit, are read.
    """
    out.mkdir(parents=True, exist_ok=True)
    results = []
    now = provenance()["commit"] if resume else None
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f}%"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    ) as progress:
        for name in names:
            done = finished(out / name / "result.json", scale, seeds, now) if resume else None
            if done is not None:
                progress.add_task(f"{name} ({scale}), finished before", total=1, completed=1)
                results.append(done)
                continue
            task = progress.add_task(f"{name} ({scale})", total=1)
            started = time.monotonic()
            try:
                outcome = EXPERIMENTS[name].run(
                    Setting(
                        scale,
                        seeds,
                        out,
                        lambda done, total, task=task: progress.update(  # type: ignore[misc]
                            task, completed=done, total=total
                        ),
                    )
                )
            except (BadInput, KeyboardInterrupt):
                raise
            except Exception:
                # One experiment that fails does not stop the others.
                progress.stop_task(task)
                print(f"{name} failed:\n{traceback.format_exc()}", file=sys.stderr)
                continue
            judged = judge(name, scale, outcome, time.monotonic() - started, asked=seeds)
            write(judged, out)
            results.append(dataclasses.asdict(judged))
    return results


def finished(
    path: Path, scale: str, seeds: int | None, commit: str | None
) -> dict[str, Any] | None:
    """A result that running again would only repeat; None where there is none."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        origin = result["provenance"]
        same = result["scale"] == scale and origin["asked"] == seeds
    except (OSError, ValueError, KeyError, TypeError):
        return None
    # A changed source tree has no name to compare.
    known = commit is not None and not commit.endswith("+") and origin.get("commit") == commit
    return result if same and known else None
