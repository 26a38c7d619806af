"""Students of a comparison read from its finished result, or not at all."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from underhood.experiments.paper.figure4 import plan_figure4b
from underhood.experiments.paper.figure6 import ratio_near
from underhood.experiments.protocols.comparison import (
    Comparison,
    TrainedStudent,
    planned_students,
    read_comparison,
    students_in,
)
from underhood.experiments.running.outcomes import Outcome, judge_outcome
from underhood.experiments.running.setting import Setting
from underhood.results.architectures import ARCHITECTURE_NAMES
from underhood.results.files import ARRAYS, write_result

NAME = "figure4b"
PLAN = plan_figure4b("smoke")
TASK = PLAN.task


def students(rng: np.random.Generator) -> tuple[TrainedStudent, ...]:
    """Everyone in the plan, with losses of all sizes; one in five was lost."""

    def loss() -> float | None:
        return None if rng.random() < 0.2 else float(10 ** rng.uniform(-12, 3))

    return tuple(
        TrainedStudent(*who, PLAN.rates[0], int(rng.integers(1, 10**6)), loss(), loss(), loss())
        for who in planned_students(PLAN, PLAN.seeds)
    )


def keep(kept: tuple[TrainedStudent, ...], folder: Path, **changed) -> None:
    comparison = Comparison(TASK, kept, (), PLAN.seeds)
    outcome = Outcome(
        rows=comparison.rows(),
        steps=PLAN.recipe.steps,
        arrays=comparison.columns() | changed,
        earlier=({"commit": "abc", "students": 2},),
    )
    write_result(judge_outcome(NAME, "smoke", outcome, 1.0), folder)


def setting(folder: Path, **changed) -> Setting:
    return dataclasses.replace(Setting("smoke", None, folder, lambda *_: None), **changed)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_read_is_what_was_kept(seed, tmp_path) -> None:
    drawn = students(np.random.default_rng(seed))
    assert students_in(Comparison(TASK, drawn, (), PLAN.seeds).columns()) == drawn
    keep(drawn, tmp_path)
    read = read_comparison(PLAN, setting(tmp_path))
    assert read is not None and read.students == drawn and read.seeds == PLAN.seeds
    assert read.read is not None and read.read["experiment"] == NAME
    assert read.read["training"] == [{"commit": "abc", "students": 2}]


def test_a_plan_names_students_in_the_order_of_a_comparison() -> None:
    first, second = ARCHITECTURE_NAMES[:2]
    assert planned_students(PLAN, 2)[:3] == [(first, 1, 4, 0), (first, 1, 4, 1), (second, 1, 4, 0)]


def test_other_students_are_not_taken_for_those_of_the_plan(tmp_path, caplog) -> None:
    keep(students(np.random.default_rng(0)), tmp_path)

    def read(plan=PLAN, **changed) -> Comparison | None:
        return read_comparison(plan, setting(tmp_path, **changed))

    # As many seeds as the experiment has by itself, asked for or not.
    assert read() is not None and read(seeds=PLAN.seeds) is not None
    assert read_comparison(PLAN, setting(tmp_path / "other")) is None
    assert read(anew=frozenset({NAME})) is None
    assert caplog.text == ""
    assert read(scale="quick") is None and "at smoke scale" in caplog.text
    assert read(seeds=3) is None and "(3 seeds are wanted)" in caplog.text
    for field, value in (("widths", {1: (8,)}), ("seeds", 3), ("rates", (3e-3,))):
        assert read(dataclasses.replace(PLAN, **{field: value})) is None
    caplog.clear()
    longer = dataclasses.replace(PLAN.recipe, steps=PLAN.recipe.steps + 1)
    assert read(dataclasses.replace(PLAN, recipe=longer)) is None
    assert f"with {PLAN.recipe.steps} updates; training instead" in caplog.text


def edit(folder: Path, **changes) -> None:
    path = folder / NAME / "result.json"
    result = json.loads(path.read_text())
    result["provenance"] |= changes.pop("provenance", {})
    path.write_text(json.dumps(result | changes))


def without_arrays(folder: Path) -> None:
    (folder / NAME / ARRAYS).unlink()
    edit(folder, arrays={})


FOUND = students(np.random.default_rng(1))


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda folder: (folder / NAME / ARRAYS).unlink(), "damaged"),
        (lambda folder: (folder / NAME / ARRAYS).write_bytes(b"cut"), "damaged"),
        (lambda folder: (folder / NAME / "result.json").write_text("[1]"), "damaged"),
        (lambda folder: edit(folder, format=99), "newer version"),
        (lambda folder: edit(folder, provenance={"training": 7}), "its rows"),
        (lambda folder: edit(folder, rows=[]), "its rows"),
        (lambda folder: edit(folder, rows=7), "its rows"),
        (lambda folder: keep(FOUND[:-1], folder), "other students"),
        (lambda folder: keep(FOUND, folder, parameters=np.ones(len(FOUND), int)), "its rows"),
        (lambda folder: keep(FOUND, folder, loss=np.ones(len(FOUND))), "its rows"),
        (lambda folder: keep(FOUND, folder, architecture=np.zeros(len(FOUND))), "its arrays"),
        (lambda folder: keep(FOUND, folder, architecture=np.full(len(FOUND), 99)), "its arrays"),
        (lambda folder: keep(FOUND, folder, seed=np.zeros(3, int)), "its arrays"),
        (without_arrays, "its arrays"),
    ],
)
def test_what_is_damaged_is_not_used_and_said(damage, why, tmp_path, caplog) -> None:
    keep(FOUND, tmp_path)
    assert read_comparison(PLAN, setting(tmp_path)) is not None
    damage(tmp_path)
    assert read_comparison(PLAN, setting(tmp_path)) is None
    assert why in caplog.text and "is not used, because" in caplog.text


@pytest.mark.parametrize("loss", [0.0, None])
def test_a_student_without_a_training_loss_has_no_ratio(loss) -> None:
    odd = [dataclasses.replace(first, training=loss, validation=1.0) for first in FOUND[:2]]
    even = [dataclasses.replace(later, training=1.0, validation=2.0) for later in FOUND[2:]]
    comparison = Comparison(TASK, (*odd, *even), (), 4)
    assert ratio_near(comparison, None, "ratio", 2.0).value == 2.0
