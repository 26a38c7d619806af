"""Time to discovery: from random weights to the attention inside, stage by stage.

    python benchmarks/first_order.py                    one student alone, compilation included
    python benchmarks/first_order.py --teachers 10      ten teachers, one student each
    python benchmarks/first_order.py --seeds 10         ten students of one teacher
    python benchmarks/first_order.py --students FOLDER  students trained before, tTEACHER_sSEED

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
from _common import write

import underhood as uh

D, WIDTH = 4, 100


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
    for number in range(given.first, given.first + given.teachers):
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=300, help="number of the first teacher")
    parser.add_argument("--teachers", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--students", help="look at the students in this folder")
    parser.add_argument("--keep", help="write the students trained here into this folder")
    rows = []
    for row, model, task in students(parser.parse_args()):
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
