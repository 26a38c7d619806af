"""Running experiments, one after the other or on an engine: progress on stderr, results on disk."""

import dataclasses
import difflib
import functools
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from underhood.common.errors import BadInput, in_words
from underhood.common.provenance import provenance
from underhood.experiments.registry import EXPERIMENTS, SCALES
from underhood.experiments.running.concurrency import side_by_side
from underhood.experiments.running.display import FAILED, Display
from underhood.experiments.running.outcomes import (
    Outcome,
    check_replaceable,
    judge,
    whole_result,
    write,
)
from underhood.experiments.running.setting import Setting
from underhood.sweeps.engines import Engine

# What else may lie in a folder of results.
RUNS, REPORT, FIGURES = "runs", "report.html", "figures"


def suggest(name: str, known: Iterable[str]) -> str:
    """The nearest known name, and all of them."""
    close = difflib.get_close_matches(name, list(known), n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{hint} Known: {', '.join(known)}."


def run_all(
    names: list[str],
    scale: str,
    seeds: int | None,
    out: Path,
    *,
    resume: bool = False,
    engine: Engine | None = None,
) -> list[dict[str, Any]]:
    """The results of those that did not fail, as they were written.

    One that fails does not stop the others: it is told on stderr. Where all are refused, so are we.

    resume    those that are finished, at this scale, with these seeds and by this commit, are read
    engine    who trains, all experiments side by side; None: this process, one after the other
    """
    check_folder(out)
    for name in names:
        check_replaceable(out / name / "result.json", SCALES[: SCALES.index(scale) + 1])
    now = provenance()["commit"] if resume else None
    results = {
        name: done
        for name in names
        if resume and (done := finished(out / name / "result.json", scale, seeds, now)) is not None
    }
    budgets = {name: EXPERIMENTS[name].budget.get(scale, 60) for name in names}
    with Display(budgets) as display:
        for name, done in results.items():
            display.finish(name, f"{done['verdict']}, finished before")
        left = [name for name in names if name not in results]
        anew = frozenset(left)
        setting = Setting(scale, seeds, out, lambda done, total: None, engine, anew)
        refused: dict[str, list[str]] = {}
        for name, found in outcomes(left, setting, display):
            try:
                if isinstance(found, Exception):
                    raise found
                outcome, seconds = found
                judged = judge(name, scale, outcome, seconds, asked=seeds)
                results[name] = write(judged, out)
                display.finish(name, judged.verdict)
            except (BadInput, OSError) as error:
                display.finish(name, FAILED)
                refused.setdefault(in_words(error), []).append(name)
            except Exception as error:
                display.finish(name, FAILED)
                told = "".join(traceback.format_exception(error))
                print(f"{name} failed:\n{told}", file=sys.stderr)
    if sum(map(len, refused.values())) == len(names):
        raise BadInput(" ".join(refused))
    for problem, whose in refused.items():
        print(f"underhood: {', '.join(whose)}: {problem}", file=sys.stderr)
    return [results[name] for name in names if name in results]


Found = tuple[Outcome, float] | Exception


def outcomes(names: list[str], setting: Setting, display: Display) -> Iterator[tuple[str, Found]]:
    """What each experiment gives, and in how many seconds; or what it raised."""

    def one(name: str) -> Found:
        started = time.monotonic()
        own = dataclasses.replace(setting, tick=display.start(name))
        try:
            return EXPERIMENTS[name].run(own), time.monotonic() - started
        except Exception as error:
            return error

    if setting.engine is None:
        yield from ((name, one(name)) for name in names)
        return
    # Experiments wait for their students most of the time; those are trained elsewhere.
    yield from side_by_side({name: functools.partial(one, name) for name in names})


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
    result = whole_result(path)
    # A changed source tree has no name to compare.
    if result is None or commit is None or commit.endswith("+"):
        return None
    origin = result["provenance"]
    found = result["scale"], origin.get("asked", "unknown"), origin.get("commit")
    return result if found == (scale, seeds, commit) else None
