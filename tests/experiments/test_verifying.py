"""Results computed again from the stored students: what agrees, what differs, what is missing."""

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
from result_files import COMMITTED
from stored import contents
from test_earlier import NAME, PLAN, keep, students

import underhood as uh
from underhood.cli.entry import main
from underhood.common.errors import BadInput
from underhood.experiments.protocols.comparison import compare
from underhood.experiments.running.runner import run_all
from underhood.experiments.running.setting import Setting
from underhood.experiments.running.verifying import agree, compare_results
from underhood.results.files import parse_result
from underhood.sweeps import Study
from underhood.sweeps.engines import Local, MissingRun, Stored
from underhood.sweeps.store import Store
from underhood.sweeps.units import plan
from underhood.training.storage.settings import OtherSettings

NAMES = ("table2", "recall_side")


@pytest.fixture(scope="module")
def smoke(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("verified") / "smoke"
    # Students that are only compared with themselves may be trained by slow programs.
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        assert len(run_all(list(NAMES), "smoke", None, folder).results) == len(NAMES)
    finally:
        jax.config.update("jax_disable_most_optimizations", False)
    # What is not kept in the repository.
    for run in (folder / "runs").iterdir():
        shutil.rmtree(run / "checkpoints")
        (run / "lock").unlink()
    return folder


# A hook stays until the process ends, and permissions do not bind root.
WRITES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.utime", "os.link"}
read_only_folders: list[str] = []
refused_writes: list[str] = []


@sys.addaudithook
def refuse_writes(event: str, arguments: tuple) -> None:
    if not read_only_folders or (event != "open" and event not in WRITES):
        return
    path = str(arguments[0])
    changes = event != "open" or arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if changes and path.startswith(read_only_folders[0]):
        refused_writes.append(f"{event} {path}")
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)


@pytest.fixture
def read_only(smoke) -> Iterator[Path]:
    """The same folder, on a disk that cannot be written."""
    before = contents(smoke)
    read_only_folders.append(str(smoke))
    yield smoke
    read_only_folders.clear()
    assert refused_writes == [] and contents(smoke) == before


def test_the_disk_of_these_tests_is_read_only(smoke) -> None:
    read_only_folders.append(str(smoke))
    try:
        for write in (lambda: (smoke / "x").touch(), lambda: (smoke / "y").mkdir()):
            with pytest.raises(OSError, match="Read-only"):
                write()
    finally:
        read_only_folders.clear()
        refused_writes.clear()


def verified(capsys, folder: Path, *options: str) -> tuple[int, str]:
    """The status and what is printed."""
    capsys.readouterr()
    status = main(["verify", str(folder), *options])
    return status, capsys.readouterr().out


def agreeing(folder: Path, name: str) -> str:
    """What is printed for a result that agrees."""
    result = json.loads((folder / name / "result.json").read_text())
    numbers, rows = len(result["numbers"]), len(result["rows"])
    return f"{name} (smoke): agrees: {numbers} numbers, {rows} rows"


def edited(smoke: Path, tmp_path: Path, name: str, edit: Callable[[dict], object]) -> Path:
    """A copy of the results in which one file is changed."""
    folder = tmp_path / "edited"
    shutil.copytree(smoke, folder)
    path = folder / name / "result.json"
    result = json.loads(path.read_text())
    edit(result)
    path.write_text(json.dumps(result))
    return folder


def test_what_was_stored_agrees_and_nothing_is_written(read_only, capsys) -> None:
    status, said = verified(capsys, read_only)
    assert status == 0
    assert said.splitlines() == [
        agreeing(read_only, "table2"),
        agreeing(read_only, "recall_side"),
        "2 of 2 results agree with what is stored beside them.",
    ]


def swap(result: dict, first: str, second: str) -> None:
    by_name = {number["name"]: number for number in result["numbers"]}
    values = [by_name[name]["value"] for name in (second, first)]
    by_name[first]["value"], by_name[second]["value"] = values


def test_changed_swapped_and_missing_numbers_are_named(smoke, tmp_path, capsys) -> None:
    def edit(result: dict) -> None:
        swap(result, "x1^2 y1", "residual")
        loss = next(number for number in result["numbers"] if number["name"] == "loss")
        loss["value"] *= 1.002
        result["numbers"][-1]["name"] = "another"
        result["rows"][1]["loss"] = None

    folder = edited(smoke, tmp_path, "table2", edit)
    stored = json.loads((folder / "table2" / "result.json").read_text())
    status, said = verified(capsys, folder, "--only", "table2", "--json")
    (check,) = json.loads(said)
    assert status == 1 and check["state"] == "differs" and check["scale"] == "smoke"
    places = [(difference["where"], difference["part"]) for difference in check["differences"]]
    assert places == [
        ("x1^2 y1", "value"),
        ("residual", "value"),
        ("loss", "value"),
        ("another", "number"),
        ("attention - GD", "number"),
        ("row 2", "loss"),
    ]
    then, now = (check["differences"][0][side] for side in ("then", "now"))
    assert then == stored["numbers"][0]["value"] and now == check["differences"][1]["then"]
    # For people the first few, in a line, then and now.
    status, said = verified(capsys, folder)
    lines = said.splitlines()
    assert status == 1 and lines[0].startswith("table2 (smoke): differs: x1^2 y1: value ")
    assert " then, " in lines[0] and "loss: value " in lines[0] and "; and 2 more" in lines[0]
    assert lines[1:] == [
        agreeing(smoke, "recall_side"),
        "1 of 2 results agree with what is stored beside them.",
    ]


