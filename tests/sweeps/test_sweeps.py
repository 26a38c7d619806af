"""Studies: addresses, plans, what is kept on disk, and that nothing finished is done again."""

import json
import os
import sys
import threading
from pathlib import Path

import jax
import numpy as np
import pytest

import underhood as uh
from underhood.cli.entry import main
from underhood.common.errors import BadInput
from underhood.sweeps import Study
from underhood.sweeps import study as studies
from underhood.sweeps.dask.remote import unwrapped, wrapped
from underhood.sweeps.dask.security import Certificates, check_address
from underhood.sweeps.descriptions import describe
from underhood.sweeps.engines import Local, UnitOutcome
from underhood.sweeps.store import Store
from underhood.sweeps.sweeping import sweep
from underhood.sweeps.units import Unit, plan, work

TASK = uh.tasks.TeacherStudent.random(1, length=4, key=jax.random.key(0))
RECIPE = uh.Recipe.fast(steps=4, batch=2)


def gated(width, *, key):
    return uh.GatedRNN.init(d_in=1, hidden=width, gated=width, d_out=1, key=key)


def attention(width, *, key):
    return uh.LinearAttention.init(d_in=1, key=key)


def study(**changes) -> Study:
    fields = {"students": {"gated": gated}, "widths": (2, 3), "seeds": 3} | changes
    return Study(fields.pop("task", TASK), recipe=fields.pop("recipe", RECIPE), **fields)


def addresses(one: Study) -> set[str]:
    return {address for name in one.students for address in one.addresses(name).values()}


# Addresses.


def other_gated(width, *, key):
    return uh.GatedRNN.init(d_in=1, hidden=width + 1, gated=width, d_out=1, key=key)


def holding(number):
    def student(width, *, key):
        return uh.GatedRNN.init(d_in=1, hidden=width + number, gated=width, d_out=1, key=key)

    return student


CHANGES = {
    "task": {"task": uh.tasks.TeacherStudent.random(1, length=4, key=jax.random.key(1))},
    "length": {"task": uh.tasks.TeacherStudent(TASK.attention, length=5)},
    "recipe": {"recipe": RECIPE.change(batch=4)},
    "key": {"key": 1},
    "widths": {"widths": (4, 5)},
    "seeds": {"seeds": (3, 4, 5)},
    "axes": {"axes": {"learning_rate": (1e-3,)}},
    "student": {"students": {"gated": other_gated}},
    "what it holds": {"students": {"gated": holding(1)}},
}


@pytest.mark.parametrize("what", CHANGES)
def test_whatever_decides_the_weights_changes_the_address(what: str) -> None:
    before = study(students={"gated": holding(0)}) if what == "what it holds" else study()
    assert not addresses(before) & addresses(study(**CHANGES[what]))


def test_the_same_students_have_the_same_addresses_in_any_study() -> None:
    small, large = study(seeds=2, widths=(2,)), study(seeds=4, widths=(3, 2))
    assert addresses(small) < addresses(large)
    assert len(addresses(large)) == 8
    renamed = study(students={"another": gated})
    assert addresses(renamed) == addresses(study())


def test_a_rate_by_width_gives_the_addresses_of_that_rate() -> None:
    axis = study(axes={"learning_rate": {2: 0.1, 3: 0.2}})
    alone = study(axes={"learning_rate": [0.2]}, widths=(3,))
    assert addresses(alone) < addresses(axis) and len(addresses(axis)) == 2 * len(addresses(alone))


def test_teachers_are_known_by_their_weights() -> None:
    one, two = (uh.tasks.TeacherStudent.random(1, key=jax.random.key(k)).attention for k in (1, 2))
    both = study(axes={"teacher": (one, two)})
    swapped = study(axes={"teacher": (two, one)})
    assert addresses(both) == addresses(swapped)
    assert len(addresses(both)) == 12


def test_code_that_trains_is_part_of_the_address(monkeypatch) -> None:
    before = addresses(study())
    monkeypatch.setattr(studies, "code_version", lambda: "another")
    assert not before & addresses(study())


WRONG = {
    "the task is a int": {"task": 3},
    "the recipe is a int": {"recipe": 3},
    "students is a dictionary": {"students": gated},
    "names a student": {"students": {"a b": gated}},
    "is no function": {"students": {"a": 3}},
    "widths is empty": {"widths": ()},
    "unknown axis": {"axes": {"momentum": (1,)}},
    "seeds is 0": {"seeds": 0},
}


@pytest.mark.parametrize("message", WRONG)
@pytest.mark.usefixtures("unhooked")
def test_a_wrong_study_is_refused_in_one_line(message: str) -> None:
    with pytest.raises(BadInput, match=message):
        study(**WRONG[message])


# Plans.


