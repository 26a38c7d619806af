"""What is left after pruning shows the compact construction (Figure 2, Appendix C.2).

The paper keeps 14 of 100 neurons, 10 with λ = 1 and 4 with λ = 0, and 13 of 100 gate outputs; three
of these merge into one, and fine-tuning recovers the loss. Counts are judged after pruning alone,
as medians over seeds. Rows also show what merging, polishing and reducing make of the network.

neurons           kept by `prune`: memory (λ ≥ 0.98), query (λ ≤ 0.02), other
degrees           of what is written, the share of its variance that has the degree of the
                  construction: products of two inputs into memory, single inputs into queries
blocks            of the output gates' squared weights, sorted so, those where one factor reads
                  memory and the other queries; the paper's picture has three rows out of place
merged            gate outputs after `merge`, and the loss after polishing over the trained one;
                  polishing and reducing are shown for the first POLISHED seeds, where pruning
                  has left at most MOST_POLISHED neurons (more take minutes each)
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import numpy as np

from underhood.analysis import merge, polish, prune, reduce
from underhood.analysis.forms.norms import entry_moments
from underhood.analysis.forms.quadratic import entry_degrees, quadratic_form
from underhood.analysis.reading.probes import memory_filling
from underhood.common.arrays import Weight
from underhood.common.decay import kinds
from underhood.common.files import Json
from underhood.common.float64 import in_float64
from underhood.experiments.paper.table1 import task_loss
from underhood.experiments.protocols.students import (
    Students,
    arrays_of,
    column,
    neuron_counts,
    teacher_students,
)
from underhood.experiments.running import Outcome, Setting
from underhood.experiments.running.rules import equal, median_at_most
from underhood.layers import GatedRNN
from underhood.results.files import Number
from underhood.tasks import TeacherStudent

POLISHED, MOST_POLISHED = 4, 60
# Tokens of the sequence on which the picture shows the memory filling.
FILLED = 16


@dataclass(frozen=True)
class OpenedStudent:
    """One student at every stage; `row` has the counts.

    stages   networks by the name of their stage, from trained to reduced
    merging  gate outputs of the pruned network that merge into fewer, and the kernels they share
    """

    stages: dict[str, GatedRNN]
    merging: dict[str, np.ndarray]
    row: Json


def reproduce_figure2(setting: Setting) -> Outcome:
    """Judge the counts of all students; picture the blocks of one."""
    students = teacher_students(setting.part(0, 0.7))
    opened = open_students(students, setting.part(0.7, 0.95))
    rows = [student.row for student in opened]
    numbers = judge_counts(rows, "")
    shown, runs = typical(rows), []
    if setting.scale == "paper":
        literal = teacher_students(setting.part(0.95, 0.97), literal=True)
        more = [student.row for student in open_students(literal, setting.part(0.97, 1))]
        rows += [{**row, "decay": "read literally"} for row in more]
        numbers += judge_counts(more, ", decay read literally")
        runs.append(literal.run)
    setting.tick(1, 1)
    stages = opened[shown].stages
    smallest = stages.get("reduced", stages["pruned"])
    memory = memory_filling(smallest, students.task.attention, time=FILLED)
    outcome = Outcome(
        numbers=numbers,
        rows=rows,
        notes=[
            f"The picture shows seed {shown}, the first whose counts are the medians (if there is "
            "none, the first of all). The theory's smallest network has d(d+1)/2 + d neurons and "
            "d(d+1)/2 gate outputs.",
            "Polishing is a second kind of training; the counts after pruning do not depend on it.",
        ],
        arrays={**arrays_of({**stages, "memory": memory}), **opened[shown].merging},
        runs=runs,
    )
    return students.complete(outcome)


def open_students(students: Students[TeacherStudent], setting: Setting) -> list[OpenedStudent]:
    return [open_student(model, students.task, seed) for seed, model, _ in students.visit(setting)]


def open_student(model: GatedRNN, task: TeacherStudent, seed: int) -> OpenedStudent:
    """Prune, then merge, then polish and reduce."""
    pruned = in_order(prune(model).model)
    merged = merge(pruned)
    stages = {"trained": model, "pruned": pruned, "merged": merged.model}
    kind = kinds(np.asarray(pruned.decay))
    # The group that loses the most gate outputs; of two such groups the larger.
    groups = sorted(
        merged.groups, key=lambda group: (group.products - len(group.gates), -len(group.gates))
    )
    row: Json = {
        "seed": seed,
        **neuron_counts(pruned),
        "degree 2 in memory": written_share(pruned, kind == "memory", 2),
        "degree 1 in queries": written_share(pruned, kind == "query", 1),
        "in blocks": block_share(pruned),
        "merged": merged.model.gate_width,
        "loss, trained": task_loss(in_float64(model), task),
        "loss, pruned": task_loss(pruned, task),
        "loss, merged": task_loss(merged.model, task),
    }
    if seed < POLISHED and pruned.neurons <= MOST_POLISHED:
        polished = polish(merged.model, task, key=jax.random.key(seed)).model
        reduced = in_order(reduce(polished).model)
        stages |= {"polished": in_order(polished), "reduced": reduced}
        row |= {
            "loss, polished": task_loss(polished, task),
            "reduced neurons": reduced.neurons,
            "reduced gate outputs": reduced.gate_width,
        }
    merging = {
        "kernels": groups[0].kernel if groups else np.zeros((0, pruned.neurons, pruned.neurons)),
        "merging": np.array(groups[0].gates if groups else [], int),
    }
    return OpenedStudent(stages, merging, row)


def judge_counts(rows: list[Json], suffix: str) -> list[Number]:
    """Judge medians beside the paper's counts; `suffix` ends the names of the numbers."""

    def counted(name: str, counts: str, paper: int) -> Number:
        return equal(f"{name}{suffix}", column(rows, counts), paper)

    def limited(name: str, values: list[float], limit: float, paper: float | str) -> Number:
        return median_at_most(f"{name}{suffix}", values, limit, paper=paper)

    def missing(share: str, limit: float, paper: float | str) -> Number:
        return limited(f"1 − {share}", [1 - value for value in column(rows, share)], limit, paper)

    numbers = [
        counted("neurons", "neurons", 14),
        counted("memory neurons", "memory", 10),
        counted("query neurons", "query", 4),
        counted("other neurons", "other", 0),
        limited("gate outputs", column(rows, "gate outputs"), 13, 13),
        limited("gate outputs, merged", column(rows, "merged"), 11, 11),
        missing("degree 2 in memory", 0.01, 0),
        missing("degree 1 in queries", 0.01, 0),
        missing("in blocks", 0.1, "majority"),
    ]
    # Networks that were small enough to polish.
    polished = [row for row in rows if "loss, polished" in row]
    if polished:
        losses = [row["loss, polished"] / max(row["loss, trained"], 1e-300) for row in polished]
        numbers += [
            limited("loss recovered", losses, 1.0, "recovered"),
            counted("reduced neurons", "reduced neurons", 14),
            limited("reduced gate outputs", column(rows, "reduced gate outputs"), 11, 11),
        ]
    return numbers


