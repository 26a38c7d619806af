"""The constants of the cost model (underhood/sweeps/cost.py), and how well it foretells.

    taskset -c 0 python benchmarks/cost.py

Trains students of all kinds and several sizes for a moment, on this accelerator, or on one core
(taskset), fits the constants to every second of them, and prints for all of them what was
measured over what those constants say. The rows that were not fitted are the check.
"""

import time

import jax
import numpy as np
from scipy.optimize import nnls

import underhood as uh
from underhood.experiments.architectures import ARCHITECTURES
from underhood.sweeps import Study
from underhood.sweeps.cost import Device, seconds_of, step_of
from underhood.training.ensemble import Ensemble
from underhood.training.members import Member

SECONDS = 0.5
TASKS = {
    "teacher": uh.tasks.TeacherStudent.random(4, length=32, key=jax.random.key(0)),
    "regression": uh.tasks.InContextRegression(),
}
SIZES = {"cpu": ((16, 1), (64, 1)), "gpu": ((16, 8), (64, 8), (64, 64))}


def measured(study: Study, width: int, students: int) -> tuple[float, float]:
    """Seconds of a step, and of compiling, for students of one kind in one program."""
    members = tuple(Member(seed, width) for seed in range(students))
    (make,) = study.students.values()
    began = time.perf_counter()
    one = Ensemble(make, members, (), study.task, study.recipe, jax.random.key(0))
    one.arrange(students, None, None)
    compiling = time.perf_counter() - began
    states = one.advance(one.first_states(), 0, 3)
    done, steps, taken = 3, 4, 0.0
    while taken < SECONDS:
        steps *= 4
        began = time.perf_counter()
        states = one.advance(states, done, done + steps)
        taken = time.perf_counter() - began
        done += steps
    return taken / steps, compiling


def main() -> None:
    backend = jax.default_backend()
    cases = []
    for name, task in TASKS.items():
        for architecture in ARCHITECTURES:
            for depth in architecture.depths:
                make = architecture.make(task, depth)
                for width, students in SIZES["cpu" if backend == "cpu" else "gpu"]:
                    recipe = uh.Recipe(steps=1_000_000)
                    own = Study(task, {"student": make}, recipe, (width,), students)
                    step = step_of(own, "student", width)
                    seconds, compiling = measured(own, width, students)
                    told = f"{architecture.name}, {depth}, {name}"
                    cases.append((told, width, students, step, seconds, compiling))
                    print(
                        f"{told:34} {width:4} × {students:<3} {1e3 * seconds:8.3f} ms", flush=True
                    )
    together = backend != "cpu"
    columns = np.array(
        [
            [1.0, step.turns, step.waits, students * step.flow, students * step.work]
            for _, _, students, step, _, _ in cases
        ]
    )
    times = np.array([seconds for *_, seconds, _ in cases])
    # Every other case of each size.
    fitted = np.array([place % 4 in (0, 3) for place in range(len(cases))])
    # Of the ratio, so that a fast student counts as much as a slow one.
    found, _ = nnls(columns[fitted] / times[fitted, None], np.ones(len(times[fitted])))
    launch, turn, wait, *both = (float(one) for one in found)
    rate, speed = (1 / max(one, 1e-30) for one in both)
    compiling = float(np.median([one for *_, one in cases]))
    device = Device(str(jax.devices()[0]), compiling, launch, turn, wait, rate, speed, together)
    print(
        f"\ncompiling {compiling:.1f} s, launch {launch:.3g}, turn {turn:.3g}, wait {wait:.3g} s,"
    )
    print(f"rate {rate:.3g} bytes/s, speed {speed:.3g} operations/s\n")
    ratios = []
    for place, (told, width, students, step, seconds, _) in enumerate(cases):
        foreseen = seconds_of(step, students, 1, device) - device.setup
        ratios.append(seconds / foreseen)
        mark = "fitted" if fitted[place] else "check"
        print(f"{told:34} {width:4} × {students:<3} measured/model {ratios[-1]:5.2f}  {mark}")
    check = np.array(ratios)[~fitted]
    low, middle, high = np.quantile(check, (0.05, 0.5, 0.95))
    print(f"\ncheck: median {middle:.2f}, 90 % of them from {low:.2f} to {high:.2f}")


if __name__ == "__main__":
    main()
