"""`train`: students in ensembles, with progress, storage and resume."""

import contextlib
import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import CodeType
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from underhood.common.errors import BadInput
from underhood.common.numbers import is_whole
from underhood.common.provenance import provenance
from underhood.layers import parameter_count
from underhood.layers.files.storage import take_apart
from underhood.tasks import Task
from underhood.training.device import precision_of
from underhood.training.ensemble import Ensemble
from underhood.training.evaluation import evaluate
from underhood.training.members import TEACHER, combine
from underhood.training.progress import Bar, stop_on_interrupt
from underhood.training.recipes import Recipe
from underhood.training.run import Run
from underhood.training.step import ALIVE, State, with_teacher
from underhood.training.storage import folder as storage
from underhood.training.storage.checksums import sketch

# A chunk lasts about this long: often enough for the bar and for Ctrl-C, seldom enough that
# writing a checkpoint (at most a twentieth of the time) does not count.
CHUNK_SECONDS = 1.0
CHECKPOINT_SHARE = 20


def train(
    make_student: Callable[..., Any],
    task: Task,
    recipe: Recipe,
    *,
    widths: int | Iterable[int],
    key: PRNGKeyArray,
    seeds: int | Iterable[int] = 1,
    axes: Mapping[str, Iterable[Any]] | None = None,
    out: str | Path | None = None,
    progress: bool | Callable[[int, int], None] | None = None,
    lanes: int | None = None,
    memory: int | None = None,
) -> Run:
    """Train `make_student(width, key=key)` for every width, point of the axes, and seed.

    seeds     how many, or which; a member's keys depend on its own seed alone
    axes      what else differs: learning_rate, weight_decay, teacher; a list of values for all,
              or of a number a dictionary that gives each width its own
    out       a folder for checkpoints and results; the same call again resumes or returns them
    progress  a bar on stderr; None: where stderr is a terminal; or told (steps done, of how many)
    lanes     members per program; None: all on an accelerator, one on a CPU
    memory    bytes to stay within; None: what is free
    """
    check(make_student, task, recipe, lanes, memory)
    key = typed(key)
    with precision_of(recipe.precision), contextlib.ExitStack() as held:
        ensemble, task = gathered(make_student, task, recipe, widths, seeds, axes, key)
        settings = describe(ensemble, task, key)
        folder = None if out is None else storage.folder_of(out)
        grouping = None
        if folder is not None:
            storage.make_folder(folder)
            held.enter_context(storage.locked(folder))
            stored = storage.agree_or_none(folder, settings)
            if (folder / "members.json").exists():
                return Run.load(folder, make_student)
            grouping = tuple(map(tuple, stored["grouping"])) if stored else None
        bar = held.enter_context(Bar(recipe.steps, len(ensemble.members), progress))
        ensemble.arrange(lanes, grouping, memory)
        settings["grouping"] = [list(one) for one in ensemble.groups]
        where = {**provenance(), "predicted_bytes": ensemble.bytes}
        if folder is not None and grouping is None:
            storage.begin(folder, settings, where)
        _, states, seconds = run_steps(ensemble, folder, bar)
        bar.say("evaluating")
        rows = judge(ensemble, states, task, key)
        ends = ensemble.window * np.arange(1, ensemble.windows + 1)
        run = Run(
            rows=tuple(rows),
            steps=np.minimum(ends, recipe.steps),
            losses=ensemble.curves(states, recipe.steps),
            models=ensemble.models(states),
            settings=settings,
            provenance={**where, "seconds": round(seconds, 2)},
        )
        if folder is not None:
            run.save(folder)
        return run


def settings_of(
    make_student: Callable[..., Any],
    task: Task,
    recipe: Recipe,
    *,
    widths: int | Iterable[int],
    key: PRNGKeyArray,
    seeds: int | Iterable[int] = 1,
    axes: Mapping[str, Iterable[Any]] | None = None,
) -> dict[str, Any]:
    """What `train` would write down about a run, but for its grouping."""
    check(make_student, task, recipe, None, None)
    key = typed(key)
    with precision_of(recipe.precision):
        ensemble, task = gathered(make_student, task, recipe, widths, seeds, axes, key)
        return describe(ensemble, task, key)


def gathered(
    make_student: Callable[..., Any],
    task: Task,
    recipe: Recipe,
    widths: int | Iterable[int],
    seeds: int | Iterable[int],
    axes: Mapping[str, Iterable[Any]] | None,
    key: PRNGKeyArray,
) -> tuple[Ensemble, Task]:
    """All members, and the task in the recipe's precision."""
    members, teachers = combine(seeds, widths, axes, task)
    task, teachers = in_precision(recipe.precision, (task, teachers))
    return Ensemble(make_student, members, teachers, task, recipe, key), task


def check(make_student: Any, task: Any, recipe: Any, lanes: Any, memory: Any) -> None:
    """Refuse arguments in the wrong place."""
    if not callable(make_student) or isinstance(make_student, eqx.Module):
        raise BadInput("train: make_student must be a function make_student(width, *, key).")
    if not isinstance(task, Task):
        raise BadInput(f"train: the task is a {type(task).__name__}; use one of underhood.tasks.")
    if not isinstance(recipe, Recipe):
        kind = type(recipe).__name__
        raise BadInput(f"train: the recipe is a {kind}; use Recipe.fast(steps) or Recipe.paper().")
    for name, value in (("lanes", lanes), ("memory", memory)):
        if value is not None and (not is_whole(value) or value < 1):
            raise BadInput(f"train: {name} is {value!r}; give a whole number of at least 1.")
    if getattr(jax.config, "jax_disable_jit", False):
        raise BadInput("train compiles its programs and cannot run under jax.disable_jit.")


