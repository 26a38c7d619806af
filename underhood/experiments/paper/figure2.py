"""What is left after pruning shows the compact construction (Figure 2, Appendix C.2).

The paper keeps 14 of 100 neurons, 10 with λ = 1 and 4 with λ = 0, and 13 of 100 gate outputs; three
of these merge into one, and fine-tuning recovers the loss. Counts are judged after pruning alone,
as medians over seeds. Beside them: what merging, polishing and reducing make of the network.

neurons           kept by `prune`: memory (λ ≥ 0.98), query (λ ≤ 0.02), other
degrees           of what is written, the share of its variance that has the degree of the
                  construction: products of two inputs into memory, single inputs into queries
blocks            of the output gates' squared weights, sorted so, those where one factor reads
                  memory and the other queries; the paper's picture has three rows out of place
merged            gate outputs after `merge`, and the loss after polishing over the trained one;
                  polishing and reducing are shown for the first POLISHED seeds, where pruning
                  has left at most LARGEST neurons (more take minutes each)
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import numpy as np

from underhood.analysis import merge, polish, prune, reduce
from underhood.analysis.forms.norms import entry_moments
from underhood.analysis.forms.quadratic import entry_degrees, quadratic_form
from underhood.analysis.reading.probes import memory_filling
from underhood.common.decay import kinds
from underhood.common.float64 import in_float64
from underhood.experiments.paper.table1 import task_loss
from underhood.experiments.protocols.students import Students, literal_students, teacher_students
from underhood.experiments.running.outcomes import Outcome
from underhood.experiments.running.rules import Number, equal, median_at_most
from underhood.experiments.running.setting import Setting
from underhood.layers import GatedRNN

POLISHED, LARGEST = 4, 60
# Tokens of the sequence on which the picture shows the memory filling.
FILLED = 16


@dataclass(frozen=True)
class Picture:
    """One student after pruning, merging, and polishing with reduction; `row` has the counts."""

    pruned: GatedRNN
    merged: GatedRNN
    merging: np.ndarray
    kernels: np.ndarray
    polished: GatedRNN | None
    reduced: GatedRNN | None
    row: dict[str, Any]


def run(setting: Setting) -> Outcome:
    """Counts of all students, and the block picture of one."""
    students = teacher_students(setting.part(0, 0.7))
    pictures = look_at(students, setting.part(0.7, 0.95))
    numbers = judge([one.row for one in pictures], "")
    rows = [one.row for one in pictures]
    runs = [students.run]
    if setting.scale == "paper":
        literal = literal_students(setting.part(0.95, 0.97))
        others = look_at(literal, setting.part(0.97, 1))
        rows += [{**one.row, "decay": "read literally"} for one in others]
        numbers += judge([one.row for one in others], ", decay read literally")
        runs.append(literal.run)
    setting.tick(1, 1)
    shown = typical(pictures)
    arrays = {
        f"{stage}/{name}": np.asarray(array)
        for stage, model in (
            ("trained", students.run.models[shown]),
            ("pruned", pictures[shown].pruned),
            ("merged", pictures[shown].merged),
            ("polished", pictures[shown].polished),
            ("reduced", pictures[shown].reduced),
        )
        if model is not None
        for name, array in vars(model).items()
    }
    arrays["kernels"], arrays["merging"] = pictures[shown].kernels, pictures[shown].merging
    arrays["steps"], arrays["losses"] = students.run.steps, students.run.losses
    least = pictures[shown].reduced or pictures[shown].pruned
    memory = memory_filling(least, students.task.attention, time=FILLED)
    arrays |= {f"memory/{name}": array for name, array in vars(memory).items()}
    notes = (
        f"The picture shows seed {shown}, the first whose counts are the medians, or else the "
        "first. The theory's smallest network has d(d+1)/2 + d neurons and d(d+1)/2 gate outputs.",
        "Polishing is training of another kind; counts after pruning owe nothing to it.",
    )
    seeds = tuple(range(len(pictures)))
    return Outcome(tuple(numbers), tuple(rows), notes, seeds, students.steps, arrays, tuple(runs))


def look_at(students: Students, setting: Setting) -> list[Picture]:
    """Every student, opened."""
    found = []
    for seed, model in enumerate(students.run.models):
        setting.tick(seed, len(students.run.models))
        found.append(open_up(model, students.task, seed))
    setting.tick(1, 1)
    return found


def open_up(model: GatedRNN, task: Any, seed: int) -> Picture:
    """Prune, then merge, then polish and reduce."""
    small = in_order(prune(model).model)
    joined = merge(small)
    kind = kinds(np.asarray(small.decay))
    largest = max(
        joined.groups, key=lambda one: (len(one.gates) - one.products, len(one.gates)), default=None
    )
    kernels = np.zeros((0, small.neurons, small.neurons)) if largest is None else largest.kernel
    merging = np.array([] if largest is None else largest.gates, int)
    row: dict[str, Any] = {
        "seed": seed,
        "neurons": small.neurons,
        "memory": int(np.sum(kind == "memory")),
        "query": int(np.sum(kind == "query")),
        "other": int(np.sum(kind == "other")),
        "gate outputs": small.gate_width,
        "degree 2 in memory": written_share(small, kind == "memory", 2),
        "degree 1 in queries": written_share(small, kind == "query", 1),
        "in blocks": block_share(small),
        "merged": joined.model.gate_width,
        "loss, trained": task_loss(in_float64(model), task),
        "loss, pruned": task_loss(small, task),
        "loss, merged": task_loss(joined.model, task),
    }
    if seed >= POLISHED or small.neurons > LARGEST:
        return Picture(small, joined.model, merging, kernels, None, None, row)
    polished = polish(joined.model, task, key=jax.random.key(seed))
    least = in_order(reduce(polished.model).model)
    row |= {
        "loss, polished": task_loss(polished.model, task),
        "reduced neurons": least.neurons,
        "reduced gate outputs": least.gate_width,
    }
    return Picture(small, joined.model, merging, kernels, in_order(polished.model), least, row)


def judge(rows: list[dict[str, Any]], suffix: str) -> list[Number]:
    """Medians beside the paper's counts."""

    def values(name: str) -> list[float]:
        return [row[name] for row in rows if name in row]

    recovered = [
        after / max(row["loss, trained"], 1e-300)
        for row in rows
        if (after := row.get("loss, polished")) is not None
    ]
    return [
        equal(f"neurons{suffix}", values("neurons"), 14),
        equal(f"memory neurons{suffix}", values("memory"), 10),
        equal(f"query neurons{suffix}", values("query"), 4),
        equal(f"other neurons{suffix}", values("other"), 0),
        median_at_most(f"gate outputs{suffix}", values("gate outputs"), 13, paper=13),
        median_at_most(f"gate outputs, merged{suffix}", values("merged"), 11, paper=11),
        median_at_most(
            f"1 − degree 2 in memory{suffix}",
            [1 - one for one in values("degree 2 in memory")],
            0.01,
            paper=0,
        ),
        median_at_most(
            f"1 − degree 1 in queries{suffix}",
            [1 - one for one in values("degree 1 in queries")],
            0.01,
            paper=0,
        ),
        median_at_most(
            f"1 − in blocks{suffix}",
            [1 - one for one in values("in blocks")],
            0.1,
            paper="majority",
        ),
        *(after_polishing(recovered, values, suffix) if recovered else []),
    ]


