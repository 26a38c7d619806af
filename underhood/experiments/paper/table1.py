"""A trained gated RNN computes its teacher's function (Table 1).

Four numbers, each a median over seeds. The loss on fresh sequences and the normalised distance of
the polynomials of one token are those of the student as trained. 1 − R² of key-values and of
queries is read, as in the paper, from the neurons that pruning leaves.

A score of many neurons says nothing: 15 memory neurons span every quadratic of four inputs. Nor
does one of 10 + 4 neurons with the right degrees: ten random products span all products. So the
scores of untrained networks stand beside them, and a score is never called better than the paper's.
What polishing makes of the students is a number of ours.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from underhood.analysis import decompile, polish, polynomial, probe, prune, reduce
from underhood.analysis.forms.quadratic import quadratic_form
from underhood.common.files import Json
from underhood.experiments.protocols.students import (
    QUICK_FACTOR,
    ZERO,
    column,
    teacher_students,
)
from underhood.experiments.running import Outcome, Setting
from underhood.experiments.running.rules import no_more_than, ours, shown
from underhood.layers import GatedRNN
from underhood.results.verdicts import BETTER, REPRODUCED
from underhood.tasks import TeacherStudent
from underhood.training.second_order.examples import half_mean_square, sample

# The paper's numbers, and the stage of the student that each is measured at.
TABLE1_PAPER = {
    "loss": (4.97e-8, "trained"),
    "score_kv": (4.52e-8, "pruned"),
    "score_q": (2.06e-10, "pruned"),
    "polynomial_distance": (3.73e-4, "trained"),
}
SCORES = ("score_kv", "score_q")


def reproduce_table1(setting: Setting) -> Outcome:
    at_paper_scale = setting.scale == "paper"
    students = teacher_students(setting.part(0, 0.7))
    task, polished = students.task, "polished, reduced"
    rows: list[Json] = []
    for seed, model, _ in students.visit(setting.part(0.7, 1)):
        stages = {"trained": model, "pruned": prune(model, zero=ZERO).model}
        if not at_paper_scale:
            better = polish(model, task, key=jax.random.key(seed), progress=False).model
            stages[polished] = reduce(better).model
        untrained = untrained_networks(task, model.neurons, seed)
        rows += [row_of(seed, stage, network, task) for stage, network in stages.items()]
        rows += [score_row(seed, stage, network, task) for stage, network in untrained.items()]

    def at(stage: str, name: str) -> list[float]:
        return column([row for row in rows if row["stage"] == stage], name)

    factor = 1.0 if at_paper_scale else QUICK_FACTOR
    numbers = [
        no_more_than(
            name, at(stage, name), paper, what=f"median, {stage},", factor=factor, highest=highest
        )
        for name, (paper, stage) in TABLE1_PAPER.items()
        for highest in (REPRODUCED if name in SCORES else BETTER,)
    ]
    if not at_paper_scale:
        numbers += [
            ours(no_more_than(f"{name}, polished", at(polished, name), paper, what="median"))
            for name, (paper, _) in TABLE1_PAPER.items()
        ]
    for stage in untrained:
        numbers += [
            shown(f"{name}, {stage}", float(np.median(values)), seeds=len(values))
            for name in SCORES
            for values in (at(stage, name),)
        ]
    setting.tick(1, 1)
    outcome = Outcome(
        numbers=numbers,
        rows=rows,
        notes=[
            f"The students were trained with {students.decay} weight decay.",
            "untrained: the scores of networks with random weights, of the students' size and of "
            "the paper's 10 + 4 neurons with λ = 1 and 0. right degrees: memory receives products "
            "of two inputs and queries receive single inputs. Where they are as low, a score says "
            "nothing about the teacher.",
            "polished: second-order training on samples of the task in float64; ours.",
        ],
        arrays={"decay": np.stack([np.asarray(model.decay) for model in students.run.models])},
    )
    return students.complete(outcome)


def row_of(seed: int, stage: str, model: GatedRNN, task: TeacherStudent) -> Json:
    """Return the paper's numbers in float64, the size, and how much no attention explains."""
    return {
        **score_row(seed, stage, model, task),
        "loss": task_loss(model, task),
        "polynomial_distance": polynomial(model).distance(polynomial(task.attention)),
        "neurons": model.neurons,
        "gate outputs": model.gate_width,
        "residual": decompile(model, max_heads=1).residual,
    }


def score_row(seed: int, stage: str, model: GatedRNN, task: TeacherStudent) -> Json:
    """Return what can be read from the neurons."""
    probes = probe(model, task.attention)
    return {
        "seed": seed,
        "stage": stage,
        "score_kv": probes.score_kv,
        "score_q": probes.score_q,
    }


def untrained_networks(task: TeacherStudent, neurons: int, seed: int) -> dict[str, GatedRNN]:
    """Return random networks by name: of a student's size, and of the construction's."""
    d = task.d_in
    memory = d * (d + 1) // 2
    key = jax.random.key(1000 + seed)

    def random_network(hidden: int, gated: int) -> GatedRNN:
        return GatedRNN.init(d_in=d, hidden=hidden, gated=gated, d_out=task.d_out, key=key)

    large, small = random_network(neurons, neurons), random_network(memory + d, memory)
    # Half of the large network and the memory of the small one keep everything.
    size = f"{memory} + {d} neurons"
    return {
        f"untrained, {neurons} neurons": with_memory(large, neurons // 2),
        f"untrained, {size}": with_memory(small, memory),
        f"untrained, {size}, right degrees": with_memory(with_degrees(small, memory), memory),
    }


def with_degrees(model: GatedRNN, memory: int) -> GatedRNN:
    """Return the network whose first neurons receive products and whose others single inputs."""
    products = (jnp.arange(model.neurons) < memory)[:, None]
    constant = jnp.arange(model.d_in + 1) == model.d_in
    W_in_m = jnp.where(products, jnp.where(constant, 0.0, model.W_in_m), 1.0 * constant)
    W_in_x = jnp.where(constant, 0.0, model.W_in_x)
    return eqx.tree_at(lambda rnn: (rnn.W_in_m, rnn.W_in_x), model, (W_in_m, W_in_x))


def with_memory(model: GatedRNN, memory: int) -> GatedRNN:
    """Return the network whose first neurons have λ = 1 and whose others have λ = 0."""
    decay = jnp.where(jnp.arange(model.neurons) < memory, 1.0, 0.0)
    weights = {name: getattr(model, name) for name in ("W_in_m", "W_in_x", "W_out_m", "W_out_x")}
    return GatedRNN(**weights, decay=decay, D=model.D)


def task_loss(model: GatedRNN, task: TeacherStudent) -> float:
    """Return the loss on fresh sequences, in float64."""
    data = sample(task, jax.random.key(99), 256)
    return half_mean_square(data.rows(quadratic_form(model)(data.tokens)) - data.targets)