@pytest.mark.parametrize("workers", [1, 2, 5, 100])
@pytest.mark.parametrize("most", [1, 4, 256])
def test_every_student_is_in_one_unit(workers: int, most: int) -> None:
    own = study(seeds=7, axes={"learning_rate": (1e-3, 1e-2)})
    units = plan(own, workers=workers, most=most)
    found = [address for unit in units for address in unit.addresses]
    assert sorted(found) == sorted(addresses(own))
    assert len({unit.name for unit in units}) == len(units)
    # A seed's points of the axes stay together.
    assert all(len(unit.addresses) <= max(most, 2) for unit in units)
    assert len(units) >= min(workers, 14)
    assert [unit.width for unit in units] == sorted((unit.width for unit in units), reverse=True)


def test_what_is_finished_is_not_planned() -> None:
    own = study(seeds=4, widths=(2,))
    done = {address for member, address in own.addresses("gated").items() if member.seed < 3}
    (unit,) = plan(own, done)
    assert unit.seeds == (3,) and plan(own, addresses(own)) == []


# What is kept.


@pytest.fixture(scope="module")
def trained() -> tuple[Study, list[Unit], list[dict[str, bytes]]]:
    own = study(seeds=2, widths=(2,))
    units = plan(own, most=1)
    return own, units, [work(own, unit, progress=False) for unit in units]


class Canned:
    """An engine that gives back what it was given, in the order given."""

    workers, memory, concurrent, train = 1, None, False, None

    def __init__(self, outcomes):
        self.outcomes = outcomes

    def run(self, study, units, store, tell):
        yield from self.outcomes


def test_a_unit_is_kept_once_and_found_again(trained, tmp_path) -> None:
    own, (first, second), (files, others) = trained
    engine = Canned([UnitOutcome(first, files), UnitOutcome(first, files), UnitOutcome(second, others)])
    done = sweep(own, tmp_path, engine, most=1)
    assert (done.done, done.before, done.complete) == (3, 0, True)
    assert len(list((tmp_path / "units").iterdir())) == 2
    assert Store(tmp_path).finished() == addresses(own)
    run = Store(tmp_path).load(first)
    assert run.rows[0]["address"] == first.addresses[0]
    assert run.models[0].neurons == 2
    rows = (tmp_path / "table.csv").read_text().splitlines()
    assert len(rows) == 3 and rows[0].startswith("student,address,seed,width")


def test_units_equal_one_training_of_all(trained) -> None:
    files = trained[2]
    whole = uh.train(gated, TASK, RECIPE, widths=2, seeds=2, key=jax.random.key(0), progress=False)
    for row, unit in zip(whole.rows, files, strict=True):
        (own_row,) = json.loads(unit["members.json"])["rows"]
        assert own_row["loss"] == pytest.approx(row["loss"], rel=1e-6)


def test_a_full_disk_leaves_nothing_half_written(trained, tmp_path, monkeypatch) -> None:
    own, (first, second), (files, others) = trained
    real, calls = studies_fsync(), []

    def fsync(handle):
        calls.append(handle)
        # study.json, then the five files of the first unit; then the disk is full.
        if len(calls) > 6:
            raise OSError(28, "No space left on device")
        real(handle)

    monkeypatch.setattr("os.fsync", fsync)
    engine = Canned([UnitOutcome(first, files), UnitOutcome(second, others)])
    with pytest.raises(OSError, match="No space"):
        sweep(own, tmp_path, engine, most=1)
    kept = [path.name for path in (tmp_path / "units").iterdir()]
    assert kept == [first.name]
    monkeypatch.setattr("os.fsync", real)
    assert sweep(own, tmp_path, Canned([UnitOutcome(second, others)]), most=1).before == 1
    assert Store(tmp_path).finished() == addresses(own)


def studies_fsync():
    import os

    return os.fsync


def test_what_a_killed_writer_left_is_cleared(trained, tmp_path) -> None:
    own, (first, _), (files, _) = trained
    left = tmp_path / "units" / f".{first.name}.abc"
    left.mkdir(parents=True)
    (left / "members.json").write_text("{")
    assert Store(tmp_path).finished() == set()
    sweep(own, tmp_path, Canned([UnitOutcome(first, files)]))
    assert not left.exists()


@pytest.mark.parametrize("name", ["members.json", "losses.safetensors", "models.safetensors"])
@pytest.mark.parametrize("left", [None, 0, 10, -2])
def test_a_unit_that_was_spoilt_is_put_aside_and_trained_anew(trained, tmp_path, name, left):
    own, (first, second), (files, others) = trained
    both = Canned([UnitOutcome(first, files), UnitOutcome(second, others)])
    sweep(own, tmp_path, both, most=1)
    table, spoilt = (tmp_path / "table.csv").read_bytes(), tmp_path / "units" / first.name / name
    if left is None:
        spoilt.unlink()
    else:
        os.truncate(spoilt, left if left >= 0 else spoilt.stat().st_size + left)
    assert Store(tmp_path).finished() == set(second.addresses)
    again = sweep(own, tmp_path, Canned([UnitOutcome(first, files)]), most=1)
    assert (again.before, again.done) == (1, 1)
    assert (tmp_path / "table.csv").read_bytes() == table
    assert [one.name for one in (tmp_path / "damaged").iterdir()] == [first.name]
    assert Store(tmp_path).load(first).rows[0]["address"] == first.addresses[0]


