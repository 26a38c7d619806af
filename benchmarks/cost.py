"""The constants of the cost model (underhood/sweeps/cost.py), and how well it foretells.

    taskset -c 0 python benchmarks/cost.py

Trains students of all kinds and several sizes for a moment, on this accelerator, or on one core
(taskset), fits the constants to every second of them, and prints for all of them what was
measured over what those constants say. The rows that were not fitted are the check.
"""

import time
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
from scipy.optimize import nnls

import underhood as uh
from underhood.experiments.architectures import ARCHITECTURES
from underhood.sweeps import Study
from underhood.sweeps.cost import Device, seconds_of, step_of
from underhood.training.device import cores
from underhood.training.ensemble import Ensemble
from underhood.training.members import Member

SECONDS = 0.5
TASKS = {
    "teacher": uh.tasks.TeacherStudent.random(4, length=32, key=jax.random.key(0)),
    "regression": uh.tasks.InContextRegression(),
}
SIZES = {"cpu": ((16, 1), (64, 1)), "gpu": ((16, 8), (64, 8), (64, 64))}


def compiled(study: Study, width: int, students: int) -> tuple[Ensemble, float]:
    """Students of one kind in one program, and the seconds of compiling it."""
    members = tuple(Member(seed, width) for seed in range(students))
    (make,) = study.students.values()
    began = time.perf_counter()
    one = Ensemble(make, members, (), study.task, study.recipe, jax.random.key(0))
    one.arrange(students, None, None)
    return one, time.perf_counter() - began


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


def main() -> None:
    backend = "cpu" if jax.default_backend() == "cpu" else "gpu"
    places = [
        (f"{architecture.name}, {depth}, {name}", architecture.make(task, depth), task, *size)
        for name, task in TASKS.items()
        for architecture in ARCHITECTURES
        for depth in architecture.depths
        for size in SIZES[backend]
    ]
    studies = [
        Study(task, {"student": make}, uh.Recipe(steps=1_000_000), (width,), students)
        for _, make, task, width, students in places
    ]
    # What one compilation takes is told by a few of them, alone; then all cores compile.
    alone = [compiled(studies[one], *places[one][3:])[1] for one in range(0, len(places), 12)]
    compiling = float(np.median(alone))
    with ThreadPoolExecutor(cores()) as pool:
        made = [
            pool.submit(compiled, study, *place[3:])
            for study, place in zip(studies, places, strict=True)
        ]
    cases = []
    for (told, _, _, width, students), study, one in zip(places, studies, made, strict=True):
        seconds = measured(one.result()[0])
        cases.append((told, width, students, step_of(study, "student", width), seconds))
        print(f"{told:34} {width:4} × {students:<3} {1e3 * seconds:8.3f} ms", flush=True)
    together = backend == "gpu"
    columns = np.array(
        [
            [1.0, step.turns, step.waits, students * step.flow, students * step.work]
            for _, _, students, step, _ in cases
        ]
    )
    times = np.array([seconds for *_, seconds in cases])
    # Every other case of each size.
    fitted = np.array([place % 4 in (0, 3) for place in range(len(cases))])
    # Of the ratio, so that a fast student counts as much as a slow one.
    found, _ = nnls(columns[fitted] / times[fitted, None], np.ones(len(times[fitted])))
    launch, turn, wait, *both = (float(one) for one in found)
    rate, speed = (1 / max(one, 1e-30) for one in both)
    device = Device(str(jax.devices()[0]), compiling, launch, turn, wait, rate, speed, together)
    print(
        f"\ncompiling {compiling:.1f} s, launch {launch:.3g}, turn {turn:.3g}, wait {wait:.3g} s,"
    )
    print(f"rate {rate:.3g} bytes/s, speed {speed:.3g} operations/s\n")
    ratios = []
    for place, (told, width, students, step, seconds) in enumerate(cases):
        foreseen = seconds_of(step, students, 1, device) - device.setup
        ratios.append(seconds / foreseen)
        mark = "fitted" if fitted[place] else "check"
        print(f"{told:34} {width:4} × {students:<3} measured/model {ratios[-1]:5.2f}  {mark}")
    check = np.array(ratios)[~fitted]
    low, middle, high = np.quantile(check, (0.05, 0.5, 0.95))
    print(f"\ncheck: median {middle:.2f}, 90 % of them from {low:.2f} to {high:.2f}")


if __name__ == "__main__":
    main()
