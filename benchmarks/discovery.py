"""Time to discovery: from random weights to the attention inside.

    python benchmarks/discovery.py                     all ways side by side, ten teachers
    python benchmarks/discovery.py --parts rounding wide       some of the parts alone
    python benchmarks/discovery.py --stages            gradients, stage by stage: one student alone
    python benchmarks/discovery.py --stages --teachers 10      ten teachers, one student each
    python benchmarks/discovery.py --stages --seeds 10         ten students of one teacher
    python benchmarks/discovery.py --stages --students FOLDER  trained before, tTEACHER_sSEED

Side by side: the paper's recipe, from a few hundred updates of a Flax loop (flax comes with `make
bench`) and of a compiled program, times 781,250;
`Recipe.fast` and `Shrinking.fast`; and `uh.fit`, with everything that has to be compiled: at d = 4
with several widths, what too few neurons give, how low the loss gets, and at d = 6 and 8. Then
in-context regression by the exact loss. Stage by stage:

The paper's student (d = 4, 100 neurons, 100 gate outputs, T = 32) is trained with the fast recipe,
polished on fresh samples of its task, reduced, and decompiled; `as trained` is the residual of the
attention nearest to it before that. The paper has loss 4.97e-8, score KV 4.52e-8, score Q 2.06e-10
and polynomial distance 3.73e-4.
"""

import argparse
import re
import time
from pathlib import Path

import jax
import numpy as np
from _common import write

import underhood as uh
from underhood.training.program_cache import PROGRAMS

D, WIDTH = 4, 100
STEPS, NEURONS = 400, (14, 16, 20, 28, 100)
FIRST_TEACHER, PAPER_LOSS = 300, 4.97e-8


def student(width, *, key):
    return uh.GatedRNN.init(d_in=D, hidden=width, gated=width, d_out=D, key=key)


def teacher(number):
    return uh.tasks.TeacherStudent.random(D, key=jax.random.key(number))


def look_inside(model, task, row):
    """Polish, reduce, decompile and judge a student; fills in a row of the table."""
    # What training found by itself, before anything is done to the network.
    row["as trained"] = uh.decompile(model).residual
    began = time.perf_counter()
    polished = uh.polish(model, task, key=jax.random.key(1))
    row["polish s"] = time.perf_counter() - began
    began = time.perf_counter()
    small = uh.reduce(polished.model)
    row["reduce s"] = time.perf_counter() - began
    began = time.perf_counter()
    decompiled = uh.decompile(small.model)
    row["decompile s"] = time.perf_counter() - began
    probes = uh.probe(small.model, task.attention)
    distance = uh.polynomial(small.model).distance(uh.polynomial(task.attention))
    row |= {
        "kept": "→".join(str(attempt.neurons) for attempt in polished.attempts),
        "neurons": small.model.neurons,
        "gates": small.model.gate_width,
        "change": small.change,
        "loss": loss_of(small.model, task),
        "score KV": probes.score_kv,
        "score Q": probes.score_q,
        "polynomial": distance,
        "residual": decompiled.residual,
        "bound r=2": decompiled.certificate.bound(2.0, 32),
    }
    return row


def loss_of(model, task):
    """The task's loss of the reduced network, in float64, on sequences that polishing never saw."""
    with jax.enable_x64(True):
        batch = task.sample(jax.random.key(99), 256)
        return float(task.loss(jax.vmap(model)(batch.inputs), batch.targets))


def students(given):
    """(row, model, task) for every student asked for."""
    if given.students:
        for file in sorted(Path(given.students).glob("t*_s*.safetensors")):
            number, seed = map(int, re.findall(r"\d+", file.stem))
            yield {"teacher": number, "seed": seed}, uh.load(file), teacher(number)
        return
    for number in range(given.first, given.first + (given.teachers or 1)):
        began = time.perf_counter()
        task = teacher(number)
        run = uh.train(
            student,
            task,
            uh.Recipe.fast(),
            widths=WIDTH,
            seeds=given.seeds,
            key=jax.random.key(number + 1000),
        )
        seconds = (time.perf_counter() - began) / given.seeds
        for seed, model in enumerate(run.models):
            if given.keep:
                Path(given.keep).mkdir(parents=True, exist_ok=True)
                uh.save(Path(given.keep) / f"t{number}_s{seed}.safetensors", model)
            yield {"teacher": number, "seed": seed, "train s": seconds}, model, task


def regression_student(width, *, key):
    return uh.GatedRNN.init(d_in=6, hidden=width, gated=width, d_out=3, key=key)