def after_polishing(
    recovered: list[float], values: Callable[[str], list[float]], suffix: str
) -> list[Number]:
    """What fine-tuning and reduction make of the networks that were small enough."""
    return [
        median_at_most(f"loss recovered{suffix}", recovered, 1.0, paper="recovered"),
        equal(f"reduced neurons{suffix}", values("reduced neurons"), 14),
        median_at_most(
            f"reduced gate outputs{suffix}", values("reduced gate outputs"), 11, paper=11
        ),
    ]


def typical(pictures: list[Picture]) -> int:
    """The first student whose counts are the medians; the first one if there is none."""
    names = ("neurons", "memory", "query")
    medians = [float(np.median([one.row[name] for one in pictures])) for name in names]
    fits = [
        seed
        for seed, one in enumerate(pictures)
        if [float(one.row[name]) for name in names] == medians
    ]
    return fits[0] if fits else 0


def written_share(model: GatedRNN, which: np.ndarray, degree: int) -> float:
    """Of the variance of what the input gates write, the share of one degree; 0 where none do."""
    form = quadratic_form(model)
    spread = entry_moments(form.d_in)[1]
    variance = (form.reads[which] * spread) ** 2
    total = float(variance.sum())
    return float(variance[:, entry_degrees(form.d_in) == degree].sum()) / total if total else 0.0


def block_share(model: GatedRNN) -> float:
    """Of the squared weights of ordered output gates, those that the construction has too."""
    memory = np.asarray(model.decay) > 0.5
    m, x = np.asarray(model.W_out_m) ** 2, np.asarray(model.W_out_x) ** 2
    total = float(m.sum() + x.sum())
    return float(m[:, memory].sum() + x[:, ~memory].sum()) / total if total else 0.0


def in_order(model: GatedRNN) -> GatedRNN:
    """Neurons and gates sorted as in the paper's figure; the function stays what it is.

    Memory before queries; of a neuron's two rows W_in_x has the larger constant; of a gate's two,
    W_out_m reads memory; gates in the order of the memory neuron that they read most.
    """
    order = np.argsort(-np.round(np.asarray(model.decay), 2), kind="stable")
    model = in_float64(model)
    model = eqx.tree_at(
        lambda one: (one.W_in_m, one.W_in_x, one.nu, one.W_out_m, one.W_out_x),
        model,
        (
            model.W_in_m[order],
            model.W_in_x[order],
            model.nu[order],
            model.W_out_m[:, order],
            model.W_out_x[:, order],
        ),
    )
    m, x = swapped(
        model.W_in_m, model.W_in_x, np.abs(model.W_in_m[:, -1]) > np.abs(model.W_in_x[:, -1])
    )
    memory = np.asarray(model.decay) > 0.5
    reads_m, reads_x = (
        np.linalg.norm(W[:, memory], axis=1) / np.maximum(np.linalg.norm(W, axis=1), 1e-300)
        for W in (model.W_out_m, model.W_out_x)
    )
    out_m, out_x = swapped(model.W_out_m, model.W_out_x, reads_x > reads_m)
    weight = np.abs(out_m) * memory
    gates = np.argsort(np.argmax(weight, axis=1), kind="stable") if model.neurons else np.arange(0)
    return eqx.tree_at(
        lambda one: (one.W_in_m, one.W_in_x, one.W_out_m, one.W_out_x, one.D),
        model,
        (m, x, out_m[gates], out_x[gates], model.D[:, gates]),
    )


def swapped(m: Any, x: Any, where: Any) -> tuple[np.ndarray, np.ndarray]:
    """The two factors of a gate exchanged in some rows."""
    exchange = where[:, None]
    return np.where(exchange, x, m), np.where(exchange, m, x)
