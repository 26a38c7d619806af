"""What is left after pruning shows the compact construction (Figure 2, Appendix C.2).

The paper removes neurons whose weights are zero. It keeps 14 of 100 neurons, 10 with λ = 1 and 4
with λ = 0, and 13 of 100 gate outputs. Three of these act through one kernel, of rank one and the
same for all outputs, so they merge into one; fine-tuning recovers the loss. Counts are medians over
seeds (docs/reproduction.md). Ours: rows also show the network polished and reduced, for the first
POLISHED seeds, where pruning has left at most MOST_POLISHED neurons (more take minutes each).
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import numpy as np

from underhood.analysis import merge, polish, prune, reduce
from underhood.analysis.forms.norms import entry_moments
from underhood.analysis.forms.quadratic import entry_degrees, quadratic_form
from underhood.analysis.reading.probes import memory_filling
from underhood.analysis.shrinking.merging import Group
from underhood.common.arrays import Weight, in_float64
from underhood.common.decay import kinds
from underhood.common.files import Json
from underhood.experiments.paper.table1 import task_loss
from underhood.experiments.protocols.students import (
    ZERO,
    Students,
    arrays_of,
    column,
    fine_tuned,
    neuron_counts,
    teacher_students,
)
from underhood.experiments.running import Outcome, Setting
from underhood.experiments.running.rules import equal, median_at_most, ours, shown
from underhood.layers import GatedRNN
from underhood.results.files import Cell, Number
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
    students = teacher_students(setting.part(0, 0.7))
    opened = open_students(students, setting.part(0.7, 1))
    rows = [student.row for student in opened]
    numbers = judge_counts(rows)
    typical_seed = typical(rows)
    setting.tick(1, 1)
    stages = {"untrained": students.untrained(typical_seed), **opened[typical_seed].stages}
    smallest = stages.get("reduced", stages["pruned"])
    memory = memory_filling(smallest, students.task.attention, time=FILLED)
    outcome = Outcome(
        numbers=numbers,
        rows=rows,
        notes=[
            f"The students were trained with {students.decay} weight decay.",
            f"The picture shows seed {typical_seed}, the first whose counts are the medians (if "
            "there is none, the first of all). The theory's smallest network has d(d+1)/2 + d "
            "neurons and d(d+1)/2 gate outputs.",
            f"A weight is zero if it is below {ZERO:g} of the largest of its matrix.",
            "Polishing is a second kind of training; the counts after pruning do not depend on it.",
        ],
        arrays={
            **arrays_of({**stages, "memory": memory}),
            **opened[typical_seed].merging,
        },
    )
    return students.complete(outcome)


def open_students(students: Students[TeacherStudent], setting: Setting) -> list[OpenedStudent]:
    quiet = setting.part(1, 1)
    return [
        open_student(model, students.task, seed, quiet)
        for seed, model, _ in students.visit(setting)
    ]


def pruned_row(seed: int, model: GatedRNN, task: TeacherStudent) -> Json:
    """Return the counts of a student whose zeros are pruned, and what that changed."""
    result = prune(model, zero=ZERO)
    return {
        "seed": seed,
        **neuron_counts(result.model),
        "changed by pruning": result.change,
        "loss, trained": task_loss(in_float64(model), task),
    }


def open_student(
    model: GatedRNN, task: TeacherStudent, seed: int, setting: Setting
) -> OpenedStudent:
    pruned = in_order(prune(model, zero=ZERO).model)
    merged = merge(pruned)
    tuned = fine_tuned(f"fine_tuned_{seed}", merged.model, task, setting)
    stages = {"trained": model, "pruned": pruned, "merged": merged.model, "fine-tuned": tuned}
    kind = kinds(np.asarray(pruned.decay))
    # The group that loses the most gate outputs; of two such groups the larger.
    group = min(
        merged.groups, key=lambda g: (g.products - len(g.gates), -len(g.gates)), default=None
    )
    row: Json = {
        **pruned_row(seed, model, task),
        "degree 2 in memory": written_share(pruned, kind == "memory", 2),
        "degree 1 in queries": written_share(pruned, kind == "query", 1),
        "in blocks": block_share(pruned),
        "merged": merged.model.gate_width,
        "loss, pruned": task_loss(pruned, task),
        "loss, merged": task_loss(merged.model, task),
        "loss, fine-tuned": task_loss(in_float64(tuned), task),
    }
    if group is not None and group.products < len(group.gates):
        row |= {"merging gates": len(group.gates), **kernel_numbers(group, pruned)}
    if seed < POLISHED and pruned.neurons <= MOST_POLISHED:
        polished = polish(merged.model, task, key=jax.random.key(seed), progress=False).model
        reduced = in_order(reduce(polished).model)
        stages |= {"polished": in_order(polished), "reduced": reduced}
        row |= {
            "loss, polished": task_loss(polished, task),
            "reduced neurons": reduced.neurons,
            "reduced gate outputs": reduced.gate_width,
        }
    merging = {
        "kernels": group.kernel if group else np.zeros((0, pruned.neurons, pruned.neurons)),
        "merging": np.array(group.gates if group else [], int),
    }
    return OpenedStudent(stages, merging, row)


def kernel_numbers(group: Group, model: GatedRNN) -> Json:
    """Return how far gate outputs that merge act through one product, the same for all outputs.

    not rank one      share of the kernel m xᵀ + x mᵀ that its nearest product misses
    not proportional  share of the outputs' kernels that multiples of one kernel miss
    """
    values = np.sort(np.linalg.eigvalsh(group.kernel))
    # A product m xᵀ + x mᵀ has at most one eigenvalue of each sign.
    rest = (
        np.sum(values[1:-1] ** 2) + np.minimum(values[-1], 0) ** 2 + np.maximum(values[0], 0) ** 2
    )
    gates = list(group.gates)
    products = np.einsum("ja,jb->jab", model.W_out_m[gates], model.W_out_x[gates])
    kernels = np.tensordot(np.asarray(model.D)[:, gates], products, axes=1)
    symmetric = (kernels + kernels.swapaxes(1, 2)).reshape(len(kernels), -1)
    singular = np.linalg.svd(symmetric, compute_uv=False)
    size = float(np.linalg.norm(singular))
    return {
        "not rank one": float(np.sqrt(rest / max(float(np.sum(values**2)), 1e-300))),
        "not proportional": float(np.linalg.norm(singular[1:])) / max(size, 1e-300),
    }


def judge_counts(rows: list[Json]) -> list[Number]:
    """Judge medians beside the paper's counts."""

    def limited(name: str, values: list[float], limit: float, paper: Cell) -> Number:
        return median_at_most(name, values, limit, paper=paper)

    def missing(share: str, limit: float, paper: float | str) -> Number:
        return limited(f"1 − {share}", [1 - value for value in column(rows, share)], limit, paper)

    tuned = [row["loss, fine-tuned"] / max(row["loss, trained"], 1e-300) for row in rows]
    count = {"seeds": len(rows)}
    numbers = [
        equal("neurons", column(rows, "neurons"), 14),
        equal("memory neurons", column(rows, "memory"), 10),
        equal("query neurons", column(rows, "query"), 4),
        equal("other neurons", column(rows, "other"), 0),
        limited("gate outputs", column(rows, "gate outputs"), 13, 13),
        limited("changed by pruning", column(rows, "changed by pruning"), 1e-2, "preserved"),
        missing("degree 2 in memory", 0.01, 0),
        missing("degree 1 in queries", 0.01, 0),
        missing("in blocks", 0.1, "majority"),
    ]
    # Students in which some gate outputs merge; the paper's is one.
    merging = [row for row in rows if "merging gates" in row]
    if merging:
        numbers += [
            limited("gate outputs, merged", column(rows, "merged"), 11, 11),
            limited("loss, fine-tuned over trained", tuned, 1.5, "recovered"),
            ours(limited("merging gates, not rank one", column(merging, "not rank one"), 0.05, 0)),
            ours(
                limited(
                    "merging gates, not proportional", column(merging, "not proportional"), 0.05, 0
                )
            ),
        ]
    else:
        # Merging changed nothing, so fine-tuning had nothing to recover.
        numbers += [
            shown("gate outputs, merged", float(np.median(column(rows, "merged"))), **count),
            shown("loss, fine-tuned over trained", float(np.median(tuned)), **count),
        ]
    # Networks that were small enough to polish.
    polished = [row for row in rows if "loss, polished" in row]
    if polished:
        numbers += [
            ours(limited("loss, polished", column(polished, "loss, polished"), 1e-20, None)),
            ours(equal("reduced neurons", column(polished, "reduced neurons"), 14)),
            ours(
                limited("reduced gate outputs", column(polished, "reduced gate outputs"), 10, None)
            ),
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