def paper_seconds() -> float:
    """Extrapolate the paper's recipe from a few hundred updates of one student."""
    recipe, times = uh.Recipe.paper(), []
    # The first steps of a recipe share its program, which the first run compiles.
    for steps in (STEPS, STEPS, 3 * STEPS):
        began = time.perf_counter()
        uh.train(student, teacher(0), recipe.first(steps), widths=WIDTH, key=jax.random.key(1))
        times.append(time.perf_counter() - began)
    return (times[2] - times[1]) / (2 * STEPS) * recipe.steps


def time_paper() -> None:
    """The paper's recipe on its own kind of stack, a loop in Flax, and as a program of ours."""
    # Needs flax, which `make bench` installs.
    from training import FlaxGatedRNN, loop_runner, per_step

    from_host, _ = loop_runner(FlaxGatedRNN(WIDTH))
    loop = per_step(from_host) * uh.Recipe.paper().steps
    for how, seconds in (("a loop in Flax", loop), ("uh.train", paper_seconds())):
        print(
            f"paper's recipe, {WIDTH} neurons, {how}: {seconds:,.0f} s (extrapolated)", flush=True
        )


def wide_student(d):
    def student(width, *, key):
        return uh.GatedRNN.init(d_in=d, hidden=width, gated=width, d_out=d, key=key)

    return student


def fit_teachers(
    neurons: int, teachers: int, *, d: int = D, tolerance: float = 1e-16
) -> list[dict[str, float | uh.Fit]]:
    """Fit students to teachers; wall-clock and CPU seconds include what is compiled."""
    rows = []
    for seed in range(teachers):
        task = uh.tasks.TeacherStudent.random(d, key=jax.random.key(seed))
        began, worked = time.perf_counter(), time.process_time()
        fitted = uh.fit(
            wide_student(d),
            task,
            key=jax.random.key(100 + seed),
            width=neurons,
            tolerance=tolerance,
            progress=False,
        )
        row = {"s": time.perf_counter() - began, "cpu": time.process_time() - worked}
        residual = uh.decompile(fitted.model).residual if fitted.success else np.nan
        rows.append(row | {"fit": fitted, "residual": residual, "scale": task.scale})
    return rows


def column(rows, name):
    return np.array([row[name] for row in rows])


def compare_recipes(teachers: int, first: int) -> None:
    """The fast recipe, and the one that shrinks its students."""
    # A minute for each teacher, so fewer.
    time_recipe("Recipe.fast", uh.Recipe.fast(), min(teachers, 2), first)
    time_shrinking(teachers, first)


def time_shrinking(teachers: int, first: int) -> None:
    """`Shrinking.fast` alone."""
    time_recipe("Shrinking.fast", uh.Shrinking.fast(), teachers, first)


def time_recipe(name: str, recipe: uh.Recipe | uh.Shrinking, teachers: int, first: int) -> None:
    """Train a student of each teacher in turn; seconds include everything that is compiled."""
    print(f"{name}, {WIDTH} neurons, {recipe.steps:,} updates")
    print(f"{'teacher':>8} {'s':>7} {'CPU s':>7} {'loss':>9} {'left':>8} {'residual':>9}")
    rows = []
    for number in range(first, first + teachers):
        task, key = teacher(number), jax.random.key(number + 1000)
        jax.clear_caches()
        PROGRAMS.clear()
        began, worked = time.perf_counter(), time.process_time()
        model = uh.train(student, task, recipe, widths=WIDTH, key=key).best()
        row = {"s": time.perf_counter() - began, "cpu": time.process_time() - worked}
        left = uh.prune(model)
        row |= {"loss": loss_of(model, task), "residual": uh.decompile(model).residual}
        rows.append(row)
        sizes = f"{left.model.neurons}/{left.model.gate_width}"
        print(f"{number:8} {row['s']:7.1f} {row['cpu']:7.1f} {row['loss']:9.1e} {sizes:>8} "
              f"{row['residual']:9.1e}", flush=True)  # fmt: skip
    losses = column(rows, "loss")
    middle = {name: np.median(column(rows, name)) for name in ("s", "cpu", "loss")}
    print(
        f"{'median':>8} {middle['s']:7.1f} {middle['cpu']:7.1f} {middle['loss']:9.1e}; the paper's "
        f"{PAPER_LOSS} is reached by {sum(losses <= PAPER_LOSS)} of {teachers}",
        flush=True,
    )


