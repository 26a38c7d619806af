"""Running experiments: progress on stderr, results on disk."""

import dataclasses
import functools
import sys
import time
import traceback
from pathlib import Path

from underhood.common.errors import BadInput, in_words
from underhood.common.files import Json, make_output_folder
from underhood.common.provenance import provenance
from underhood.experiments.registry import EXPERIMENTS, SCALES
from underhood.experiments.running.display import FAILED, ExperimentsDisplay
from underhood.experiments.running.outcomes import judge_outcome
from underhood.experiments.running.setting import Setting, answers
from underhood.results.files import RESULT, check_replaceable, finished_result, write_result
from underhood.sweeps.engines import Engine, Local

# What a folder of results may hold beside the results.
BESIDE_RESULTS = ("runs", "report.html", "figures")


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
    begun = any((out / name / RESULT).exists() for name in EXPERIMENTS)
    make_output_folder(out, ours={*EXPERIMENTS, *BESIDE_RESULTS}, begun=begun)
    for name in names:
        check_replaceable(out / name / RESULT, SCALES[: SCALES.index(scale) + 1])
    now = provenance() if resume else {}
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
        calls = {name: functools.partial(run_experiment, name, setting, display) for name in left}
        refused: dict[str, list[str]] = {}
        # Side by side, experiments wait most of the time for students that are trained elsewhere.
        for name, result in answers(calls, concurrent=engine.concurrent):
            if not isinstance(result, Exception):
                results[name] = result
                display.finish(name, result["verdict"])
                continue
            display.finish(name, FAILED)
            if isinstance(result, BadInput | OSError):
                refused.setdefault(in_words(result), []).append(name)
            else:
                lines = "".join(traceback.format_exception(result))
                print(f"{name} failed:\n{lines}", file=sys.stderr)
    if sum(map(len, refused.values())) == len(names):
        raise BadInput(" ".join(refused))
    for problem, whose in refused.items():
        print(f"underhood: {', '.join(whose)}: {problem}", file=sys.stderr)
    return [results[name] for name in names if name in results]


def run_experiment(name: str, setting: Setting, display: ExperimentsDisplay) -> Json | Exception:
    """Run an experiment and write its result; return what was written, or what was raised."""
    started = time.monotonic()
    try:
        outcome = EXPERIMENTS[name].run(dataclasses.replace(setting, tick=display.start(name)))
        seconds = time.monotonic() - started
        result = judge_outcome(name, setting.scale, outcome, seconds, asked=setting.seeds)
        return write_result(result, setting.folder)
    except Exception as error:
        return error


def resumable(path: Path, scale: str, seeds: int | None, now: Json) -> Json | None:
    """Read a finished result that a new run would only repeat; None if there is none.

    now  the provenance of a new run
    """
    result, commit, source = finished_result(path), now.get("commit"), now.get("source")
    # A changed source tree has no commit to compare.
    if result is None or commit is None or commit.endswith("+"):
        return None
    origin = result["provenance"]
    held = result["scale"], origin.get("asked", "unknown"), origin.get("commit")
    # Older results have no checksum of their source.
    same = held == (scale, seeds, commit) and origin.get("source", source) == source
    return result if same else None