def test_a_unit_that_fails_is_reported_and_the_rest_completes(tmp_path) -> None:
    def broken(width, *, key):
        raise RuntimeError("no such layer")

    own = study(students={"broken": broken, "gated": gated}, widths=(2,), seeds=1)
    done = sweep(own, tmp_path, Local(progress=False))
    assert done.done == 1 and not done.complete
    assert [reason for reason in done.failed.values() if "no such layer" in reason]
    again = sweep(own, tmp_path, Local(progress=False))
    assert (again.before, again.done, len(again.failed)) == (1, 0, 1)


# Who may join.

REFUSED = ("tcp://10.0.0.1:8786", "tcp://0.0.0.0:8786", "tcp://example.org:1", "10.1.2.3:8786")
ALLOWED = ("tcp://127.0.0.1:8786", "127.0.0.1:8786", "tcp://localhost:1", "tcp://[::1]:8786")


@pytest.mark.parametrize("address", REFUSED)
def test_an_open_address_is_refused_with_the_right_way(address: str) -> None:
    with pytest.raises(BadInput, match=r"--tls-ca, --tls-cert and --tls-key .*or --insecure"):
        check_address(address, tls=False, insecure=False)
    check_address(address, tls=False, insecure=True)


@pytest.mark.parametrize("address", ALLOWED)
def test_loopback_is_allowed(address: str) -> None:
    check_address(address, tls=False, insecure=False)


def test_tls_needs_all_of_its_files() -> None:
    with pytest.raises(BadInput, match="needs --tls-ca"):
        check_address("tls://10.0.0.1:8786", tls=False, insecure=False)
    with pytest.raises(BadInput, match="three files"):
        Certificates(__file__, None, "key.pem").check()
    with pytest.raises(BadInput, match=r"--tls-key key\.pem is no file"):
        Certificates(__file__, __file__, "key.pem").check()
    check_address("tls://10.0.0.1:8786", tls=True, insecure=False)
    assert Certificates().security() is None


# The command.

FILE = """
import jax
import underhood as uh
from underhood.sweeps import Study


def gated(width, *, key):
    return uh.GatedRNN.init(d_in=1, hidden=width, gated=width, d_out=1, key=key)


task = uh.tasks.TeacherStudent.random(1, length=4, key=jax.random.key(0))
study = Study(task, {"gated": gated}, uh.Recipe.fast(steps=4, batch=2), widths=(2,), seeds=2)
"""