@pytest.mark.parametrize("part", ["verdict", "rule", "whose", "paper", "seeds", "value"])
def test_every_part_of_a_number_counts(part, smoke) -> None:
    result = parse_result(json.loads((smoke / "table2" / "result.json").read_text()))
    changed = json.loads(json.dumps(result))
    assert compare_results(result, changed) == ()
    held = changed["numbers"][3][part]
    changed["numbers"][3][part] = held + "!" if isinstance(held, str) else held * 1.01 + 1
    (difference,) = compare_results(result, changed)
    assert (difference.where, difference.part) == ("residual", part)
    assert difference.then == held and difference.now == changed["numbers"][3][part]


def test_the_verdict_of_a_result_and_the_number_of_rows_count() -> None:
    result = parse_result({"experiment": "a", "scale": "quick", "verdict": "differs"})
    changed = result | {"verdict": "better", "rows": [{"seed": 0}]}
    said = list(map(str, compare_results(result, changed)))
    assert said == [
        "the result: verdict differs then, better now",
        "the rows: count 0 then, 1 now",
    ]


@pytest.mark.parametrize(
    ("then", "now", "same"),
    [
        (1.0, 1.0009, True),
        (1.0, 1.0011, False),
        (-1.0, 1.0, False),
        (1, 1.0, True),
        (10_000, 10_001, False),
        (2e-21, 3e-25, True),
        (9e-11, -9e-11, True),
        (9e-11, 2e-10, False),
        (0.0, 2e-10, False),
        (None, None, True),
        (None, 0.0, False),
        (1e-20, float("nan"), False),
        (float("nan"), 1e-20, False),
        (True, 1, False),
        (True, 1.0, False),
        ("1", 1, False),
        ("alike", "below", False),
        ("η = 0.0675676 ± 4.7475e-05", "η = 0.0675676 ± 4.7476e-05", True),
        ("η = 0.0675676 ± 4.7475e-05", "η = 0.0675676 ± 4.85e-05", False),
        ("median ≤ 4", "median ≤ 5", False),
        ("of 10,000 sources", "of 10,001 sources", False),
        ("median ≤ 4", "median < 4", False),
        ("T = 32, 256", "T = 32", False),
    ],
)
def test_numbers_agree_up_to_rounding(then, now, same) -> None:
    assert agree(then, now) is agree(now, then) is same


def test_a_missing_run_is_named_with_the_command_that_trains_it(smoke, tmp_path, capsys) -> None:
    folder = edited(smoke, tmp_path, "table2", lambda result: None)
    shutil.rmtree(folder / "runs" / "recall_side_smoke")
    (folder / "runs" / "regression_smoke" / "members.json").unlink()
    before = contents(folder)
    status, said = verified(capsys, folder)
    command = "To train it: underhood reproduce {} --scale smoke --out " + str(folder)
    why = "cannot be recomputed: The run"
    assert status == 1 and said.splitlines() == [
        f"table2 (smoke): {why} regression_smoke is not finished. {command.format('table2')}",
        f"recall_side (smoke): {why} recall_side_smoke is missing. "
        + command.format("recall_side"),
        "0 of 2 results agree with what is stored beside them.",
    ]
    assert contents(folder) == before


def test_seeds_that_were_asked_for_are_asked_for_again(smoke, tmp_path, capsys) -> None:
    def edit(result: dict) -> None:
        result["provenance"]["asked"] = 3

    folder = edited(smoke, tmp_path, "table2", edit)
    status, said = verified(capsys, folder, "--only", "table2")
    assert status == 1 and "regression_smoke_3_seeds is missing" in said
    assert said.splitlines()[0].endswith(f"--out {folder} --seeds 3")


