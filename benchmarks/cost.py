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
from underhood.training.arrangement import Arrangement, arrange
from underhood.training.device import core_numbers

SECONDS = 0.5
TASKS = {
    "teacher": uh.tasks.TeacherStudent.random(4, length=32, key=jax.random.key(0)),
    "regression": uh.tasks.InContextRegression(),
}
SIZES = {"cpu": ((16, 1), (64, 1)), "gpu": ((16, 8), (64, 64))}


def compiled(study: Study, students: int) -> Arrangement:
    """Return students of one kind in one program."""
    return arrange(study.ensemble("student"), lanes=students)


def measured(arranged: Arrangement) -> float:
    """Return the seconds of a step."""
    states = arranged.advance(arranged.first_states(), 0, 3)
    done, steps, taken = 3, 4, 0.0
    while taken < SECONDS:
        steps *= 4
        began = time.perf_counter()
        states = arranged.advance(states, done, done + steps)
        taken = time.perf_counter() - began
        done += steps
    return taken / steps


class Case(NamedTuple):
    """Students of one kind, and the seconds of their step."""

    kind: str
    width: int
    students: int
    seconds: float


def studied(task: str, kind: str, depth: int, width: int, students: int) -> Study:
    """The study of a case."""
    make = next(a for a in ARCHITECTURES if a.name == kind).make(TASKS[task], depth)
    recipe = uh.Recipe(steps=1_000_000)
    return Study(TASKS[task], {"student": make}, recipe, (width,), students)


def run() -> Iterator[Case]:
    """Time all cases here."""
    backend = "cpu" if jax.default_backend() == "cpu" else "gpu"
    places = [
        (task, architecture.name, depth, *size)
        for task in TASKS
        for architecture in ARCHITECTURES
        for depth in architecture.depths
        for size in SIZES[backend]
    ]
    # Compiled side by side, timed one after another.
    with ThreadPoolExecutor(len(core_numbers())) as pool:
        made = list(pool.map(lambda place: compiled(studied(*place), place[4]), places))
    for (task, kind, depth, *size), arranged in zip(places, made, strict=True):
        yield Case(f"{kind}, {depth}, {task}", *size, measured(arranged))


def read(record: str) -> Iterator[Case]:
    """Cases that were timed elsewhere."""
    for line in Path(record).read_text().splitlines():
        if match := re.fullmatch(r"(.+?) +(\d+) × (\d+) +([\d.]+) ms", line):
            kind, width, students, milliseconds = match.groups()
            yield Case(kind, int(width), int(students), float(milliseconds) / 1e3)


def traced(case: Case, backend: str) -> Step:
    """What the model counts of a case."""
    *kind, depth, task = case.kind.split(", ")
    study = studied(task, ", ".join(kind), int(depth), case.width, case.students)
    return step_of(study, "student", case.width, Device(backend, 0, 0, 0, 1, 1))


def main(record: str | None) -> None:
    backend = "gpu" if record or jax.default_backend() != "cpu" else "cpu"
    cases = []
    for case in read(record) if record else run():
        cases.append(case)
        name = f"{case.kind:34} {case.width:4} × {case.students:<3}"
        print(f"{name} {1e3 * case.seconds:8.3f} ms", flush=True)
    steps = [traced(case, backend) for case in cases]
    students = np.array([case.students for case in cases])
    apart = np.ones(len(cases)) if backend == "gpu" else students
    columns = np.array([[step.launches, step.waits, step.flow, step.work] for step in steps])
    columns *= np.array([apart, apart, students, students]).T
    times = np.array([case.seconds for case in cases])
    # Every other case of each size.
    fitted = np.array([place % 4 in (0, 3) for place in range(len(cases))])
    # Of the ratio, so that a fast student counts as much as a slow one.
    solution, _ = nnls(columns[fitted] / times[fitted, None], np.ones(len(times[fitted])))
    launch, wait, *both = map(float, solution)
    rate, speed = (1 / max(seconds, 1e-30) for seconds in both)
    print(f"\nlaunch {launch:.3g} s, wait {wait:.3g} s,", end=" ")
    print(f"rate {rate:.3g} bytes/s, speed {speed:.3g} operations/s\n")
    device = Device(backend, 0.0, launch, wait, rate, speed)
    ratios = []
    for case, step, known in zip(cases, steps, fitted, strict=True):
        ratios.append(case.seconds / seconds_of(step, case.students, 1, device))
        name = f"{case.kind:34} {case.width:4} × {case.students:<3}"
        print(f"{name} measured/model {ratios[-1]:5.2f}  {'fitted' if known else 'check'}")
    check = np.array(ratios)[~fitted]
    low, middle, high = np.quantile(check, (0.05, 0.5, 0.95))
    print(f"\ncheck: median {middle:.2f}, 90 % of them from {low:.2f} to {high:.2f},", end=" ")
    print(f"all from {min(check):.2f} to {max(check):.2f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