def test_a_file_is_swept_and_not_swept_again(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(FILE)
    assert main(["sweep", "mine.py", "--plan"]) == 0
    assert "gated, width 2, 2 seeds from 0" in capsys.readouterr().out
    assert not Path("results").exists()
    assert main(["sweep", "mine.py"]) == 0
    said = capsys.readouterr()
    assert "1 unit done, 0 failed" in said.out and "1 of 1 units" in said.err
    kept = {path: path.stat().st_mtime_ns for path in Path("results/mine/units").rglob("*")}
    assert main(["sweep", "mine.py"]) == 0
    assert "0 units done, 0 failed, 2 students were already finished" in capsys.readouterr().out
    assert kept == {path: path.stat().st_mtime_ns for path in Path("results/mine/units").rglob("*")}


BAD = {
    "sweep absent.py": "There is no file absent.py",
    "sweep broken.py": "broken.py, line 2: ZeroDivisionError",
    "sweep syntax.py": "syntax.py, line 1: SyntaxError",
    "sweep empty.py": "has no `study`",
    "sweep leaves.py": "leaves.py, line 1: SystemExit: 0",
    "sweep twice.py": "learning_rate holds a value twice",
    "sweep other.py": "has a study of kind int",
    "sweep wrong.py": "Study: students is a dictionary",
    "sweep mine.py --engine ray": "--engine is local or dask",
    "sweep mine.py --workers 2": "--workers is for --engine dask",
    "sweep mine.py --most 0": "--most must be at least 1",
    "sweep mine.py --out mine.py": "is a file",
    "sweep mine.py --out foreign": "holds other files",
    "sweep mine.py --engine dask --address tcp://10.0.0.1:1": "neither loopback nor protected",
    "sweep mine.py --engine dask": "takes one of --workers N, --address",
    "sweep mine.py --engine dask --workers 0": "workers is 0; give a whole number of at least 1",
}


@pytest.mark.parametrize("words", BAD)
@pytest.mark.usefixtures("unhooked")
def test_bad_input_is_one_line_and_writes_nothing(words: str, tmp_path, monkeypatch, capsys):
    if "dask" in words and "is local or dask" not in BAD[words]:
        pytest.importorskip("distributed")
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(FILE)
    Path("broken.py").write_text("x = 1\nstudy = 1 / 0\n")
    Path("syntax.py").write_text("study = (\n")
    Path("empty.py").write_text("")
    Path("other.py").write_text("study = 3\n")
    Path("leaves.py").write_text("raise SystemExit(0)\n")
    twice = 'axes={"learning_rate": (0.1, 0.1)}, seeds=2)'
    Path("twice.py").write_text(FILE.replace("seeds=2)", twice))
    Path("wrong.py").write_text(FILE.replace('{"gated": gated}', "gated"))
    Path("foreign").mkdir()
    Path("foreign/thesis.txt").touch()
    before = sorted(tmp_path.rglob("*"))
    assert main(words.split()) == 2
    said = capsys.readouterr()
    assert BAD[words] in said.err and said.err.count("\n") == 1
    assert [one for one in sorted(tmp_path.rglob("*")) if "__pycache__" not in str(one)] == before


def test_numbers_of_the_table_are_those_of_the_units(trained, tmp_path) -> None:
    own, units, files = trained
    done = sweep(own, tmp_path, Canned(list(map(UnitOutcome, units, files))), most=1)
    import pandas

    table = pandas.read_csv(done.table).sort_values("seed")
    told = [json.loads(one["members.json"])["rows"][0]["loss"] for one in files]
    np.testing.assert_allclose(table["loss"], told)


# What a function does, as its address sees it.

FACTOR = 3
SIZES = {2: (4, 4)}


def helper(width):
    return FACTOR * width


def student_by_helper(width, *, key):
    return helper(width), SIZES[width]


class Own:
    def size(self):
        return FACTOR


def student_by_class(width, *, key):
    return Own().size()


def student_that_names_itself(width, *, key):
    return student_that_names_itself, student_by_helper


def holding(value):
    def student(width, *, key):
        return value

    return student


@pytest.mark.parametrize(
    "student", [student_by_helper, student_by_class, student_that_names_itself]
)
def test_what_a_function_names_in_its_file_is_part_of_it(student, monkeypatch) -> None:
    before = describe(student)
    assert describe(student) == before
    json.dumps(before)
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 4)
    assert describe(student) != before


def test_a_table_that_a_function_names_is_part_of_it(monkeypatch) -> None:
    before = describe(student_by_helper)
    monkeypatch.setitem(SIZES, 2, (4, 5))
    assert describe(student_by_helper) != before


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({1: 2}, {1: 3}),
        ([1, 2], [2, 1]),
        ((1, {2}), (1, {3})),
        (holding(1), holding(2)),
        (jax.numpy.ones(2), jax.numpy.zeros(2)),
        (uh.GatedRNN, uh.LSTM),
        (TASK, uh.tasks.TeacherStudent.random(1, length=4, key=jax.random.key(1))),
    ],
)
def test_what_a_function_holds_is_part_of_it(one, two) -> None:
    assert describe(holding(one)) == describe(holding(one))
    assert describe(holding(one)) != describe(holding(two))


def test_schedules_that_hold_other_numbers_are_other_students() -> None:
    def slower(factor):
        return lambda progress: factor * (1 - progress)

    one, two = (
        Study(TASK, {"gated": gated}, RECIPE.change(schedule=slower(factor)), widths=(2,))
        for factor in (1.0, 0.5)
    )
    assert not set(one.addresses("gated").values()) & set(two.addresses("gated").values())


def test_studies_of_one_file_can_be_sent_by_many_threads(monkeypatch) -> None:
    module = type(sys)("underhood_study")
    exec("def own_work(study, unit, **options): pass", module.__dict__)
    module.own_work.__module__ = module.__name__
    monkeypatch.setitem(sys.modules, module.__name__, module)
    parcels, own = [], study()

    def send() -> None:
        parcels.extend(wrapped(own, module.own_work) for _ in range(20))

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(parcels) == 80


def test_a_worker_with_other_sources_refuses(monkeypatch) -> None:
    parcel = wrapped(study(), work)
    assert unwrapped("same", parcel)[0].widths == study().widths
    monkeypatch.setattr("underhood.sweeps.dask.remote.code_version", lambda: "another")
    with pytest.raises(RuntimeError, match="install the same on both"):
        unwrapped("other", parcel)


def test_a_plan_says_what_it_costs(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(FILE)
    assert main(["sweep", "mine.py", "--plan"]) == 0
    said = capsys.readouterr().out
    assert "H200-hours" in said and "core-hours" in said
