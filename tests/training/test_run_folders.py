"""A run's folder: what is read back, other settings, folders that cannot be used."""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from killable import STEPS, make_student, make_task, train
from refusals import refused
from stored import assert_same, contents, make_foreign, noted_steps

import underhood as uh

pytestmark = pytest.mark.usefixtures("unhooked", "cache")


def test_a_finished_run_is_loaded_and_not_trained(straight, finished, no_training) -> None:
    before = contents(finished)
    for run in (train(out=finished), train(out=str(finished), lanes=2), uh.Run.load(finished)):
        assert_same(run, straight)
    assert contents(finished) == before


def make_wide(width: int, *, key: jax.Array) -> uh.GatedRNN:
    return jax.tree.map(np.float64, make_student(width, key=key))


# Arguments of a call, the weights' precision, and where members are lost.
RUNS: dict[str, tuple[dict[str, Any], str, list[int | None]]] = {
    "axes": ({"axes": {"learning_rate": [1e-2, 2e-2]}}, "float32", [None, None]),
    # The rate is infinite in float32, and so are the weights after one step.
    "a lost member": ({"axes": {"learning_rate": [1e-2, 1e39]}}, "float32", [None, 1]),
    "float64": (
        {"make_student": make_wide, "recipe": uh.Recipe.fast(20, batch=4, precision="float64")},
        "float64",
        [None],
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_loaded_run_knows_what_a_fresh_one_knows(name: str, cache, tmp_path) -> None:
    arguments, dtype, lost_at = RUNS[name]
    with np.errstate(over="ignore"):
        fresh, again = (train(out=tmp_path, seeds=1, **arguments) for _ in range(2))
    loaded = uh.Run.load(tmp_path)
    assert fresh.models[0].D.dtype == dtype
    assert [row["lost_at"] for row in fresh.rows] == lost_at
    for run in (loaded, again):
        assert_same(run, fresh)
        assert (run.provenance, run.settings) == (fresh.provenance, fresh.settings)


def test_foreign_students_are_loaded_with_what_made_them(foreign, no_training) -> None:
    folder, fresh = foreign
    with pytest.raises(uh.BadInput, match="foreign kind; give make_student= too"):
        uh.Run.load(folder)
    assert_same(uh.Run.load(folder, make_foreign), fresh)
    assert_same(train(make_student=make_foreign, out=folder), fresh)
    assert float(np.ptp(fresh.models[0].W - fresh.models[1].W)) > 0
    # Another student with the same weights.
    before = contents(folder)
    with refused("make_student gives another kind of student"):
        train(make_student=partial(make_foreign, squash=jax.nn.relu), out=folder)
    assert contents(folder) == before


def test_an_unfinished_run_is_not_loaded(tmp_path) -> None:
    with pytest.raises(uh.BadInput, match="holds no run"):
        uh.Run.load(tmp_path)
    (tmp_path / "settings.json").touch()
    with refused("is not finished; call train again"):
        uh.Run.load(tmp_path)


@pytest.mark.parametrize("name", ["members.json", "models.safetensors", "losses.safetensors"])
def test_a_damaged_result_is_written_anew_as_the_refusal_says(
    name: str, straight, finished, monkeypatch, tmp_path
) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / name).write_bytes((folder / name).read_bytes()[:-40])
    for load in (uh.Run.load, lambda folder: train(out=folder)):
        with refused(f"{name} … {folder / 'members.json'}"):
            load(folder)
    (folder / "members.json").unlink()
    steps = noted_steps(monkeypatch)
    assert_same(train(out=folder), straight)
    assert not steps


# --- Other settings

OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "rate": (
        {"recipe": uh.Recipe.fast(STEPS, batch=4, learning_rate=0.5)},
        f"recipe.learning_rate was {uh.Recipe.fast(STEPS).learning_rate} and is now 0.5.",
    ),
    "steps": (
        {"recipe": uh.Recipe.fast(STEPS + 1, batch=4)},
        f"recipe.steps was {STEPS} and is now {STEPS + 1}.",
    ),
    "teacher": ({"task": make_task(1)}, "the task has another teacher"),
    "length": (
        {"task": uh.tasks.TeacherStudent(make_task().attention, 5)},
        "task.what.fields.length.value was 4 and is now 5.",
    ),
    "seeds": ({"seeds": 3}, "members was"),
    "widths": ({"widths": 3}, "members was"),
    "axes": ({"axes": {"weight_decay": [0.0]}}, "members was"),
    "key": ({"key": jax.random.key(1)}, "key was [0, 0] and is now [0, 1]"),
    "weights": (
        {"make_student": lambda width, key: make_student(width, key=jax.random.split(key)[0])},
        "make_student gives other first weights",
    ),
}