def compare_sizes(teachers: int) -> None:
    """`uh.fit` at d = 4 for several widths."""
    print(f"{'uh.fit':8} {'found':>9} {'median s':>9} {'longest':>8} {'CPU s':>7} {'starts':>7} "
          f"{'loss/scale':>11} {'residual':>9}")  # fmt: skip
    for neurons in NEURONS:
        rows = fit_teachers(neurons, teachers)
        fits, seconds = [row["fit"] for row in rows], column(rows, "s")
        losses = np.array([fitted.loss for fitted in fits]) / column(rows, "scale")
        print(
            f"{neurons:8} {sum(fitted.success for fitted in fits):>4} of {teachers:<2} "
            f"{np.median(seconds):9.2f} {max(seconds):8.2f} {np.median(column(rows, 'cpu')):7.2f} "
            f"{np.mean([len(fitted.starts) for fitted in fits]):7.1f} {np.median(losses):11.1e} "
            f"{np.nanmax(column(rows, 'residual')):9.1e}",
            flush=True,
        )
    fits = [row["fit"] for row in fit_teachers(13, min(teachers, 4))]
    print(f"13 neurons: {successes(fits)}; {fits[0].message}", flush=True)


def longest_of(rows: list) -> str:
    return f"longest {max(column(rows, 's')):.1f} s, {max(column(rows, 'cpu')):.1f} s CPU"


def successes(fits: list) -> str:
    return f"found {sum(fitted.success for fitted in fits)} of {len(fits)}"


def reach_rounding(teachers: int) -> None:
    """d = 4 with 14 neurons, as far as float64 goes."""
    rows = fit_teachers(14, teachers, tolerance=1e-21)
    losses = np.array([row["fit"].loss for row in rows])
    print(
        f"14 neurons, tolerance 1e-21: loss below 1e-20 on {sum(losses < 1e-20)} of {teachers}, "
        f"largest {losses.max():.1e}; {longest_of(rows)}",
        flush=True,
    )


def go_wider(teachers: int) -> None:
    """d = 6 and 8 with theory's neurons and twice as many."""
    for d in (6, 8):
        for neurons in (d * (d + 3) // 2, d * (d + 3)):
            rows = fit_teachers(neurons, min(teachers, 3), d=d)
            fits = [row["fit"] for row in rows]
            said = f"{successes(fits)}, {longest_of(rows)}"
            print(f"d = {d}, {neurons} neurons: {said}", flush=True)


def regress(teachers: int) -> None:
    """In-context regression by the exact loss."""
    task = uh.tasks.InContextRegression()
    print("in-context regression, exact loss: neurons, excess loss, step − η*, seconds")
    for neurons in (11, 12, 16, 20):
        began_fit = time.perf_counter()
        fitted = uh.fit(
            regression_student,
            task,
            key=jax.random.key(0),
            width=neurons,
            restarts=6,
            tolerance=1e-12,
            progress=False,
        )
        taken = time.perf_counter() - began_fit
        step = uh.decompile(fitted.model, task=task).gradient_step(task)
        excess, off = fitted.loss - task.best_loss, step.step - step.best_step
        print(f"{neurons:8} {excess:10.1e} {off:10.1e} {taken:7.1f}  {fitted.message}", flush=True)


# These train students of the teachers from --first on; the others number their own.
BY_GRADIENTS = {"recipes": compare_recipes, "shrinking": time_shrinking}
PARTS = {
    "paper": lambda teachers: time_paper(),
    **BY_GRADIENTS,
    "fit": compare_sizes,
    "rounding": reach_rounding,
    "wide": go_wider,
    "regression": regress,
}
# The recipes include shrinking.
SIDE_BY_SIDE = [name for name in PARTS if name != "shrinking"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--first", type=int, default=FIRST_TEACHER, help="number of the first teacher"
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, help="some of the parts alone")
    parser.add_argument("--stages", action="store_true", help="gradients, stage by stage")
    parser.add_argument("--teachers", type=int, help="how many; 10 side by side, else 1")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--students", help="look at the students in this folder")
    parser.add_argument("--keep", help="write the students trained here into this folder")
    given = parser.parse_args()
    if not given.stages:
        began = time.perf_counter()
        for name in given.parts or SIDE_BY_SIDE:
            first = {"first": given.first} if name in BY_GRADIENTS else {}
            PARTS[name](given.teachers or 10, **first)
        print(f"all: {time.perf_counter() - began:.0f} s")
        return
    rows = []
    for row, model, task in students(given):
        rows.append(look_inside(model, task, row))
        last = rows[-1]
        last["total s"] = sum(value for name, value in last.items() if name.endswith(" s"))
        if len(rows) == 1:
            print("  ".join(last))
        shown = (f"{v:.2g}" if isinstance(v, float) else str(v) for v in last.values())
        print("  ".join(shown), flush=True)
    paper = {"loss": 4.97e-8, "score KV": 4.52e-8, "score Q": 2.06e-10, "polynomial": 3.73e-4}
    better = sum(all(row[name] < paper[name] / 100 for name in paper) for row in rows)
    small = sum((row["neurons"], row["gates"]) == (14, 10) for row in rows)
    print(f"{better} of {len(rows)} are 100 times below the paper in all four; {small} are 14/10")
    write("discovery", rows)


if __name__ == "__main__":
    main()
