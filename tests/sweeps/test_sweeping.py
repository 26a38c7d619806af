"""Sweeps: what is kept on disk, nothing finished is done again, and the command."""

import hashlib
import json
import os
from pathlib import Path

import jax
import numpy as np
import pandas
import pytest
import safetensors.numpy
from swept import FILE, RECIPE, TASK, gated, study_of

import underhood as uh
from underhood.cli.entry import main
from underhood.sweeps import Study, sweep
from underhood.sweeps.engines import Local, UnitOutcome
from underhood.sweeps.store import Store
from underhood.sweeps.units import plan, work


@pytest.fixture(scope="module")
def trained() -> tuple[Study, list[UnitOutcome]]:
    study = study_of(seeds=2, widths=(2,))
    units = plan(study, most=1)
    return study, [UnitOutcome(unit, work(study, unit, progress=False)) for unit in units]


def losses_of(outcomes: list[UnitOutcome]) -> list[float]:
    return [json.loads(each.files["members.json"])["rows"][0]["loss"] for each in outcomes]


class Canned:
    """An engine that gives back what it was given, in the order given."""

    workers, memory, concurrent, deadline = 1, None, False, None

    def __init__(self, outcomes):
        self.outcomes = outcomes

    def run(self, study, units, store, tell):
        yield from self.outcomes

    def train(self, study, folder, progress):
        raise NotImplementedError


def test_a_unit_is_kept_once_and_found_again(trained, tmp_path) -> None:
    study, outcomes = trained
    first = outcomes[0].unit
    done = sweep(study, tmp_path, Canned([outcomes[0], *outcomes]), most=1)
    assert (done.done, done.before, done.complete) == (3, 0, True)
    assert len(list((tmp_path / "units").iterdir())) == 2
    assert Store(tmp_path).finished() == study.all_addresses()
    run = uh.Run.load(tmp_path / "units" / first.name)
    assert run.rows[0]["address"] == first.addresses[0]
    assert run.models[0].neurons == 2
    rows = (tmp_path / "table.csv").read_text().splitlines()
    assert len(rows) == 3 and rows[0].startswith("student,address,seed,width")
    table = pandas.read_csv(done.table).sort_values("seed")
    np.testing.assert_allclose(table["loss"], losses_of(outcomes))


def test_units_equal_one_training_of_all(trained) -> None:
    whole = uh.train(gated, TASK, RECIPE, widths=2, seeds=2, key=jax.random.key(0), progress=False)
    assert losses_of(trained[1]) == pytest.approx([row["loss"] for row in whole.rows], rel=1e-6)


def test_a_full_disk_leaves_nothing_half_written(trained, tmp_path, monkeypatch) -> None:
    study, (first, second) = trained
    real, calls = os.fsync, []

    def fsync(handle):
        calls.append(handle)
        # study.json, then the five files of the first unit; then the disk is full.
        if len(calls) > 6:
            raise OSError(28, "No space left on device")
        real(handle)

    monkeypatch.setattr("os.fsync", fsync)
    with pytest.raises(OSError, match="No space"):
        sweep(study, tmp_path, Canned([first, second]), most=1)
    assert [path.name for path in (tmp_path / "units").iterdir()] == [first.unit.name]
    monkeypatch.setattr("os.fsync", real)
    assert sweep(study, tmp_path, Canned([second]), most=1).before == 1
    assert Store(tmp_path).finished() == study.all_addresses()


def test_what_a_killed_writer_left_is_cleared(trained, tmp_path) -> None:
    study, (first, _) = trained
    left = tmp_path / "units" / f".{first.unit.name}.abc"
    left.mkdir(parents=True)
    (left / "members.json").write_text("{")
    assert Store(tmp_path).finished() == set()
    sweep(study, tmp_path, Canned([first]))
    assert not left.exists()


@pytest.mark.parametrize("name", ["members.json", "losses.safetensors", "models.safetensors"])
@pytest.mark.parametrize("left", [None, 0, 10, -2])
def test_a_unit_that_was_spoilt_is_put_aside_and_trained_anew(trained, tmp_path, name, left):
    study, outcomes = trained
    sweep(study, tmp_path, Canned(outcomes), most=1)
    first, second = (outcome.unit for outcome in outcomes)
    table, spoilt = (tmp_path / "table.csv").read_bytes(), tmp_path / "units" / first.name / name
    if left is None:
        spoilt.unlink()
    else:
        os.truncate(spoilt, left if left >= 0 else spoilt.stat().st_size + left)
    assert Store(tmp_path).finished() == set(second.addresses)
    again = sweep(study, tmp_path, Canned(outcomes[:1]), most=1)
    assert (again.before, again.done) == (1, 1)
    assert (tmp_path / "table.csv").read_bytes() == table
    assert [path.name for path in (tmp_path / "damaged").iterdir()] == [first.name]
    assert uh.Run.load(tmp_path / "units" / first.name).rows[0]["address"] == first.addresses[0]


def test_a_unit_that_fails_is_reported_and_the_rest_completes(tmp_path) -> None:
    def broken(width, *, key):
        raise RuntimeError("no such layer")

    study = study_of(students={"broken": broken, "gated": gated}, widths=(2,), seeds=1)
    done = sweep(study, tmp_path, Local())
    assert done.done == 1 and not done.complete
    assert [reason for reason in done.failed.values() if "no such layer" in reason]
    again = sweep(study, tmp_path, Local())
    assert (again.before, again.done, len(again.failed)) == (1, 0, 1)