def test_a_run_of_other_students_is_not_used(smoke, tmp_path, capsys) -> None:
    folder = edited(smoke, tmp_path, "table2", lambda result: None)
    models = folder / "runs" / "regression_smoke" / "models.safetensors"
    models.write_bytes(models.read_bytes()[:-1] + b"x")
    settings = folder / "runs" / "recall_side_smoke" / "settings.json"
    settings.write_text(settings.read_text().replace('"steps": 50', '"steps": 51'))
    status, said = verified(capsys, folder)
    first, second, _ = said.splitlines()
    assert status == 1 and "models.safetensors is missing or damaged" in first
    assert "recipe.steps was 51 and is now 50" in second and "underhood reproduce" not in second


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (lambda result: result.update(experiment="table1"), "holds a result of table1"),
        (lambda result: result.update(scale="huge"), "has no scale huge"),
        (lambda result: result["provenance"].update(asked="all"), "seeds is 'all'"),
        (lambda result: result.update(format=99), "format 99"),
        (lambda result: result.pop("numbers"), "lacks numbers"),
    ],
)
def test_a_file_that_says_nonsense_is_status_1(edit, why, smoke, tmp_path, capsys) -> None:
    folder = edited(smoke, tmp_path, "table2", edit)
    status, said = verified(capsys, folder, "--only", "table2")
    assert status == 1 and "cannot be recomputed" in said and why in said


def test_an_experiment_that_no_longer_exists_is_status_1(smoke, tmp_path, capsys) -> None:
    folder = edited(smoke, tmp_path, "table2", lambda result: result.update(experiment="table9"))
    (folder / "table2").rename(folder / "table9")
    status, said = verified(capsys, folder, "--only", "table9")
    assert status == 1 and "This version has no experiment of this name." in said


# --- students that are too large to be stored


def test_students_that_are_not_stored_are_compared_by_their_losses(tmp_path) -> None:
    drawn = students(np.random.default_rng(0))
    keep(drawn, tmp_path)
    setting = Setting("smoke", None, tmp_path, lambda *_: None, Stored(), frozenset({NAME}))
    comparison = compare(PLAN, setting)
    assert comparison.students == drawn and comparison.runs == ()
    assert comparison.read is not None and comparison.read["training"]
    assert comparison.arrays().keys() == comparison.columns().keys()
    # Losses that say other than the table are not used, nor are those of nobody.
    keep(drawn, tmp_path, loss=np.ones(len(drawn)))
    with pytest.raises(BadInput, match=r"is missing\. Its losses .* say other than its rows"):
        compare(PLAN, setting)
    shutil.rmtree(tmp_path / NAME)
    with pytest.raises(MissingRun, match="is missing"):
        compare(PLAN, setting)


# --- the engine


def make_student(width: int, *, key: jax.Array) -> uh.GatedRNN:
    return uh.GatedRNN.init(d_in=1, hidden=width, gated=width, d_out=1, key=key)


def test_the_engine_reads_what_another_trained(tmp_path, monkeypatch) -> None:
    task = uh.tasks.TeacherStudent.random(1, length=4, key=jax.random.key(0))
    recipe = uh.Recipe.fast(steps=4, batch=2)
    study = Study(task, {"student": make_student}, recipe, (2,), 1)
    ticks: list[float] = []
    with pytest.raises(MissingRun, match="The run a is missing"):
        Stored().train(study, tmp_path / "a", lambda *_: None)
    trained = Local().train(study, tmp_path / "a", lambda *_: None)
    read = Stored().train(study, tmp_path / "a", lambda done, total: ticks.append(done / total))
    assert read.rows == trained.rows and ticks == [1.0]
    np.testing.assert_array_equal(read.models[0].D, trained.models[0].D)
    with pytest.raises(OtherSettings, match=r"recipe\.steps was 4 and is now 5"):
        longer = Study(task, {"student": make_student}, uh.Recipe.fast(steps=5, batch=2), (2,), 1)
        Stored().train(longer, tmp_path / "a", lambda *_: None)

    # A processor that rounds otherwise draws nearly the same weights; another key does not.
    def rounded(width: int, *, key: jax.Array) -> uh.GatedRNN:
        return jax.tree.map(lambda leaf: leaf * (1 + 1e-6), make_student(width, key=key))

    def drawn_anew(width: int, *, key: jax.Array) -> uh.GatedRNN:
        return make_student(width, key=jax.random.fold_in(key, 1))

    near, far = (Study(task, {"student": made}, recipe, (2,), 1) for made in (rounded, drawn_anew))
    assert Stored().train(near, tmp_path / "a", lambda *_: None).rows == trained.rows
    with pytest.raises(OtherSettings, match="other first weights"):
        Stored().train(far, tmp_path / "a", lambda *_: None)
    (outcome,) = Stored().run(study, plan(study), Store(tmp_path), lambda *_: None)
    assert outcome.files is None and "nothing is trained" in outcome.reason


# Those whose losses are stored: they take seconds. `make verify` looks at all of them.
@pytest.mark.parametrize(
    ("scale", "names"), [("quick", ("figure4a", "figure4b", "figure6")), ("paper", ("figure6",))]
)
def test_results_in_the_repository_agree_with_their_losses(scale, names, capsys) -> None:
    assert main(["verify", str(COMMITTED[scale]), "--only", *names]) == 0
    said = capsys.readouterr().out
    assert f"{len(names)} of {len(names)} results agree" in said
