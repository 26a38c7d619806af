"""Running experiments: progress on stderr, results on disk."""

import dataclasses
import functools
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from underhood.common.errors import BadInput, in_words
from underhood.common.files import Json, make_output_folder
from underhood.common.provenance import provenance
from underhood.experiments.registry import EXPERIMENTS, SCALES
from underhood.experiments.running.display import FAILED, OUT_OF_TIME, ExperimentsDisplay
from underhood.experiments.running.outcomes import judge_outcome
from underhood.experiments.running.setting import Raised, Setting, answers, ended_calls
from underhood.results.files import RESULT, check_replaceable, finished_result, write_result
from underhood.sweeps.engines import Engine, Local
from underhood.training.deadline import Deadline, OutOfTime

# What a folder of results may hold beside the results.
BESIDE_RESULTS = ("runs", "report.html", "figures")
# After the deadline, runs have so many seconds to end a chunk of steps and write a checkpoint.
GRACE = 20.0
# Exit status of a command that ran out of time: what sysexits.h calls a temporary failure.
STATUS_UNFINISHED = 75


@dataclasses.dataclass(frozen=True)
class Ran:
    """What became of experiments: results as they were written, and names that ran out of time."""

    results: list[Json]
    unfinished: list[str]


def run_all(
    names: list[str],
    scale: str,
    seeds: int | None,
    out: Path,
    *,
    resume: bool = False,
    engine: Engine | None = None,
) -> Ran:
    """Run experiments and return the results of those that did not fail, as written.

    A failure is printed to stderr and the rest still run. If every experiment is refused, BadInput
    is raised. At the deadline of the engine training stops and keeps checkpoints; what is finished
    by then has its result, and the same call goes on with the rest.

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
        unfinished = dict.fromkeys(left, "it was still busy")
        for name, result in until_deadline(calls, engine):
            unfinished.pop(name)
            if not isinstance(result, Exception):
                results[name] = result
                display.finish(name, result["verdict"])
                continue
            if isinstance(result, OutOfTime):
                unfinished[name] = str(result)
                continue
            display.finish(name, FAILED)
            if isinstance(result, BadInput | OSError):
                refused.setdefault(in_words(result), []).append(name)
            else:
                lines = "".join(traceback.format_exception(result))
                print(f"{name} failed:\n{lines}", file=sys.stderr)
        for name, why in unfinished.items():
            display.finish(name, f"{OUT_OF_TIME} ({why})")
    if sum(map(len, refused.values())) == len(names):
        raise BadInput(" ".join(refused))
    for problem, whose in refused.items():
        print(f"underhood: {', '.join(whose)}: {problem}", file=sys.stderr)
    return Ran([results[name] for name in names if name in results], list(unfinished))


def until_deadline(
    calls: Mapping[str, Callable[[], Json | Exception]], engine: Engine
) -> Iterator[tuple[str, Json | Exception]]:
    """Yield names and answers of experiments as they end; stop soon after the engine's deadline.

    Side by side, experiments wait most of the time for students that are trained elsewhere.
    """
    if engine.deadline is None:
        yield from answers(calls, concurrent=engine.concurrent)
        return
    # Judging cannot be stopped, so it runs in threads that need not be waited for.
    until = Deadline(engine.deadline.at + GRACE)
    for name, answer in ended_calls(calls, concurrent=engine.concurrent, until=until):
        if isinstance(answer, Raised):
            raise answer.error
        yield name, answer


def run_experiment(name: str, setting: Setting, display: ExperimentsDisplay) -> Json | Exception:
    """Run an experiment and write its result; return what was written, or what was raised."""
    started, deadline = time.monotonic(), setting.engine.deadline
    if deadline is not None and deadline.over:
        return OutOfTime("not begun")
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
