"""Sizes of Figure 4A at learning rates that the search did not choose.

The search picks a rate after the first tenth of the steps, while steps are large. Where the curve
ends is another question, and the answer takes whole runs: these, for three of the largest sizes at
which the search chose the smallest rate of its grid. A result file tells the losses; nothing is
judged. Four minutes on an H200, hours on a CPU; a run that is finished is read.
"""

import argparse
import dataclasses
from pathlib import Path

import numpy as np

from underhood.experiments.paper import figure4a
from underhood.experiments.protocols import rate_search as protocol
from underhood.experiments.protocols.architectures import ARCHITECTURES, GATED, LRU_IN_OUT
from underhood.experiments.protocols.comparison import Comparison
from underhood.experiments.running.outcomes import Outcome, judge, write
from underhood.experiments.running.rules import NOT_JUDGED
from underhood.experiments.running.setting import Setting

TRIALS = (
    (GATED, 1, 128, 3e-3),
    (GATED, 1, 128, 1e-2),
    (LRU_IN_OUT, 1, 128, 3e-3),
    (LRU_IN_OUT, 2, 64, 3e-3),
)


def main(out, scale="paper", trials=TRIALS):
    setting = Setting(scale, None, Path(out), lambda done, total: None)
    task, plan = figure4a.problem(scale)
    rows, runs = [], []
    for name, depth, width, rate in trials:
        (architecture,) = [one for one in ARCHITECTURES if one.name == name]
        run = setting.train(
            f"figure4a_{protocol.slug(name)}_{depth}_{width}_at_{rate:g}",
            architecture.make(task, depth),
            task,
            plan.recipe,
            widths=width,
            seeds=plan.seeds,
            axes={"learning_rate": [rate]},
            key=figure4a.STUDENTS,
        )
        runs.append(run)
        students = [
            protocol.student_of(name, depth, row, curve)
            for row, curve in zip(run.rows, run.losses, strict=True)
        ]
        (row,) = Comparison(task, tuple(students), (run,), plan.seeds).rows()
        rows.append({**row, "broken": sum(map(protocol.broken, run.losses))})
        worst = np.max([one.loss or np.inf for one in students])
        print(
            f"{name}, {depth} × {width}, at {rate:g}: median loss {row['loss']:.3g}, "
            f"worst {worst:.3g}, {rows[-1]['broken']} of {len(students)} broken",
            flush=True,
        )
    notes = ("Sizes of figure4a at rates that its search did not choose; nothing is judged.",)
    outcome = Outcome(
        (), tuple(rows), notes, tuple(range(plan.seeds)), plan.recipe.steps, {}, tuple(runs)
    )
    seconds = sum(run.provenance["seconds"] for run in runs)
    result = judge("figure4a", scale, outcome, seconds)
    return write(dataclasses.replace(result, verdict=NOT_JUDGED), Path(out))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="a folder for the runs and the result")
    main(parser.parse_args().out)
