"""Sizes of Figure 4A at learning rates that the search did not choose.

The search picks a rate after the first tenth of the steps, while steps are large. Where the curve
ends is another question, which only whole runs answer: these, for three of the largest sizes at
which the search chose the smallest rate of its grid. The losses go into a result file; nothing is
judged. Four minutes on an H200, hours on a CPU; a run that is finished is read.
"""

import argparse
import dataclasses
from pathlib import Path

import numpy as np

from underhood.experiments.paper.figure4 import plan_figure4a
from underhood.experiments.protocols.architectures import ARCHITECTURES
from underhood.experiments.protocols.comparison import Comparison, student_of
from underhood.experiments.protocols.rate_search import is_broken, slug
from underhood.experiments.running.outcomes import Outcome, judge_outcome
from underhood.experiments.running.setting import Setting
from underhood.results.architectures import ARCHITECTURE_NAMES, GATED, LRU_IN_OUT
from underhood.results.files import write_result
from underhood.results.verdicts import NOT_JUDGED

TRIALS = (
    (GATED, 1, 128, 3e-3),
    (GATED, 1, 128, 1e-2),
    (LRU_IN_OUT, 1, 128, 3e-3),
    (LRU_IN_OUT, 2, 64, 3e-3),
)


def main(out, scale="paper", trials=TRIALS):
    setting = Setting(scale, None, Path(out), lambda done, total: None)
    plan = plan_figure4a(scale)
    rows, runs = [], []
    for name, depth, width, rate in trials:
        architecture = ARCHITECTURES[ARCHITECTURE_NAMES.index(name)]
        run = setting.train(
            f"figure4a_{slug(name)}_{depth}_{width}_at_{rate:g}",
            plan.study(architecture.make(plan.task, depth), width, plan.seeds, (rate,)),
        )
        runs.append(run)
        students = [
            student_of(name, depth, row, curve)
            for row, curve in zip(run.rows, run.losses, strict=True)
        ]
        (row,) = Comparison(plan.task, tuple(students), (run,), plan.seeds).rows()
        rows.append({**row, "broken": sum(map(is_broken, run.losses))})
        worst = np.max([student.loss or np.inf for student in students])
        print(
            f"{name}, {depth} × {width}, at {rate:g}: median loss {row['loss']:.3g}, "
            f"worst {worst:.3g}, {rows[-1]['broken']} of {len(students)} broken",
            flush=True,
        )
    outcome = Outcome(
        rows=rows,
        notes=["Sizes of figure4a at rates that its search did not choose; nothing is judged."],
        seeds=range(plan.seeds),
        steps=plan.recipe.steps,
        runs=runs,
    )
    seconds = sum(run.provenance["seconds"] for run in runs)
    result = judge_outcome("figure4a", scale, outcome, seconds)
    return write_result(dataclasses.replace(result, verdict=NOT_JUDGED), Path(out))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="a folder for the runs and the result")
    main(parser.parse_args().out)
