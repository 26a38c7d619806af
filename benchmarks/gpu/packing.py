"""The same study as one unit per student, and packed: how much packing pays on this device.

    python benchmarks/gpu/packing.py [STUDENTS]

Both in this process, one after the other, programs compiled anew for each. A process keeps the
programs that it has compiled, so units of one student compile once too; "as separate processes"
adds what every new process pays again, the time of one compilation.
"""

import sys
import tempfile
import time
from pathlib import Path

import jax

import underhood as uh
from underhood.sweeps import Study, sweep
from underhood.sweeps.engines import Local
from underhood.training.program_cache import PROGRAMS

TASK = uh.tasks.TeacherStudent.random(4, length=32, key=jax.random.key(0))
STEPS = {"cpu": 300, "gpu": 3_000}
WIDTH = 16


def gated(width, *, key):
    return uh.GatedRNN.init(d_in=4, hidden=width, gated=width, d_out=4, key=key)


def study_of(students: int, steps: int) -> Study:
    return Study(TASK, {"gated": gated}, uh.Recipe.fast(steps=steps), (WIDTH,), students)


def timed(study: Study, most: int, folder: Path) -> float:
    """Seconds of a sweep that compiles anew."""
    PROGRAMS.clear()
    jax.clear_caches()
    began = time.perf_counter()
    done = sweep(study, folder, Local(), most=most)
    assert done.complete
    return time.perf_counter() - began


def main(students: int) -> None:
    steps = STEPS.get(jax.default_backend(), 300)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        first = timed(study_of(1, 1), 1, folder / "first")
        alone = timed(study_of(students, steps), 1, folder / "alone")
        packed = timed(study_of(students, steps), students, folder / "packed")
    separate = alone + (students - 1) * first
    print(f"{jax.devices()[0]}: {students} students, width {WIDTH}, {steps} steps")
    print(f"one unit per student, one process:   {alone:8.1f} s")
    print(f"one unit per student, each its own:  {separate:8.1f} s (adding {first:.1f} s each)")
    print(f"packed into one unit:                {packed:8.1f} s")
    print(f"packing pays {alone / packed:.1f}, and {separate / packed:.1f} against processes")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 64)
