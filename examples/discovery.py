"""The paper's students, trained: the numbers of docs/recipes.md, seed by seed.

    python examples/discovery.py fast    ten seeds on teacher-student, 8 minutes on two cores
    python examples/discovery.py noisy   six seeds on in-context regression, 2 minutes
    python examples/discovery.py paper   the paper's protocol, 16 seeds, 8 minutes on an H200

--out keeps the run in a folder, so that it can be stopped and resumed.
"""

import argparse
import time

import jax
import numpy as np
from recipe_search import what_matters

import underhood as uh

REGRESSION = uh.tasks.InContextRegression()


def student_for(task):
    def student(width, *, key):
        return uh.GatedRNN.init(
            d_in=task.d_in, hidden=width, gated=width, d_out=task.d_out, key=key
        )

    return student


def teacher(seed):
    return uh.tasks.TeacherStudent.random(4, key=jax.random.key(seed))


# Task, recipe, width, seeds, and the key of the run.
STUDIES = {
    "fast": (teacher(42), uh.Recipe.fast(), 100, 10, 11),
    "noisy": (REGRESSION, uh.Recipe.noisy(), 80, 6, 1),
    "paper": (teacher(100), uh.Recipe.paper(), 100, 16, 7),
}


def main(name: str, *, seeds: int | None = None, steps: int | None = None, out=None) -> uh.Run:
    task, recipe, width, many, key = STUDIES[name]
    began = time.monotonic()
    run = uh.train(
        student_for(task),
        task,
        recipe if steps is None else recipe.change(steps=steps),
        seeds=seeds or many,
        widths=width,
        key=jax.random.key(key),
        out=out,
    )
    table = run.members[["seed", "loss", "normalised_loss"]].copy()
    counts = np.array([what_matters(model) for model in run.models])
    table[["neurons", "ones", "between", "gates"]] = counts
    below = run.losses / task.scale < 1e-5
    table["below_1e-5_at"] = [
        int(run.steps[np.argmax(curve)]) if curve.any() else None for curve in below
    ]
    print(table.to_string(index=False))
    print(f"best possible loss {task.best_loss:.6g}; {time.monotonic() - began:.0f} s in all")
    return run


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=[*STUDIES])
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--out")
    given = parser.parse_args()
    main(given.name, seeds=given.seeds, steps=given.steps, out=given.out)