def typed(key: Any) -> PRNGKeyArray:
    """A key of the new kind, made from one of the old kind if need be."""
    dtype = getattr(key, "dtype", None)
    if dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key) and not key.shape:
        return key
    if dtype == np.uint32 and key.shape == (2,):
        return jax.random.wrap_key_data(key)
    what = repr(key) if dtype is None else f"an array {dtype} of shape {key.shape}"
    raise BadInput(f"train: key is {what}; give one key, jax.random.key(0) for example.")


def in_precision(precision: str, tree: Any) -> Any:
    """Arrays of a task in the precision of the training, whatever the caller's default."""

    def cast(leaf: Any) -> Any:
        real = eqx.is_array(leaf) and np.issubdtype(leaf.dtype, np.floating)
        return np.asarray(leaf, precision) if real and leaf.ndim else leaf

    return jax.tree.map(cast, tree)


def run_steps(ensemble: Ensemble, folder: Path | None, bar: Bar) -> storage.Checkpoint:
    """All steps, in chunks, from the newest checkpoint on."""
    states, total = ensemble.first_states(), ensemble.recipe.steps
    found = None if folder is None else storage.load_checkpoint(folder, states)
    now = found or storage.Checkpoint(0, states, 0.0)
    chunk, target = 1, CHUNK_SECONDS
    with stop_on_interrupt(lambda: bar.say("stopping")) as stop:
        while now.step < total:
            began = time.monotonic()
            until = min(now.step + chunk, total)
            states = ensemble.advance(now.states, now.step, until)
            taken = time.monotonic() - began
            speed = (until - now.step) / max(taken, 1e-9)
            now = storage.Checkpoint(until, states, now.seconds + taken)
            curves = ensemble.curves(states, until)
            bar.update(until, curves[:, (until - 1) // ensemble.window], speed)
            if folder is not None:
                began = time.monotonic()
                storage.save_checkpoint(folder, now)
                target = max(CHUNK_SECONDS, CHECKPOINT_SHARE * (time.monotonic() - began))
            if stop.asked:
                kept = f" and kept in {folder}; the same call goes on" if folder else ""
                raise KeyboardInterrupt(f"stopped after step {until} of {total}{kept}")
            chunk = int(np.clip(speed * target, 1, 8 * chunk))
    return now


def judge(
    ensemble: Ensemble, states: list[State], task: Task, key: PRNGKeyArray
) -> list[dict[str, Any]]:
    """One row per member: who it is, and its scores on fresh sequences."""
    fresh, other = jax.random.split(jax.random.fold_in(key, 2**31 - 1))
    rows = []
    models, own_states = ensemble.models_alike(states), ensemble.by_member(states)
    for member, model, state in zip(ensemble.members, models, own_states, strict=True):
        teacher = ensemble.teachers[member.get(TEACHER, 0)] if ensemble.teachers else None
        own: Task = with_teacher(task, teacher)
        row: dict[str, Any] = {"seed": member.seed, "width": member.width, **dict(member.axes)}
        scores = evaluate(model, own, key=fresh)
        validation = own.validation()
        if validation is not own:
            other_scores = evaluate(model, validation, key=other)
            scores |= {f"validation_{name}": value for name, value in other_scores.items()}
        found = {name: finite(value) for name, value in scores.items()}
        row |= found
        # A task with nothing to predict has no scale.
        loss, scale = found["loss"], own.scale
        row["normalised_loss"] = loss / scale if loss is not None and scale > 0 else None
        row["parameters"] = parameter_count(state.weights)
        lost = int(state.lost_at)
        row["lost_at"] = None if lost == ALIVE else lost
        if row["lost_at"] is not None:
            row |= dict.fromkeys((*found, "normalised_loss"))
        rows.append(row)
    return rows


def finite(value: Any) -> float | None:
    """A number for JSON; None for what is not finite."""
    return float(value) if np.isfinite(value) else None


def describe(ensemble: Ensemble, task: Task, key: PRNGKeyArray) -> dict[str, Any]:
    """Everything that decides the result, as JSON; arrays by their checksums."""
    tensors: dict[str, np.ndarray] = {}
    shown = take_apart(task, "task", tensors)
    first = [(parts.weights, parts.fixed) for parts in ensemble.students]
    kinds = (take_apart(parts.together(), "", {}) for parts in ensemble.students)
    found = {
        "recipe": named(ensemble.recipe),
        "task": {"what": shown, "numbers": digest([tensors, list(ensemble.teachers)])},
        "members": [dataclasses.asdict(member) for member in ensemble.members],
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "students": sorted({json.dumps(kind, default=named) for kind in kinds}),
        "first_weights": digest(first),
        "sketch": {
            "task.numbers": sketch([tensors, list(ensemble.teachers)]),
            "first_weights": sketch(first),
        },
    }
    return json.loads(json.dumps(found, default=named))


def named(value: Any) -> Any:
    """A frozen dataclass as JSON, with the names of its kinds; a foreign object by its name."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {one.name: named(getattr(value, one.name)) for one in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, tuple):
        return [named(one) for one in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    name = getattr(value, "__qualname__", type(value).__qualname__)
    code = getattr(value, "__code__", None)
    # A function by its name and what it does, so that an edited one is noticed.
    return name if code is None else f"{name} {what_it_does(code)}"


def what_it_does(code: CodeType) -> str:
    """A checksum of a function's instructions that is the same in every process."""
    constants = [
        what_it_does(one)
        if isinstance(one, CodeType)
        else repr(sorted(map(repr, one)) if isinstance(one, frozenset) else one)
        for one in code.co_consts
    ]
    text = f"{code.co_code.hex()} {code.co_names} {constants}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def digest(tree: Any) -> str:
    """A checksum of every array in a tree."""
    return storage.checksum(storage.named_leaves(tree), 0)