def edit_settings(**changes: Any) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return edit


def begun_elsewhere(folder: Path, **changes: Any) -> None:
    """Settings as another device would have written them: its last digits give other checksums."""
    settings = json.loads((folder / "settings.json").read_text())
    settings["begun"]["device"] = "gpu (another)"
    settings["first_weights"] = settings["task"]["numbers"] = "0" * 64
    (folder / "settings.json").write_text(json.dumps(settings | changes))


def test_a_run_of_another_device_is_known_by_its_sketch(tmp_path, finished, no_training) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    # On the same device the checksums count.
    edit_settings(first_weights="0" * 64)(folder / "settings.json")
    with refused("other first weights"):
        train(out=folder)
    begun_elsewhere(folder)
    assert_same(train(out=folder), uh.Run.load(finished))
    sketch = json.loads((folder / "settings.json").read_text())["sketch"]
    # Rounding is forgiven, other numbers are not, and without a sketch nothing is known.
    near = json.loads(json.dumps(sketch))
    near["first_weights"][0][1] *= 1 + 1e-6
    begun_elsewhere(folder, sketch=near)
    assert_same(train(out=folder), uh.Run.load(finished))
    far = json.loads(json.dumps(sketch))
    far["first_weights"][0][2] *= 1.01
    for other in (far, {"first_weights": sketch["first_weights"]}, None):
        begun_elsewhere(folder, sketch=other)
        with pytest.raises(uh.BadInput, match="begun with other settings"):
            train(out=folder)


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("state", ["stopped", "finished"])
def test_other_settings_are_refused_by_name(name: str, state: str, request, no_training) -> None:
    folder = request.getfixturevalue(state)
    before = contents(folder)
    changes, message = OTHERS[name]
    with refused(f"begun with other settings … {message}"):
        train(out=folder, **changes)
    assert contents(folder) == before


# --- Folders that cannot be used


BAD_SETTINGS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "half": (lambda path: path.write_bytes(path.read_bytes()[:200]), "cannot be read"),
    "no JSON": (lambda path: path.write_text("{"), "cannot be read"),
    "no text": (lambda path: path.write_bytes(b"\xff\xfe"), "cannot be read"),
    "a list": (lambda path: path.write_text("[]"), "cannot be read"),
    "deep": (lambda path: path.write_text("[" * 10**5 + "]" * 10**5), "cannot be read"),
    "of the future": (edit_settings(version=2), "format version 2, and this underhood reads 1"),
    "of no version": (lambda path: path.write_text("{}"), "format version None"),
    "missing": (lambda path: path.unlink(), "holds checkpoints but no settings"),
}


@pytest.mark.parametrize("name", BAD_SETTINGS)
def test_damaged_settings_are_refused_in_one_line(name: str, stopped, tmp_path) -> None:
    folder = shutil.copytree(stopped, tmp_path / "run")
    damage, message = BAD_SETTINGS[name]
    damage(folder / "settings.json")
    before = contents(folder)
    # Without its settings nobody knows whose checkpoints these are.
    with refused(f"{message} … another folder"):
        train(out=folder)
    assert contents(folder) == before


def test_a_folder_must_be_a_folder(tmp_path) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with refused("Cannot make the run's folder"):
            train(out=out)
    assert contents(tmp_path) == {str(tmp_path / "file"): b"mine"}


@contextlib.contextmanager
def as_somebody() -> Iterator[None]:
    """Not as root, who may write everywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("state", ["empty", "stopped"])
def test_a_folder_that_may_not_be_written_is_refused(state: str, request) -> None:
    # Not under tmp_path, which only its owner may enter.
    with tempfile.TemporaryDirectory() as outer:
        os.chmod(outer, 0o755)
        folder = Path(outer) / "run"
        if state == "stopped":
            shutil.copytree(request.getfixturevalue("stopped"), folder)
        folder.mkdir(exist_ok=True)
        for path in (*folder.rglob("*"), folder):
            os.chmod(path, 0o555 if path.is_dir() else 0o444)
        before = contents(folder)
        try:
            with as_somebody(), refused("Permission denied"):
                train(out=folder)
            assert contents(folder) == before
        finally:
            for path in (folder, *folder.rglob("*")):
                os.chmod(path, 0o755)
