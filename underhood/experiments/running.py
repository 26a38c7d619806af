"""Running experiments one after the other: progress on stderr, results on disk."""

import difflib
import json
import sys
import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from underhood.experiments.display import FAILED, Display
from underhood.experiments.registry import EXPERIMENTS
from underhood.experiments.results import ARRAYS, check_format, judge, write
from underhood.experiments.setting import Setting
from underhood.layers.checks import BadInput
from underhood.training.provenance import provenance

# What else may lie in a folder of results.
RUNS, REPORT, FIGURES = "runs", "report.html", "figures"


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
    check_folder(out)
    for name in names:
        check_format(out / name / "result.json")
    results = []
    now = provenance()["commit"] if resume else None
    before = {
        name: finished(out / name / "result.json", scale, seeds, now) if resume else None
        for name in names
    }
    budgets = {name: EXPERIMENTS[name].budget.get(scale, 60) for name in names}
    with Display(budgets) as display:
        for name in names:
            done = before[name]
            if done is not None:
                display.finish(name, f"{done['verdict']}, finished before")
                results.append(done)
                continue
            started = time.monotonic()
            try:
                outcome = EXPERIMENTS[name].run(Setting(scale, seeds, out, display.start(name)))
            except (BadInput, KeyboardInterrupt):
                raise
            except Exception:
                # One experiment that fails does not stop the others.
                display.finish(name, FAILED)
                print(f"{name} failed:\n{traceback.format_exc()}", file=sys.stderr)
                continue
            judged = judge(name, scale, outcome, time.monotonic() - started, asked=seeds)
            results.append(write(judged, out))
            display.finish(name, judged.verdict)
    return results


def check_folder(out: Path) -> None:
    """Make the folder of results; refuse one that holds something else, or cannot be written."""
    if out.exists() and not out.is_dir():
        raise BadInput(f"The output {out} is a file; name a folder.")
    try:
        out.mkdir(parents=True, exist_ok=True)
        held = {one.name for one in out.iterdir()}
        probe = out / f".{time.time_ns()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise BadInput(
            f"The output folder {out} cannot be written: {error.strerror}; choose another --out."
        ) from None
    ours = {*EXPERIMENTS, RUNS, REPORT, FIGURES}
    foreign = {name for name in held - ours if not name.startswith(".")}
    if foreign and not any((out / name / "result.json").exists() for name in EXPERIMENTS):
        raise BadInput(
            f"The output folder {out} holds other things ({sorted(foreign)[0]}); name a new or "
            "empty folder, or one with results."
        )


def finished(
    path: Path, scale: str, seeds: int | None, commit: str | None
) -> dict[str, Any] | None:
    """A result that running again would only repeat; None where there is none."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        origin = result["provenance"]
        same = result["scale"] == scale and origin["asked"] == seeds
        whole = {"experiment", "verdict", "numbers", "rows", "notes", "arrays"} <= result.keys()
        # Figures are drawn from the arrays; without them it is not finished.
        whole = whole and (not result["arrays"] or (path.parent / ARRAYS).exists())
    except (OSError, ValueError, KeyError, TypeError):
        return None
    # A changed source tree has no name to compare.
    known = commit is not None and not commit.endswith("+") and origin.get("commit") == commit
    return result if same and known and whole else None
