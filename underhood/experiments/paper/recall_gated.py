"""Associative recall with input-output gating (Appendix D.3): a solution smaller than attention.

The paper: for each y one neuron with λ = 1 that receives a number v_x when that y comes with x, and
nothing otherwise; one neuron with λ = 0 that holds the v_x of the query; and scores
−(v_query − v_stored)². docs/reproduction.md says how each item is measured, after pruning.
"""

import jax
import numpy as np

from underhood.analysis.forms.quadratic import quadratic_form
from underhood.common.arrays import in_float64
from underhood.common.decay import kinds
from underhood.common.files import Json
from underhood.constructions import compile
from underhood.experiments.protocols.recall import (
    PRUNED_BY_INFLUENCE,
    divisor,
    judge_accuracy,
    pair_columns,
    prune_students,
)
from underhood.experiments.protocols.students import (
    arrays_of,
    column,
    left_out,
    neuron_counts,
    recall_formats,
)
from underhood.experiments.running import Outcome, Setting
from underhood.experiments.running.rules import median_at_least, median_at_most, ours
from underhood.layers import GatedRNN
from underhood.results.files import Number
from underhood.tasks import AssociativeRecall

ITEMS = ("one y each", "one value", "same value", "squares", "in general")
# A student has the paper's solution if one value explains it, and the squares of its differences.
ALGORITHM = {"one y each": 0.95, "one value": 0.95, "same value": 0.95, "squares": 0.95}


def reproduce_recall_gated(setting: Setting) -> Outcome:
    groups = recall_formats(setting.part(0, 0.6), side=False)
    students, *others = groups.values()
    task = students.task
    pruned = prune_students(
        groups, setting.part(0.6, 1), lambda network, _: in_float64(network), algorithm
    )
    rows = pruned.judged
    attention = compile(task.best_attention(), "gated_rnn", form="minimal")
    # Of the students whose medians are judged.
    shown = min(rows, key=lambda row: row["neurons"])
    network = pruned.networks[pruned.rows.index(shown)]
    outcome = Outcome(
        numbers=[
            *judge_accuracy(rows),
            *judge_algorithm(rows, task, attention.neurons),
            *pruned.matching(ALGORITHM),
        ],
        rows=pruned.rows,
        notes=[
            f"The students were trained with {students.decay} weight decay. Judged are those of "
            f"width {shown['width']} on pairs.",
            PRUNED_BY_INFLUENCE,
            *left_out(groups, setting, side=False),
            f"The picture shows seed {shown['seed']}, which has the fewest neurons of these. "
            f"Attention itself takes {attention.neurons} neurons.",
        ],
        arrays={
            **arrays_of({"pruned": network}),
            "received": received(network, task),
            "received_by_query": queried(network, task),
        },
        runs=[other.run for other in others],
    )
    return students.complete(outcome)


def judge_algorithm(rows: list[Json], task: AssociativeRecall, attention: int) -> list[Number]:
    """Judge the paper's items, one number each; `attention` is the neurons it takes."""
    counts = (
        ("neurons", attention // 2, "way fewer than attention"),
        ("memory", task.symbols, task.symbols),
        ("query", 1, 1),
        ("other", 0, 0),
    )
    papers = dict.fromkeys(ITEMS, "1") | {"in general": None}
    return [
        median_at_most(name, column(rows, name), limit, paper=paper)
        for name, limit, paper in counts
    ] + [
        # Several numbers for each symbol are a wider solution than the paper's.
        ours(number) if number.paper is None else number
        for number in (
            median_at_least(name, column(rows, name), 0.95, paper=paper)
            for name, paper in papers.items()
        )
    ]


def received(model: GatedRNN, task: AssociativeRecall) -> np.ndarray:
    """Return G [neurons, x, y]: what each neuron receives from a pair."""
    reads_x, reads_y = pair_columns(task)
    # The last input is the constant 1.
    z = np.zeros((task.symbols, task.symbols, task.d_in + 1))
    x, y = np.indices((task.symbols, task.symbols))
    z[x, y, reads_x[x]] = z[x, y, reads_y[y]] = z[..., -1] = 1
    return np.einsum("xyk,ik->ixy", z, model.W_in_m) * np.einsum("xyk,ik->ixy", z, model.W_in_x)


def queried(model: GatedRNN, task: AssociativeRecall) -> np.ndarray:
    """Return what each neuron receives from a query [neurons, x]."""
    z = np.eye(task.d_in + 1)[pair_columns(task)[0]]
    z[:, -1] = 1
    return np.asarray(model.W_in_m @ z.T) * np.asarray(model.W_in_x @ z.T)


def algorithm(model: GatedRNN, task: AssociativeRecall) -> Json:
    counts, kind = neuron_counts(model), kinds(np.asarray(model.decay))
    if not counts["memory"] or not counts["query"]:
        return counts | dict.fromkeys(ITEMS, 0.0)
    stored = received(model, task)[kind == "memory"]
    asked = queried(model, task)[kind == "query"]
    by_y = np.sum(stored**2, axis=1)
    # Every x and every y comes once in a sequence. What functions of x alone and of y alone add up
    # to is the same in all sequences, so G matters only up to such functions.
    centred = stored - stored.mean(axis=1, keepdims=True)
    unfolded = np.moveaxis(centred, 1, 0).reshape(task.symbols, -1)
    left, singular, _ = np.linalg.svd(unfolded, full_matrices=False)
    return counts | {
        "one y each": float(np.mean(by_y.max(axis=1) / divisor(by_y.sum(axis=1)))),
        "one value": float(singular[0] ** 2 / divisor(np.sum(singular**2))),
        "same value": max(abs(correlation(left[:, 0], held)) for held in asked),
        "squares": squares_fit(model, task, left[:, :1]),
        "in general": squares_fit(model, task, left[:, : counts["query"]]),
    }


def correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Return Pearson's correlation; 0 where one of the two is constant."""
    a, b = first - first.mean(), second - second.mean()
    size = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / size) if size else 0.0


def squares_fit(model: GatedRNN, task: AssociativeRecall, v: np.ndarray) -> float:
    """Return R² of the scores by the paper's formula, on fresh sequences.

    Scores count up to a number common to all y. The formula is −(v_query − v_stored(y))² with
    fitted weights for the values, plus a constant and a multiple of v_query for every y.

    v  the numbers that stand for each x [x, values]
    """
    batch = task.sample(jax.random.key(97), 512)
    tokens = np.asarray(batch.inputs, float)
    scores = quadratic_form(model)(tokens)[:, -1]
    # A token between two pairs has neither x nor y in these places.
    reads_x, reads_y = pair_columns(task)
    xs, ys = tokens[:, :-1, reads_x], tokens[:, :-1, reads_y]
    stored = np.einsum("btx,xk,bty->byk", xs, v, ys)
    query = tokens[:, -1, reads_x] @ v
    apart = query[:, None] - stored
    first, second = np.triu_indices(v.shape[1])
    eye = np.broadcast_to(np.eye(task.symbols), (len(tokens), task.symbols, task.symbols))
    shifts = [eye * value[:, None, None] for value in query.T]
    features = np.concatenate([-apart[..., first] * apart[..., second], eye, *shifts], axis=-1)
    centred = features - features.mean(axis=1, keepdims=True)
    wanted = scores - scores.mean(axis=1, keepdims=True)
    F, t = centred.reshape(-1, features.shape[-1]), wanted.ravel()
    rest = t - F @ np.linalg.lstsq(F, t, rcond=None)[0]
    total = float(t @ t)
    return 1 - float(rest @ rest) / total if total else 0.0
