"""The constants of the cost model (underhood/sweeps/cost.py), and how well it foretells.

    taskset -c 0 python benchmarks/cost.py [RECORD]

Trains students of all kinds and several sizes for a moment, on this accelerator, or on one core
(taskset), fits the constants to every second of them, and prints for all of them what was
measured over what those constants say. The rows that were not fitted are the check. With a
RECORD, which is what an earlier run has printed, nothing is trained and its times are fitted:
`benchmarks/cost_h200.txt` is an H200's.
"""

import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from scipy.optimize import nnls

import underhood as uh
from underhood.experiments.protocols.architectures import ARCHITECTURES
from underhood.sweeps import Study
from underhood.sweeps.cost import Device, Step, seconds_of, step_of
from underhood.training.device import cores
from underhood.training.ensemble import Ensemble
from underhood.training.members import Member

SECONDS = 0.5
TASKS = {
    "teacher": uh.tasks.TeacherStudent.random(4, length=32, key=jax.random.key(0)),
    "regression": uh.tasks.InContextRegression(),
}
SIZES = {"cpu": ((16, 1), (64, 1)), "gpu": ((16, 8), (64, 64))}


def compiled(study: Study, width: int, students: int) -> Ensemble:
    """Students of one kind in one program."""
    members = tuple(Member(seed, width) for seed in range(students))
    (make,) = study.students.values()
    one = Ensemble(make, members, (), study.task, study.recipe, jax.random.key(0))
    one.arrange(students, None, None)
    return one


def measured(one: Ensemble) -> float:
    """Seconds of a step."""
    states = one.advance(one.first_states(), 0, 3)
    done, steps, taken = 3, 4, 0.0
    while taken < SECONDS:
        steps *= 4
        began = time.perf_counter()
        states = one.advance(states, done, done + steps)
        taken = time.perf_counter() - began
        done += steps
    return taken / steps


class Case(NamedTuple):
    """Students of one kind, and the seconds of their step."""

    told: str
    width: int
    students: int
    seconds: float


def studied(task: str, kind: str, depth: int, width: int, students: int) -> Study:
    """The study of a case."""
    make = next(one for one in ARCHITECTURES if one.name == kind).make(TASKS[task], depth)
    recipe = uh.Recipe(steps=1_000_000)
    return Study(TASKS[task], {"student": make}, recipe, (width,), students)


def run() -> Iterator[Case]:
    """Time all cases here."""
    backend = "cpu" if jax.default_backend() == "cpu" else "gpu"
    places = [
        (task, one.name, depth, *size)
        for task in TASKS
        for one in ARCHITECTURES
        for depth in one.depths
        for size in SIZES[backend]
    ]
    # Compiled side by side, timed one after another.
    with ThreadPoolExecutor(cores()) as pool:
        made = list(pool.map(lambda one: compiled(studied(*one), *one[3:]), places))
    for (task, kind, depth, *size), one in zip(places, made, strict=True):
        yield Case(f"{kind}, {depth}, {task}", *size, measured(one))


def read(record: str) -> Iterator[Case]:
    """Cases that were timed elsewhere."""
    for line in Path(record).read_text().splitlines():
        if found := re.fullmatch(r"(.+?) +(\d+) × (\d+) +([\d.]+) ms", line):
            told, width, students, milliseconds = found.groups()
            yield Case(told, int(width), int(students), float(milliseconds) / 1e3)


def traced(case: Case, backend: str) -> Step:
    """What the model counts of a case."""
    *kind, depth, task = case.told.split(", ")
    study = studied(task, ", ".join(kind), int(depth), case.width, case.students)
    return step_of(study, "student", case.width, Device("", backend, 0, 0, 0, 1, 1))


def main(record: str | None) -> None:
    backend = "gpu" if record or jax.default_backend() != "cpu" else "cpu"
    cases = []
    for case in read(record) if record else run():
        cases.append(case)
        told = f"{case.told:34} {case.width:4} × {case.students:<3}"
        print(f"{told} {1e3 * case.seconds:8.3f} ms", flush=True)
    steps = [traced(case, backend) for case in cases]
    students = np.array([case.students for case in cases])
    apart = np.ones(len(cases)) if backend == "gpu" else students
    columns = np.array([[one.launches, one.waits, one.flow, one.work] for one in steps])
    columns *= np.array([apart, apart, students, students]).T
    times = np.array([case.seconds for case in cases])
    # Every other case of each size.
    fitted = np.array([place % 4 in (0, 3) for place in range(len(cases))])
    # Of the ratio, so that a fast student counts as much as a slow one.
    found, _ = nnls(columns[fitted] / times[fitted, None], np.ones(len(times[fitted])))
    launch, wait, *both = (float(one) for one in found)
    rate, speed = (1 / max(one, 1e-30) for one in both)
    print(f"\nlaunch {launch:.3g} s, wait {wait:.3g} s,", end=" ")
    print(f"rate {rate:.3g} bytes/s, speed {speed:.3g} operations/s\n")
    device = Device("this", backend, 0.0, launch, wait, rate, speed)
    ratios = []
    for case, step, known in zip(cases, steps, fitted, strict=True):
        ratios.append(case.seconds / seconds_of(step, case.students, 1, device))
        told = f"{case.told:34} {case.width:4} × {case.students:<3}"
        print(f"{told} measured/model {ratios[-1]:5.2f}  {'fitted' if known else 'check'}")
    check = np.array(ratios)[~fitted]
    low, middle, high = np.quantile(check, (0.05, 0.5, 0.95))
    print(f"\ncheck: median {middle:.2f}, 90 % of them from {low:.2f} to {high:.2f},", end=" ")
    print(f"all from {min(check):.2f} to {max(check):.2f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
