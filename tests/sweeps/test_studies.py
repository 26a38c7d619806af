"""Studies: addresses, what a function is to its address, plans, and what travels to workers."""

import json
import sys

import jax
import pytest
from swept import RECIPE, TASK, all_at_once, gated, study_of

import underhood as uh
from underhood.common.errors import BadInput
from underhood.sweeps import study as studies
from underhood.sweeps.parcels import unwrapped, wrapped
from underhood.sweeps.study import describe
from underhood.sweeps.units import plan, work


def slower(factor):
    return lambda progress: factor * (1 - progress)


def wider_by(number):
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
    "student": {"students": {"gated": wider_by(1)}},
    "what it holds": {"students": {"gated": wider_by(1)}},
    "what a schedule holds": {"recipe": RECIPE.change(schedule=slower(0.5))},
}
# What is changed, where that is not the study's default.
BEFORE = {
    "what it holds": {"students": {"gated": wider_by(0)}},
    "what a schedule holds": {"recipe": RECIPE.change(schedule=slower(1.0))},
}


@pytest.mark.parametrize("what", CHANGES)
def test_whatever_decides_the_weights_changes_the_address(what: str) -> None:
    before = study_of(**BEFORE.get(what, {}))
    assert not before.all_addresses() & study_of(**CHANGES[what]).all_addresses()


def test_the_same_students_have_the_same_addresses_in_any_study() -> None:
    small, large = study_of(seeds=2, widths=(2,)), study_of(seeds=4, widths=(3, 2))
    assert small.all_addresses() < large.all_addresses()
    assert len(large.all_addresses()) == 8
    renamed = study_of(students={"another": gated})
    assert renamed.all_addresses() == study_of().all_addresses()


def test_a_rate_by_width_gives_the_addresses_of_that_rate() -> None:
    axis = study_of(axes={"learning_rate": {2: 0.1, 3: 0.2}})
    alone = study_of(axes={"learning_rate": [0.2]}, widths=(3,))
    assert alone.all_addresses() < axis.all_addresses()
    assert len(axis.all_addresses()) == 2 * len(alone.all_addresses())


def test_teachers_are_known_by_their_weights() -> None:
    teachers = [uh.tasks.TeacherStudent.random(1, key=jax.random.key(k)).attention for k in (1, 2)]
    both = study_of(axes={"teacher": teachers})
    swapped = study_of(axes={"teacher": teachers[::-1]})
    assert both.all_addresses() == swapped.all_addresses()
    assert len(both.all_addresses()) == 12


def test_code_that_trains_is_part_of_the_address(monkeypatch) -> None:
    before = study_of().all_addresses()
    monkeypatch.setattr(studies, "code_version", lambda: "another")
    assert not before & study_of().all_addresses()


WRONG = {
    "the task is an int": {"task": 3},
    "the recipe is an int": {"recipe": 3},
    "students is a dictionary": {"students": gated},
    "cannot name a student": {"students": {"a b": gated}},
    "is no function": {"students": {"a": 3}},
    "widths is empty": {"widths": ()},
    "Unknown axis": {"axes": {"momentum": (1,)}},
    "seeds is 0": {"seeds": 0},
}


@pytest.mark.parametrize("message", WRONG)
@pytest.mark.usefixtures("unhooked")
def test_a_wrong_study_is_refused_in_one_line(message: str) -> None:
    with pytest.raises(BadInput, match=message):
        study_of(**WRONG[message])


@pytest.mark.parametrize("workers", [1, 2, 5, 100])
@pytest.mark.parametrize("most", [1, 4, 256])
def test_every_student_is_in_one_unit(workers: int, most: int) -> None:
    study = study_of(seeds=7, axes={"learning_rate": (1e-3, 1e-2)})
    units = plan(study, workers=workers, most=most)
    planned = [address for unit in units for address in unit.addresses]
    assert sorted(planned) == sorted(study.all_addresses())
    assert len({unit.name for unit in units}) == len(units)
    # A seed's points of the axes stay together.
    assert all(len(unit.addresses) <= max(most, 2) for unit in units)
    assert len(units) >= min(workers, 14)
    assert [unit.width for unit in units] == sorted((unit.width for unit in units), reverse=True)


def test_what_is_finished_is_not_planned() -> None:
    study = study_of(seeds=4, widths=(2,))
    done = {address for member, address in study.addresses("gated").items() if member.seed < 3}
    (unit,) = plan(study, done)
    assert unit.seeds == (3,) and plan(study, study.all_addresses()) == []


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
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[__name__], "FACTOR", 4)
        assert describe(student) != before
    # So is a table, which two of them name.
    monkeypatch.setitem(SIZES, 2, (4, 5))
    assert (describe(student) == before) == (student is student_by_class)


@pytest.mark.parametrize(
    ("value", "another"),
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
def test_what_a_function_holds_is_part_of_it(value, another) -> None:
    assert describe(holding(value)) == describe(holding(value)) != describe(holding(another))


def test_studies_of_one_file_can_be_sent_by_many_threads(monkeypatch) -> None:
    module = type(sys)("underhood_study")
    exec("def own_work(study, unit, **options): pass", module.__dict__)
    module.own_work.__module__ = module.__name__
    monkeypatch.setitem(sys.modules, module.__name__, module)
    parcels, study = [], study_of()

    def send() -> None:
        parcels.extend(wrapped(study, module.own_work) for _ in range(20))

    all_at_once([send] * 4)
    assert len(parcels) == 80


def test_a_worker_with_other_sources_refuses(monkeypatch) -> None:
    parcel = wrapped(study_of(), work)
    assert unwrapped(parcel)[0].widths == study_of().widths
    monkeypatch.setattr("underhood.sweeps.parcels.code_version", lambda: "another")
    unwrapped.cache_clear()
    with pytest.raises(RuntimeError, match="install the same on both"):
        unwrapped(parcel)
