"""`train`: students in ensembles, with progress, storage and resume.

docs/architecture.md lists the stages: make_ensemble, settings_of, arrange, run_steps (here),
evaluate_members, Run.
"""

import math
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from jaxtyping import PRNGKeyArray

from underhood.common.errors import BadInput, refuse
from underhood.common.numbers import whole_problems
from underhood.common.provenance import provenance
from underhood.layers.kernels.choice import default_backend
from underhood.tasks import Task
from underhood.training.arrangement import Arrangement, arrange
from underhood.training.deadline import Deadline, OutOfTime
from underhood.training.device import precision_of
from underhood.training.ensemble import Ensemble, StudentMaker, make_ensemble
from underhood.training.evaluation import evaluate_members
from underhood.training.logs import LossLog, check_log, opened_log
from underhood.training.members import Axes
from underhood.training.progress import Bar, stop_on_interrupt
from underhood.training.recipes import Recipe
from underhood.training.run import Run
from underhood.training.shrinking.handover import (
    Shrunk,
    check_plan,
    narrow_ensemble,
    wide_folder,
)
from underhood.training.shrinking.plan import Shrinking
from underhood.training.storage import folder as storage
from underhood.training.storage.settings import check_same_settings, settings_file, settings_of

# A chunk lasts about this long: often enough for the bar and for Ctrl-C, seldom enough that
# writing a checkpoint (at most a twentieth of the time) does not count.
CHUNK_SECONDS = 1.0
CHECKPOINT_SHARE = 20


def train(
    make_student: StudentMaker,
    task: Task,
    recipe: Recipe | Shrinking,
    *,
    widths: int | Iterable[int],
    key: PRNGKeyArray,
    seeds: int | Iterable[int] = 1,
    axes: Axes | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: bool | Callable[[int, int], None] | None = None,
    log: LossLog = None,
    lanes: int | None = None,
    memory: int | None = None,
) -> Run:
    """Train `make_student(width, key=key)` for every width, point of the axes, and seed.

    recipe    a Recipe, or a Shrinking: two recipes between which the students get smaller
    seeds     how many, or which; a member's keys depend on its own seed alone
    axes      learning_rate, weight_decay, teacher: a list of values used at every width,
              or (for numbers) a dict {width: value}
    out       a folder for checkpoints and results; the same call again resumes or returns them
    progress  whether to show a bar on stderr; None: where stderr is a terminal;
              or a function that is called with (steps done, steps in all)
    log       where losses go while training runs: a file *.csv, a folder for TensorBoard,
              or a function that is called with (step, losses of all members)
    lanes     members per program; None: all on an accelerator, one on a CPU
    memory    bytes to stay within; None: what is free
    """
    limits = {name: n for name, n in (("lanes", lanes), ("memory", memory)) if n is not None}
    refuse(whole_problems(**limits), about="train")
    check_log(log)
    first = recipe.wide if isinstance(recipe, Shrinking) else recipe
    ensemble = make_ensemble(
        make_student, task, first, widths=widths, seeds=seeds, axes=axes, key=key
    )
    if isinstance(recipe, Shrinking):
        if log is not None:
            raise BadInput("train: log= follows one Recipe, not a Shrinking; leave it out.")
        check_plan(ensemble, recipe, axes)
        return train_shrinking(
            ensemble, recipe, out=out, progress=progress, lanes=lanes, memory=memory
        )
    return train_members(ensemble, out=out, progress=progress, log=log, lanes=lanes, memory=memory)


