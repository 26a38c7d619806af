"""Programs are compiled once a process, and never used for anything else than what they are."""

import dataclasses
from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilation import compiled_for_users

import underhood as uh
from underhood.training import Cosine, First, program_cache as programs
from underhood.training.program_cache import PROGRAMS, Programs, program_key

TASK = uh.tasks.TeacherStudent.random(2, length=4, key=jax.random.key(0))
RECIPE = uh.Recipe.fast(steps=6, batch=4)


def gated(width, *, key, kind=uh.GatedRNN):
    return kind.init(d_in=2, hidden=width, gated=width, d_out=2, key=key)


def losses(make_student=gated, task=TASK, recipe=RECIPE, **options):
    given = {"widths": 3, "seeds": (0,), "key": jax.random.key(0), "progress": False}
    return uh.train(make_student, task, recipe, **given | options).losses


def kept():
    return [program for program, _ in PROGRAMS.entries.values()]


@pytest.fixture(autouse=True)
def empty():
    PROGRAMS.clear()
    yield
    PROGRAMS.clear()


@compiled_for_users()
def test_other_seeds_and_keys_use_the_same_program_and_get_the_same_bits() -> None:
    first = losses(seeds=(0, 1))
    assert len(PROGRAMS.entries) == 1
    (program,) = kept()
    again = losses(seeds=(1, 2))
    np.testing.assert_array_equal(again[0], first[1])
    other = losses(seeds=(0, 1), key=jax.random.key(9))
    assert not np.array_equal(other[0], first[0])
    assert kept() == [program]
    PROGRAMS.clear()
    np.testing.assert_array_equal(losses(seeds=(0, 1)), first)


@compiled_for_users()
def test_the_first_steps_of_a_recipe_have_the_program_and_the_bits_of_all() -> None:
    # 500 points of a curve both times, of one step and of two.
    whole = RECIPE.change(steps=1_000)
    every = losses(recipe=whole)
    (program,) = kept()
    first = losses(recipe=whole.first(500))
    assert kept() == [program]
    np.testing.assert_allclose(first.reshape(1, 250, 2).mean(-1), every[:, :250], rtol=1e-6)
    # Another schedule that happens to end there is another one.
    other = losses(recipe=whole.change(steps=500))
    assert len(PROGRAMS.entries) == 2 and not np.allclose(other, first, rtol=1e-3)
    # With points of one step each, to the bit.
    whole = RECIPE.change(steps=40)
    begun, every = losses(recipe=whole.first(10)), losses(recipe=whole)
    np.testing.assert_array_equal(begun, every[:, :10], strict=True)


def test_a_recipe_is_the_whole_of_its_first_steps() -> None:
    recipe = RECIPE.change(steps=70)
    assert recipe.whole is recipe
    for steps in (1, 3, 49, 70):
        assert recipe.first(steps).whole == recipe
        assert recipe.first(steps).first(1).whole == recipe
    # Made by hand, with parts that are of no one whole.
    cosine = Cosine()
    for recipe in (
        RECIPE.change(schedule=First(cosine, 0.5)),
        RECIPE.change(schedule=First(cosine, 0.5), decay_schedule=First(cosine, 0.25)),
        RECIPE.change(schedule=First(cosine, 0.7), decay_schedule=First(cosine, 0.7)),
    ):
        assert recipe.whole is recipe


def test_what_differs_has_a_program_of_its_own() -> None:
    changes = [
        {},
        {"task": uh.tasks.TeacherStudent.random(2, length=4, key=jax.random.key(1))},
        {"recipe": RECIPE.change(clip=0.5)},
        {"recipe": RECIPE.change(precision="float64")},
        {"make_student": partial(gated, kind=uh.DenseGatedRNN)},
        {"seeds": (0, 1), "lanes": 2},
    ]
    # One after the other, each with the programs of those before it at hand; then each alone.
    together = []
    for count, change in enumerate(changes, start=1):
        together.append(losses(**change))
        assert len(PROGRAMS.entries) == count
    for change, expected in zip(changes, together, strict=True):
        PROGRAMS.clear()
        np.testing.assert_array_equal(losses(**change), expected)


def test_schedules_of_the_same_code_that_hold_other_numbers_are_other_schedules() -> None:
    def slower(factor):
        return lambda progress: factor * (1 - progress)

    fast, slow = (RECIPE.change(schedule=slower(factor)) for factor in (1.0, 0.01))
    assert not np.array_equal(losses(recipe=fast), losses(recipe=slow))
    assert len(PROGRAMS.entries) == 2


def test_students_that_differ_by_a_function_alone() -> None:
    class Student(eqx.Module):
        weight: jax.Array
        act: Callable

        def __call__(self, inputs):
            return self.act(inputs @ self.weight)

    def with_act(act):
        return lambda width, *, key: Student(jax.random.normal(key, (2, 2)), act)

    curves = [
        losses(with_act(act)) for act in (jnp.tanh, jax.nn.relu, lambda x: 2 * x, lambda x: 3 * x)
    ]
    assert len({curve.tobytes() for curve in curves}) == 4
    assert len(PROGRAMS.entries) == 4


def test_few_are_kept_the_last_ones() -> None:
    few, built = Programs(kept=2), []

    def use(key):
        return few.get(key, None, lambda: built.append(key) or f"{key}!")

    assert [use(key) for key in "aabaca"] == ["a!", "a!", "b!", "a!", "c!", "a!"]
    assert built == ["a", "b", "c"]
    use("b")
    assert built == ["a", "b", "c", "b"] and list(few.entries) == ["a", "b"]


def test_the_key_of_a_task_is_its_numbers_and_what_has_no_key_is_not_kept() -> None:
    another = uh.tasks.TeacherStudent.random(2, length=4, key=jax.random.key(1))
    assert program_key(dataclasses.replace(TASK)) == program_key(TASK) != program_key(another)
    assert program_key(TASK, RECIPE) is not None
    assert program_key(TASK, ["a list"]) is None
    none, built = Programs(), []
    for _ in range(2):
        none.get(None, None, lambda: built.append(1))
    assert len(built) == 2 and not none.entries


def test_all_are_forgotten_before_they_are_too_many(monkeypatch) -> None:
    PROGRAMS.get("one", None, lambda: "program")
    assert not programs.forget_if_many() and PROGRAMS.entries
    monkeypatch.setattr(programs, "MOST_MAPPINGS", 0)
    assert programs.forget_if_many() and not PROGRAMS.entries
