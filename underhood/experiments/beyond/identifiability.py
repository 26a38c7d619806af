"""How many neurons a student needs before training can find its teacher: the theory's number.

For teachers of several widths and ranks `fit` starts many times from random weights. The sizes lie
around the fewest neurons that any gated RNN with this function can have (`docs/minimal.md`). A
start has found the function if its loss on fresh sequences is at most FIT_TOLERANCE of the task's
scale. A start keeps to its own neurons (`wider=False`). If a start below the theory's size found
the function, the proof that the size is minimal would be wrong.

Gradient descent stands beside it: the students of figure3a. At paper scale it is left out, because
these students take a GPU and the rest of this experiment does not.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import jax
import numpy as np

from underhood.common.files import Json
from underhood.constructions import compile
from underhood.experiments.paper.figure3 import PLANS
from underhood.experiments.protocols.architectures import gated_student
from underhood.experiments.protocols.sizes import excess_losses, known_losses
from underhood.experiments.running import Outcome, Setting
from underhood.experiments.running.rules import judged, ours
from underhood.results.files import Number
from underhood.tasks import TeacherStudent
from underhood.training.second_order.fitting import FIT_TOLERANCE, fit

# Sizes, as neurons beyond the theory's.
AROUND = {"smoke": (-1, 0), "quick": (-1, 0, 1, 3), "paper": (-2, -1, 0, 1, 2, 4)}
TEACHER, FIRST_START, LENGTH = 610, 800, 16
# Students of gradient descent have found the function at this loss over the scale.
DESCENT_LIMIT = 1e-6


@dataclass(frozen=True)
class Case:
    """Teachers of one width and rank, and how many starts each size gets."""

    d: int
    rank: int
    starts: int

    @cached_property
    def task(self) -> TeacherStudent:
        key = jax.random.key(TEACHER)
        return TeacherStudent.random(self.d, self.rank, length=LENGTH, key=key)

    @cached_property
    def theory(self) -> int:
        """The fewest neurons of any gated RNN with the teacher's function."""
        return compile(self.task.attention, "gated_rnn", form="minimal").neurons

    def __str__(self) -> str:
        return f"d = {self.d}, rank {self.rank}"


CASES = {
    "smoke": (Case(2, 1, 2),),
    "quick": (Case(2, 2, 12), Case(3, 3, 12), Case(4, 2, 12)),
    "paper": (
        *(Case(2, rank, 200) for rank in (1, 2)),
        *(Case(3, rank, 200) for rank in (1, 2, 3)),
        *(Case(4, rank, 200) for rank in (1, 2)),
        *(Case(4, rank, 100) for rank in (3, 4)),
        *(Case(d, 2, 100) for d in (5, 6)),
    ),
}


def reproduce_identifiability(setting: Setting) -> Outcome:
    cases, around = CASES[setting.scale], AROUND[setting.scale]
    descent = descent_rows(setting.part(0, 0.1)) if setting.scale != "paper" else []
    numbers: list[Number] = []
    rows: list[Json] = []
    work = [(case, beyond) for case in cases for beyond in around]
    for case, beyond in setting.part(0.1, 1).over(work):
        task, theory = case.task, case.theory
        neurons, starts = theory + beyond, setting.count(case.starts)
        if neurons < 1:
            continue
        losses = np.array(fitted_losses(task, neurons, starts)) / task.scale
        rows.append(share_row(str(case), "second order", neurons, theory, losses, FIT_TOLERANCE))
        if beyond == around[-1]:
            rows_of_case = [row for row in rows if row["teacher"] == str(case)]
            numbers.append(judge_fewest(case, rows_of_case, starts))
    return Outcome(
        numbers=numbers,
        rows=[*rows, *descent],
        notes=[
            "Losses are divided by the task's scale. A start of the second-order fit has found the "
            f"function at {FIT_TOLERANCE:g} and below. Gradient descent ends higher; its students "
            f"count at {DESCENT_LIMIT:g} and below."
        ],
        seeds=range(max(setting.count(case.starts) for case in cases)),
    )


def share_row(
    teacher: str, by: str, neurons: int, theory: int, losses: np.ndarray, limit: float
) -> Json:
    """Return how many starts of one size found the function."""
    count = int(np.sum(losses <= limit))
    return {
        "teacher": teacher,
        "by": by,
        "neurons": neurons,
        "beyond theory": neurons - theory,
        "found": f"{count} of {len(losses)}",
        "share": count / len(losses),
        "lowest loss": float(np.min(losses)),
    }


def judge_fewest(case: Case, rows: list[Json], starts: int) -> Number:
    """Judge the fewest neurons with which a start has found the function: the theory's."""
    fewest = next((row["neurons"] for row in rows if row["share"] > 0), None)
    rule = f"fewest neurons that find the function = {case.theory}"
    name, holds = f"fewest neurons, {case}", fewest == case.theory
    return ours(judged(name, fewest, rule, holds, paper=None, seeds=starts))


def fitted_losses(task: TeacherStudent, neurons: int, starts: int) -> list[float]:
    """Return where starts of a student with so many neurons end; side by side, one per core."""
    student = gated_student(task)

    def run(number: int) -> float:
        return fit(
            student,
            task,
            key=jax.random.key(FIRST_START + number),
            width=neurons,
            restarts=1,
            wider=False,
            workers=1,
            progress=False,
        ).loss

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            return list(pool.map(run, range(starts)))
        except KeyboardInterrupt:
            # Starts under way end by themselves; those that wait do not begin.
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def descent_rows(setting: Setting) -> list[Json]:
    """Return the same of gradient descent, from the students of figure3a."""
    plan = PLANS["figure3a"](setting.scale)
    seeds = setting.count(plan.seeds)
    runs = [setting.train(name, study) for name, study in plan.studies("figure3a", seeds).items()]
    losses = known_losses(excess_losses(runs, plan, seeds), plan.task)
    d, theory = plan.task.d_in, plan.predicted[0]
    return [
        share_row(f"d = {d}, rank {d}", "gradient descent", neurons, theory, values, DESCENT_LIMIT)
        for neurons, values in zip(plan.neurons, losses, strict=False)
    ]
