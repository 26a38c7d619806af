"""A trained gated RNN computes its teacher's function (Table 1).

Four numbers: the loss on fresh sequences; 1 − R² of key-values read from memory neurons and of
queries read from query neurons; and the normalised distance of the polynomials of one token. Each
is judged as a median over seeds. At quick scale students are trained with the fast recipe, then
polished on samples of the task and reduced; rows show the same numbers before that. At paper scale
they are trained by the paper's recipe, and nothing is done to the network. Rows show what pruning
changes.
"""

import jax
import numpy as np

from underhood.analysis import decompile, polish, polynomial, probe, prune, reduce
from underhood.analysis.forms.quadratic import quadratic_form
from underhood.analysis.shrinking.polishing import sample
from underhood.common.files import Json
from underhood.experiments.protocols.students import column, teacher_students
from underhood.experiments.running import Outcome, Setting
from underhood.experiments.running.rules import no_more_than
from underhood.layers import GatedRNN
from underhood.tasks import TeacherStudent

TABLE1_PAPER = {
    "loss": 4.97e-8,
    "score_kv": 4.52e-8,
    "score_q": 2.06e-10,
    "polynomial_distance": 3.73e-4,
}


def reproduce_table1(setting: Setting) -> Outcome:
    """Judge the four numbers of every student."""
    students = teacher_students(setting.part(0, 0.75))
    task, at_paper_scale = students.task, setting.scale == "paper"
    judged_stage = "trained" if at_paper_scale else "polished, reduced"
    rows: list[Json] = []
    for seed, model, _ in students.visit(setting.part(0.75, 1)):
        stages = {"trained": model, "pruned": prune(model).model}
        if not at_paper_scale:
            polished = polish(model, task, key=jax.random.key(seed)).model
            stages["polished, reduced"] = reduce(polished).model
        rows += [row_of(seed, stage, network, task) for stage, network in stages.items()]
    final = [row for row in rows if row["stage"] == judged_stage]
    what = f"median, {judged_stage.replace(', ', ' and ')},"
    numbers = [
        no_more_than(name, column(final, name), paper, what=what)
        for name, paper in TABLE1_PAPER.items()
    ]
    runs = []
    if at_paper_scale:
        literal = teacher_students(setting.part(0.975, 1), literal=True)
        runs.append(literal.run)
        rows += [
            row_of(seed, "trained, decay read literally", model, literal.task)
            for seed, model in enumerate(literal.run.models)
        ]
    setting.tick(1, 1)
    outcome = Outcome(
        numbers=numbers,
        rows=rows,
        notes=[
            "Polishing minimises the loss on samples of the task in float64, which is a second "
            "kind of training. The rows before it show what the first training found."
        ],
        arrays={"decay": np.stack([np.asarray(model.decay) for model in students.run.models])},
        runs=runs,
    )
    return students.complete(outcome)


def row_of(seed: int, stage: str, model: GatedRNN, task: TeacherStudent) -> Json:
    """Return the paper's numbers in float64, the size, and how much no attention explains."""
    probes = probe(model, task.attention)
    return {
        "seed": seed,
        "stage": stage,
        "loss": task_loss(model, task),
        "score_kv": probes.score_kv,
        "score_q": probes.score_q,
        "polynomial_distance": polynomial(model).distance(polynomial(task.attention)),
        "neurons": model.neurons,
        "gate outputs": model.gate_width,
        "residual": decompile(model).residual,
    }


def task_loss(model: GatedRNN, task: TeacherStudent) -> float:
    """Return the loss on fresh sequences, in float64."""
    data = sample(task, jax.random.key(99), 256)
    error = data.rows(quadratic_form(model)(data.tokens)) - data.targets
    return 0.5 * float(np.mean(error**2))