def typical(rows: list[Json]) -> int:
    """Return the first student whose counts are the medians; the first of all if there is none."""
    counts = np.array([[row[name] for name in ("neurons", "memory", "query")] for row in rows])
    return int(np.argmax(np.all(counts == np.median(counts, axis=0), axis=1)))


def written_share(model: GatedRNN, which: np.ndarray, degree: int) -> float:
    """Return the share of one degree in the variance of what input gates write; 0 of nothing."""
    form = quadratic_form(model)
    variance = (form.reads[which] * entry_moments(form.d_in)[1]) ** 2
    total = float(variance.sum())
    return float(variance[:, entry_degrees(form.d_in) == degree].sum()) / total if total else 0.0


def block_share(model: GatedRNN) -> float:
    """Return the share of the output gates' squared weights in the construction's blocks."""
    memory = np.asarray(model.decay) > 0.5
    m, x = np.asarray(model.W_out_m) ** 2, np.asarray(model.W_out_x) ** 2
    total = float(m.sum() + x.sum())
    return float(m[:, memory].sum() + x[:, ~memory].sum()) / total if total else 0.0


def in_order(model: GatedRNN) -> GatedRNN:
    """Return the same function with neurons and gates sorted as in the paper's figure.

    Memory before queries; of a neuron's two rows W_in_x has the larger constant; of a gate's two,
    W_out_m reads memory; gates in the order of the memory neuron that they read most.
    """
    model = in_float64(model)
    order = np.argsort(-np.round(np.asarray(model.decay), 2), kind="stable")
    memory = np.asarray(model.decay)[order] > 0.5
    in_m, in_x = model.W_in_m[order], model.W_in_x[order]
    in_m, in_x = exchange_rows(in_m, in_x, np.abs(in_m[:, -1]) > np.abs(in_x[:, -1]))
    out_m, out_x = model.W_out_m[:, order], model.W_out_x[:, order]
    reads_m, reads_x = (
        np.linalg.norm(W[:, memory], axis=1) / np.maximum(np.linalg.norm(W, axis=1), 1e-300)
        for W in (out_m, out_x)
    )
    out_m, out_x = exchange_rows(out_m, out_x, reads_x > reads_m)
    weight = np.abs(out_m) * memory
    gates = np.argsort(np.argmax(weight, axis=1), kind="stable") if model.neurons else np.arange(0)
    return eqx.tree_at(
        lambda rnn: (rnn.W_in_m, rnn.W_in_x, rnn.nu, rnn.W_out_m, rnn.W_out_x, rnn.D),
        model,
        (in_m, in_x, model.nu[order], out_m[gates], out_x[gates], model.D[:, gates]),
    )


def exchange_rows(m: Weight, x: Weight, where: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the two factors of a gate, exchanged in some rows."""
    return np.where(where[:, None], x, m), np.where(where[:, None], m, x)
