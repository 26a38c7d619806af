"""Students of a comparison read from its finished result, or not at all."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from underhood.experiments import figure4b
from underhood.experiments.architectures import ARCHITECTURES
from underhood.experiments.comparison import Comparison, Student
from underhood.experiments.earlier import earlier, planned, students_in
from underhood.experiments.results import Outcome, judge, write
from underhood.experiments.setting import Setting

NAME = "figure4b"
TASK, PLAN = figure4b.problem("smoke")


def students(rng: np.random.Generator) -> tuple[Student, ...]:
    """Everyone in the plan, with losses of all sizes; one in five was lost."""
    return tuple(
        Student(
            *who,
            rate=PLAN.rates[0],
            parameters=int(rng.integers(1, 10**6)),
            training=None if rng.random() < 0.2 else float(10 ** rng.uniform(-12, 3)),
            loss=None if rng.random() < 0.2 else float(10 ** rng.uniform(-12, 3)),
            validation=None if rng.random() < 0.2 else float(10 ** rng.uniform(-12, 3)),
        )
        for who in planned(PLAN, PLAN.seeds)
    )


def keep(found: tuple[Student, ...], folder: Path, *, steps: int = PLAN.recipe.steps) -> None:
    columns = Comparison(TASK, found, (), PLAN.seeds).columns()
    outcome = Outcome((), steps=steps, arrays=columns, earlier=({"commit": "abc", "students": 2},))
    write(judge(NAME, "smoke", outcome, 1.0), folder)


def setting(folder: Path, **changed) -> Setting:
    return dataclasses.replace(Setting("smoke", None, folder, lambda *_: None), **changed)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_read_is_what_was_kept(seed, tmp_path) -> None:
    found = students(np.random.default_rng(seed))
    assert students_in(Comparison(TASK, found, (), PLAN.seeds).columns()) == found
    keep(found, tmp_path)
    read = earlier(NAME, TASK, PLAN, setting(tmp_path))
    assert read is not None and read.students == found and read.seeds == PLAN.seeds
    assert read.read is not None and read.read["experiment"] == NAME
    assert read.read["training"] == [{"commit": "abc", "students": 2}]


def test_a_plan_names_students_in_the_order_of_a_comparison() -> None:
    first = ARCHITECTURES[0].name
    assert planned(PLAN, 2)[:3] == [
        (first, 1, 4, 0),
        (first, 1, 4, 1),
        (ARCHITECTURES[1].name, 1, 4, 0),
    ]


def test_other_students_are_not_taken_for_those_of_the_plan(tmp_path) -> None:
    found = students(np.random.default_rng(0))

    def read(plan=PLAN, **changed) -> Comparison | None:
        return earlier(NAME, TASK, plan, setting(tmp_path, **changed))

    assert read() is None
    keep(found, tmp_path)
    assert read() is not None
    # The same command makes it anew, other seeds, another scale.
    assert read(anew=frozenset({NAME})) is None
    assert read(seeds=3) is None
    assert read(scale="quick") is None
    # Another plan: sizes, seeds, rates, steps.
    for field, value in (("widths", {1: (8,)}), ("seeds", 3), ("rates", (3e-3,))):
        assert read(dataclasses.replace(PLAN, **{field: value})) is None
    longer = dataclasses.replace(PLAN.recipe, steps=PLAN.recipe.steps + 1)
    assert read(dataclasses.replace(PLAN, recipe=longer)) is None
    # Files that are not whole, or another kind of result.
    keep(found[:-1], tmp_path)
    assert read() is None
    write(judge(NAME, "smoke", Outcome((), steps=10, arrays={"x": np.ones(2)}), 1.0), tmp_path)
    assert read() is None
    keep(found, tmp_path)
    (tmp_path / NAME / "arrays.safetensors").write_bytes(b"cut")
    assert read() is None