def train_members(
    ensemble: Ensemble,
    *,
    out: str | os.PathLike[str] | None = None,
    progress: bool | Callable[[int, int], None] | None = None,
    log: LossLog = None,
    lanes: int | None = None,
    memory: int | None = None,
    deadline: Deadline | None = None,
    before: Shrunk | None = None,
) -> Run:
    """Train the members of an ensemble, or go on, or read the finished run; see `train`.

    deadline  when to stop, keep a checkpoint and raise OutOfTime; None: never
    before    the run that made the students, if one did; the curves go on from its curves
    """
    recipe, settings = ensemble.recipe, settings_of(ensemble)
    with precision_of(recipe.precision), storage.opened_folder(out) as folder:
        begun = None if folder is None else check_same_settings(folder, settings)
        if folder is not None and storage.is_finished(folder):
            return Run.load(folder, ensemble.make_student)
        if deadline is not None and deadline.over:
            raise OutOfTime("a run was not begun")
        with Bar(recipe.steps, len(ensemble.members), progress) as bar:
            grouping = tuple(map(tuple, begun["grouping"])) if begun else None
            arranged = arrange(ensemble, lanes=lanes, memory=memory, grouping=grouping)
            settings["grouping"] = [list(numbers) for numbers in arranged.groups]
            # "nvidia": kernels, where they apply; the names of JAX's backends: the plain path.
            origin = {**provenance(), "backend": default_backend()}
            origin["predicted_bytes"] = arranged.bytes
            if folder is not None and begun is None:
                storage.write_run_file(folder / storage.SETTINGS, settings_file(settings, origin))
            last = run_steps(arranged, folder, bar, log, deadline)
            bar.activity = "evaluating"
            states = arranged.by_member(last.states)
            rows = evaluate_members(ensemble, states)
        ends = ensemble.window * np.arange(1, ensemble.windows + 1)
        pairs = zip(ensemble.students, states, strict=True)
        run = Run(
            rows=tuple(rows),
            steps=np.minimum(ends, recipe.steps),
            losses=arranged.curves(last.states, recipe.steps),
            models=[parts.joined(state.weights) for parts, state in pairs],
            settings=settings,
            provenance={**origin, "seconds": round(last.seconds, 2)},
        )
        run = run if before is None else before.joined(run)
        if folder is not None:
            run.save(folder)
        return run


def train_shrinking(
    ensemble: Ensemble,
    plan: Shrinking,
    *,
    out: str | os.PathLike[str] | None = None,
    progress: bool | Callable[[int, int], None] | None = None,
    lanes: int | None = None,
    memory: int | None = None,
) -> Run:
    """Train the members, make them smaller, and train what is left of them.

    The first run lies in the folder `wide` of the second one's. Each resumes as a run does.
    """

    def shown(done_before: int) -> bool | Callable[[int, int], None] | None:
        if not callable(progress):
            return progress
        return lambda done, steps: progress(done_before + done, plan.steps)

    wide = train_members(
        ensemble, out=wide_folder(out), progress=shown(0), lanes=lanes, memory=memory
    )
    smaller, before = narrow_ensemble(ensemble, wide, plan)
    return train_members(
        smaller,
        out=out,
        progress=shown(plan.wide.steps),
        lanes=lanes,
        memory=memory,
        before=before,
    )


def read_members(ensemble: Ensemble, folder: Path) -> Run:
    """Read the finished run of an ensemble; refuse a run of another. Nothing is written or locked.

    A processor of another kind may round the first weights otherwise, so they count as the same if
    they agree up to rounding.
    """
    with precision_of(ensemble.recipe.precision):
        check_same_settings(folder, settings_of(ensemble), rounded=True)
        return Run.load(folder, ensemble.make_student)


def run_steps(
    arranged: Arrangement,
    folder: Path | None,
    bar: Bar,
    log: LossLog = None,
    deadline: Deadline | None = None,
) -> storage.Checkpoint:
    """Run all steps in chunks, from the newest checkpoint on; return where they end.

    deadline  checked after every chunk; a chunk is made shorter so that it ends before
    """
    states, total = arranged.first_states(), arranged.ensemble.recipe.steps
    stored = None if folder is None else storage.load_checkpoint(folder, states)
    now = stored or storage.Checkpoint(0, states, 0.0)
    chunk, target = 1, CHUNK_SECONDS
    with (
        opened_log(log, arranged.ensemble, now.step) as note,
        stop_on_interrupt(lambda: setattr(bar, "activity", "stopping")) as stop,
    ):
        if now.step:
            note(now.step, arranged.curves(now.states, now.step))
        while now.step < total:
            began = time.monotonic()
            until = min(now.step + chunk, total)
            states = arranged.advance(now.states, now.step, until)
            taken = time.monotonic() - began
            speed = (until - now.step) / max(taken, 1e-9)
            now = storage.Checkpoint(until, states, now.seconds + taken)
            curves = arranged.curves(states, until)
            bar.update(until, curves[:, (until - 1) // arranged.ensemble.window], speed)
            if folder is not None:
                began = time.monotonic()
                storage.save_checkpoint(folder, now)
                target = max(CHUNK_SECONDS, CHECKPOINT_SHARE * (time.monotonic() - began))
            # After the checkpoint, so that a log never knows more than it.
            note(until, curves)
            if stop.is_set():
                kept = f" and kept in {folder}; the same call goes on" if folder else ""
                raise KeyboardInterrupt(f"stopped after step {until} of {total}{kept}")
            left = math.inf if deadline is None else deadline.left
            if not left and until < total:
                raise OutOfTime(f"stopped after step {until:,} of {total:,}")
            chunk = int(np.clip(speed * min(target, left), 1, 8 * chunk))
    return now
