"""A trained gated RNN computes its teacher's function (Table 1).

Four numbers: the loss on fresh sequences; 1 − R² of key-values read from memory neurons and of
queries read from query neurons; and the normalised distance of the polynomials of one token. Each
is judged as a median over seeds. At quick scale students are trained with the fast recipe, then
polished on samples of the task and reduced; rows show the same numbers before that. At paper scale
they are the paper's own: its recipe, and nothing done to the network. Pruning is shown beside.
"""

from typing import Any

import jax
import numpy as np

from underhood.analysis import decompile, polish, polynomial, probe, prune, reduce
from underhood.analysis.forms.quadratic import quadratic_form
from underhood.analysis.shrinking.polishing import sample
from underhood.experiments.protocols.students import literal_students, teacher_students
from underhood.experiments.running.outcomes import Outcome
from underhood.experiments.running.rules import Number, no_more_than
from underhood.experiments.running.setting import Setting
from underhood.tasks import TeacherStudent

PAPER = {
    "loss": 4.97e-8,
    "score_kv": 4.52e-8,
    "score_q": 2.06e-10,
    "polynomial_distance": 3.73e-4,
}


def run(setting: Setting) -> Outcome:
    """The four numbers of every student, as trained and as judged."""
    students = teacher_students(setting.part(0, 0.75))
    task: TeacherStudent = students.task
    looking = setting.part(0.75, 1)
    judged: list[dict[str, float]] = []
    rows: list[dict[str, Any]] = []
    models = students.run.models
    for seed, model in enumerate(models):
        looking.tick(seed, len(models))
        pruned = prune(model).model
        rows += [
            {"seed": seed, "stage": "trained", **scores(model, task), **sizes(model)},
            {"seed": seed, "stage": "pruned", **scores(pruned, task), **sizes(pruned)},
        ]
        if setting.scale == "paper":
            judged.append(scores(model, task))
            continue
        polished = polish(model, task, key=jax.random.key(seed))
        small = reduce(polished.model).model
        judged.append(scores(small, task))
        rows.append({"seed": seed, "stage": "polished, reduced", **judged[-1], **sizes(small)})
    runs = [students.run]
    if setting.scale == "paper":
        literal = literal_students(looking.part(0.9, 1))
        runs.append(literal.run)
        rows += [
            {
                "seed": seed,
                "stage": "trained, decay read literally",
                **scores(model, literal.task),
                **sizes(model),
            }
            for seed, model in enumerate(literal.run.models)
        ]
    setting.tick(1, 1)
    stage = "trained" if setting.scale == "paper" else "polished and reduced"
    numbers: tuple[Number, ...] = tuple(
        no_more_than(name, [one[name] for one in judged], paper, what=f"median, {stage},")
        for name, paper in PAPER.items()
    )
    notes = (
        "Polishing minimises the loss on samples of the task in float64; it is training of another "
        "kind. What training had found is in the rows before it.",
    )
    seeds = tuple(range(len(models)))
    arrays = {"steps": students.run.steps, "losses": students.run.losses}
    arrays["decay"] = np.stack([np.asarray(model.decay) for model in models])
    return Outcome(numbers, tuple(rows), notes, seeds, students.steps, arrays, tuple(runs))


def scores(model: Any, task: TeacherStudent) -> dict[str, float]:
    """The numbers of the paper's table for one network, in float64."""
    probes = probe(model, task.attention)
    return {
        "loss": task_loss(model, task),
        "score_kv": probes.score_kv,
        "score_q": probes.score_q,
        "polynomial_distance": polynomial(model).distance(polynomial(task.attention)),
    }


def task_loss(model: Any, task: TeacherStudent) -> float:
    """The loss on fresh sequences, in float64."""
    data = sample(task, jax.random.key(99), 256)
    error = data.rows(quadratic_form(model)(data.tokens)) - data.targets
    return 0.5 * float(np.mean(error**2))


def sizes(model: Any) -> dict[str, Any]:
    """How large a network is, and how much of it no attention explains."""
    return {
        "neurons": model.neurons,
        "gate outputs": model.gate_width,
        "residual": decompile(model).residual,
    }
