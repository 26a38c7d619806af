"""Running experiments: progress on stderr, results on disk."""

import dataclasses
import difflib
import functools
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

from underhood.common.errors import BadInput, in_words
from underhood.common.files import Json
from underhood.common.provenance import provenance
from underhood.experiments.registry import EXPERIMENTS, SCALES
from underhood.experiments.running.concurrency import side_by_side
from underhood.experiments.running.display import FAILED, ExperimentsDisplay
from underhood.experiments.running.outcomes import Outcome, judge_outcome
from underhood.experiments.running.setting import Setting
from underhood.results.files import RESULT, check_replaceable, finished_result, write_result
from underhood.sweeps.engines import Engine, Local

# What a folder of results may hold beside the results.
BESIDE_RESULTS = ("runs", "report.html", "figures")


def suggest(name: str, known: Iterable[str]) -> str:
    """Return a sentence with the nearest known name, and all of them."""
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
) -> list[Json]:
    """Run experiments and return the results of those that did not fail, as written.

    A failure is printed to stderr and the rest still run. If every experiment is refused, BadInput
    is raised.

    seeds     how many; None: each experiment's default
    out       folder of the results
    resume    read results that are finished at this scale, with these seeds and by this commit
    engine    trains the students; None: this process
    """
    check_folder(out)
    for name in names:
        check_replaceable(out / name / RESULT, SCALES[: SCALES.index(scale) + 1])
    now = provenance()["commit"] if resume else None
    results = {
        name: done
        for name in names
        if resume and (done := resumable(out / name / RESULT, scale, seeds, now)) is not None
    }
    budgets = {name: EXPERIMENTS[name].budget.get(scale, 60) for name in names}
    with ExperimentsDisplay(budgets) as display:
        for name, done in results.items():
            display.finish(name, f"{done['verdict']}, finished before")
        left = [name for name in names if name not in results]
        engine = engine or Local()
        setting = Setting(scale, seeds, out, lambda done, total: None, engine, frozenset(left))
        refused: dict[str, list[str]] = {}
        for name, ending in outcomes(left, setting, display):
            try:
                if isinstance(ending, Exception):
                    raise ending
                outcome, seconds = ending
                result = judge_outcome(name, scale, outcome, seconds, asked=seeds)
                results[name] = write_result(result, out)
                display.finish(name, result.verdict)
            except (BadInput, OSError) as error:
                display.finish(name, FAILED)
                refused.setdefault(in_words(error), []).append(name)
            except Exception as error:
                display.finish(name, FAILED)
                lines = "".join(traceback.format_exception(error))
                print(f"{name} failed:\n{lines}", file=sys.stderr)
    if sum(map(len, refused.values())) == len(names):
        raise BadInput(" ".join(refused))
    for problem, whose in refused.items():
        print(f"underhood: {', '.join(whose)}: {problem}", file=sys.stderr)
    return [results[name] for name in names if name in results]


# An outcome and the seconds it took, or what the experiment raised.
ExperimentEnd = tuple[Outcome, float] | Exception


def outcomes(
    names: list[str], setting: Setting, display: ExperimentsDisplay
) -> Iterator[tuple[str, ExperimentEnd]]:
    """Yield the name and the ending of every experiment, as they end."""

    def run(name: str) -> ExperimentEnd:
        started = time.monotonic()
        try:
            outcome = EXPERIMENTS[name].run(dataclasses.replace(setting, tick=display.start(name)))
            return outcome, time.monotonic() - started
        except Exception as error:
            return error

    if setting.engine.concurrent:
        # Experiments wait for their students most of the time; those are trained elsewhere.
        yield from side_by_side({name: functools.partial(run, name) for name in names})
    else:
        yield from ((name, run(name)) for name in names)


def check_folder(out: Path) -> None:
    """Make the folder of results; refuse one that holds other files, or cannot be written."""
    if out.exists() and not out.is_dir():
        raise BadInput(f"The output {out} is a file; name a folder.")
    try:
        out.mkdir(parents=True, exist_ok=True)
        held = {path.name for path in out.iterdir()}
        probe = out / f".{time.time_ns()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise BadInput(
            f"The output folder {out} cannot be written: {error.strerror}; choose another --out."
        ) from None
    foreign = {name for name in held - {*EXPERIMENTS, *BESIDE_RESULTS} if not name.startswith(".")}
    if foreign and not any((out / name / RESULT).exists() for name in EXPERIMENTS):
        raise BadInput(
            f"The output folder {out} holds other things ({sorted(foreign)[0]}); name a new or "
            "empty folder, or one with results."
        )


def resumable(path: Path, scale: str, seeds: int | None, commit: str | None) -> Json | None:
    """Read a finished result that a new run would only repeat; None if there is none."""
    result = finished_result(path)
    # A changed source tree has no commit to compare.
    if result is None or commit is None or commit.endswith("+"):
        return None
    origin = result["provenance"]
    held = result["scale"], origin.get("asked", "unknown"), origin.get("commit")
    return result if held == (scale, seeds, commit) else None