def test_a_store_and_a_run_of_version_0_1_are_read(tmp_path) -> None:
    """The layout of underhood 0.1, written out by hand."""
    folder = tmp_path / "units" / "0123456789abcdef"
    folder.mkdir(parents=True)
    weights = {"W_V": np.eye(1), "W_K": np.eye(1), "W_Q": 2 * np.eye(1)}
    nothing = {name: {"value": None} for name in ("b_V", "b_K", "b_Q", "nu")}
    structure = {"kind": "LinearAttention", "fields": dict.fromkeys(weights, "tensor") | nothing}
    arrays = {f"00000.{name}": array for name, array in weights.items()}
    curves = {"steps": np.array([1, 2]), "losses": np.array([[0.5, 0.25]])}
    files = {
        "losses.safetensors": safetensors.numpy.save(curves),
        "models.safetensors": safetensors.numpy.save(
            arrays, {"structures": json.dumps([structure])}
        ),
    }
    row = {"student": "gated", "address": "a1", "seed": 0, "width": 1, "loss": 0.25}
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    table = {"version": 1, "provenance": {"seconds": 1.0}, "sha256": sums, "rows": [row]}
    settings = {"version": 1, "begun": {"device": "cpu"}, "grouping": [[0]], "key": [0, 0]}
    files |= {"members.json": json.dumps(table).encode(), "origin.json": b"{}"}
    files |= {"settings.json": json.dumps(settings).encode()}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    assert Store(tmp_path).finished() == {"a1"}
    run = uh.Run.load(folder)
    assert run.rows == (row,) and run.settings == {"grouping": [[0]], "key": [0, 0]}
    assert run.losses.tolist() == [[0.5, 0.25]] and run.models[0].W_Q.tolist() == [[2.0]]
    (folder / "members.json").write_text(json.dumps(table | {"version": 2}))
    with pytest.raises(uh.BadInput, match="has format version 2, and this underhood reads 1"):
        uh.Run.load(folder)


# The command.

FILES = {
    "mine.py": FILE,
    "broken.py": "x = 1\nstudy = 1 / 0\n",
    "syntax.py": "study = (\n",
    "empty.py": "",
    "other.py": "study = 3\n",
    "leaves.py": "raise SystemExit(0)\n",
    "twice.py": FILE.replace("seeds=2", 'axes={"learning_rate": (0.1, 0.1)}, seeds=2'),
    "wrong.py": FILE.replace('{"gated": gated}', "gated"),
}


def test_a_file_is_swept_and_not_swept_again(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(FILE)
    assert main(["sweep", "mine.py", "--plan"]) == 0
    planned = capsys.readouterr().out
    for words in ("gated, width 2, 2 seeds from 0", "H200-hours", "core-hours"):
        assert words in planned
    assert not Path("results").exists()
    assert main(["sweep", "mine.py"]) == 0
    said = capsys.readouterr()
    assert "1 unit done, 0 failed" in said.out and "1 of 1 units" in said.err
    kept = {path: path.stat().st_mtime_ns for path in Path("results/mine/units").rglob("*")}
    assert main(["sweep", "mine.py"]) == 0
    assert "0 units done, 0 failed, 2 students were already finished" in capsys.readouterr().out
    assert kept == {path: path.stat().st_mtime_ns for path in kept}
    assert kept.keys() == set(Path("results/mine/units").rglob("*"))


BAD = {
    "sweep absent.py": "There is no file absent.py",
    "sweep broken.py": "broken.py, line 2: ZeroDivisionError",
    "sweep syntax.py": "syntax.py, line 1: SyntaxError",
    "sweep empty.py": "has no `study`",
    "sweep leaves.py": "leaves.py, line 1: SystemExit: 0",
    "sweep twice.py": "learning_rate holds a value twice",
    "sweep other.py": "has a study of kind int",
    "sweep wrong.py": "Study: students is a dictionary",
    "sweep mine.py --engine ray": "Unknown engine 'ray'; use one of local, processes, dask.",
    "sweep mine.py --workers 2": "--workers is for --engine processes or dask",
    "sweep mine.py --most 0": "--most is 0; give a whole number of at least 1",
    "sweep mine.py --out mine.py": "is a file",
    "sweep mine.py --out foreign": "holds other files",
    "sweep mine.py --engine dask --address tcp://10.0.0.1:1": "neither loopback nor protected",
    "sweep mine.py --engine dask": "takes one of a number of workers, the address",
    "sweep mine.py --engine dask --workers 0": "workers is 0; give a whole number of at least 1",
}


@pytest.mark.parametrize("words", BAD)
@pytest.mark.usefixtures("unhooked")
def test_bad_input_is_one_line_and_writes_nothing(words: str, tmp_path, monkeypatch, capsys):
    if "dask" in words:
        pytest.importorskip("distributed")
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    Path("foreign").mkdir()
    Path("foreign/thesis.txt").touch()
    before = sorted(tmp_path.rglob("*"))
    assert main(words.split()) == 2
    said = capsys.readouterr()
    assert BAD[words] in said.err and said.err.count("\n") == 1
    after = sorted(tmp_path.rglob("*"))
    assert [path for path in after if "__pycache__" not in str(path)] == before
