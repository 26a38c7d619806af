"""What `reproduce` will do, before it does it: finished results, runs, and an estimate of seconds.

An experiment costs what its runs cost and what judging them costs. Its budget in the registry is
for both. Training is shared out among the runs by their updates: those that are finished cost
nothing, and a run that was stopped costs what is left. A run that several experiments need counts
for the first of them, here as in the registry.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from underhood.common.files import Json
from underhood.common.live import duration_in_words
from underhood.common.provenance import provenance
from underhood.experiments.registry import EXPERIMENTS
from underhood.experiments.running.runner import resumable
from underhood.experiments.running.setting import Setting
from underhood.results.files import RESULT
from underhood.sweeps.study import Study
from underhood.training.storage.folder import checkpoints, is_finished

FINISHED, BEGUN, ABSENT = "finished", "begun", "to train"


@dataclass(frozen=True)
class PlannedRun:
    """A run: its students and updates, how many of these are made, and what is left in seconds."""

    name: str
    students: int
    steps: int
    done: int
    seconds: float = 0.0

    @property
    def state(self) -> str:
        return FINISHED if self.done == self.steps else BEGUN if self.done else ABSENT


@dataclass(frozen=True)
class PlannedExperiment:
    """An experiment: its runs that no experiment before it has, and what is left in seconds.

    finished  its result is kept, and nothing is done
    shared    how many runs it has in common with experiments before it
    judging   seconds after training
    """

    name: str
    finished: bool
    runs: tuple[PlannedRun, ...]
    shared: int
    judging: float

    @property
    def seconds(self) -> float:
        return 0.0 if self.finished else self.judging + sum(run.seconds for run in self.runs)

    def words(self) -> str:
        """Return what is there and what is left, as in: 2 of 5 runs finished, 1 begun."""
        if self.finished:
            return "finished at this commit"
        states = [run.state for run in self.runs]
        words = [f"{states.count(FINISHED)} of {in_number(len(states))} finished"] if states else []
        words += [f"{states.count(BEGUN)} begun"] if BEGUN in states else []
        words += [f"{in_number(self.shared)} shared with those above"] if self.shared else []
        return ", ".join(words) or "no runs"


def in_number(runs: int) -> str:
    return f"{runs} run{'s' if runs > 1 else ''}"


def plan_experiments(
    names: Sequence[str], scale: str, seeds: int | None, out: Path, *, resume: bool = False
) -> list[PlannedExperiment]:
    """Return what `run_all` with the same arguments will do; nothing is trained or written."""
    now = provenance() if resume else {}
    setting = Setting(scale, seeds, out, lambda done, total: None)
    seconds, planned, seen = seconds_of_runs(setting), [], set[str]()
    for name in names:
        experiment = EXPERIMENTS[name]
        finished = resume and resumable(out / name / RESULT, scale, seeds, now) is not None
        studies = experiment.studies(setting)
        runs = tuple(
            planned_run(run, study, setting, seconds[run])
            for run, study in studies.items()
            if run not in seen
        )
        if not finished:
            seen.update(studies)
        shared, judging = len(studies) - len(runs), experiment.judging(scale)
        planned.append(PlannedExperiment(name, finished, runs, shared, judging))
    return planned


def seconds_of_runs(setting: Setting) -> dict[str, float]:
    """Return about how long every run of a scale takes, if nothing of it is done."""
    seconds: dict[str, float] = {}
    for experiment in EXPERIMENTS.values():
        if setting.scale not in experiment.budget:
            continue
        studies = experiment.studies(setting)
        new = {name: study.recipe.steps for name, study in studies.items() if name not in seconds}
        training = experiment.budget[setting.scale] - experiment.judging(setting.scale)
        seconds |= {name: training * steps / sum(new.values()) for name, steps in new.items()}
    return seconds


def planned_run(name: str, study: Study, setting: Setting, seconds: float) -> PlannedRun:
    """Look how far a run is; `seconds` is what all of it takes."""
    folder, steps = setting.run_folder(name), study.recipe.steps
    newest = next(iter(checkpoints(folder)), None)
    done = steps if is_finished(folder) else 0 if newest is None else int(newest.stem)
    run = PlannedRun(name, len(study.members()), steps, done)
    return replace(run, seconds=seconds * (1 - done / steps))


def plan_rows(planned: Sequence[PlannedExperiment]) -> list[Json]:
    """Return a row for each experiment, and rows for its runs that are not finished.

    Runs of one experiment that have equal numbers stand in one row.
    """
    rows: list[Json] = []
    for experiment in planned:
        seconds = round(experiment.seconds)
        rows.append({"experiment": experiment.name, "what": experiment.words(), "seconds": seconds})
        alike: dict[tuple[int, int, int], list[PlannedRun]] = {}
        for run in () if experiment.finished else experiment.runs:
            if run.state != FINISHED:
                alike.setdefault((run.students, run.steps, run.done), []).append(run)
        for (students, steps, done), runs in alike.items():
            first, last = runs[0].name, runs[-1].name
            names = first if first == last else f"{len(runs)} runs, {first} to {last}"
            made = f", {done:,} made" if done else ""
            what = f"  {names}: {students} students, {steps:,} updates{made}"
            seconds = round(sum(run.seconds for run in runs))
            rows.append({"experiment": "", "what": what, "seconds": seconds})
    return rows


def plan_words(planned: Sequence[PlannedExperiment], scale: str, workers: int) -> str:
    """Return the estimate in a sentence.

    workers  processes that train at the same time
    """
    where = "one H200" if scale == "paper" else "two cores"
    total = duration_in_words(sum(experiment.seconds for experiment in planned))
    sharing = f"; {workers} processes share the device" if workers > 1 else ""
    return f"In all {total} on {where}, one run after the other{sharing}."
