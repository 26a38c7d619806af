"""Associative recall with input-output gating (Appendix D.3): a solution smaller than attention.

The paper: for each y one neuron with λ = 1 that receives a number v_x when that y comes with x, and
nothing otherwise; one neuron with λ = 0 that holds the v_x of the query; and scores
−(v_query − v_stored)², the largest of which names the right y. After pruning, with G_i(x, y) what
neuron i receives from the pair, each item is judged by its median over seeds:

memory        neurons with λ = 1: at most one per y (scores matter up to a common shift, so that
              one fewer is enough)
query         neurons with λ = 0: one
one y each    the share of G_i² at the neuron's strongest y, averaged over memory neurons
one value     G_i(x, y) = v_x B_iy: the share of the squared entries that one v explains
same value    |correlation| over x between v and what the query neurons receive, the best of them
squares       R² of the scores, up to a common shift, by −(v_query − v_stored)²
in general    the same where v_x has as many numbers as there are query neurons
"""

from typing import Any

import jax
import numpy as np

from underhood.analysis import prune
from underhood.analysis.forms.quadratic import quadratic_form
from underhood.common.decay import kinds
from underhood.common.float64 import in_float64
from underhood.constructions import compile
from underhood.experiments.protocols.recall import accuracy_of, numbers_on_accuracy, top
from underhood.experiments.protocols.students import recall_students
from underhood.experiments.running.outcomes import Outcome
from underhood.experiments.running.rules import Number, median_at_least, median_at_most
from underhood.experiments.running.setting import Setting
from underhood.layers import GatedRNN
from underhood.tasks import AssociativeRecall

ITEMS = ("one y each", "one value", "same value", "squares", "in general")


def run(setting: Setting) -> Outcome:
    """Accuracy, and the algorithm item by item."""
    students = recall_students(setting.part(0, 0.6), side=False)
    task: AssociativeRecall = students.task
    looking = setting.part(0.6, 1)
    rows: list[dict[str, Any]] = []
    pruned, written = [], []
    for seed, (model, member) in enumerate(
        zip(students.run.models, students.run.rows, strict=True)
    ):
        looking.tick(seed, len(students.run.models))
        small = in_float64(prune(model, time=task.time).model)
        rows.append(
            {
                "seed": seed,
                "accuracy": member["accuracy"],
                "accuracy, pruned": accuracy_of(small, task),
                **algorithm(small, task),
            }
        )
        pruned.append(small)
        written.append(received(small, task.symbols))
    setting.tick(1, 1)
    attention = compile(task.best_attention(), "gated_rnn", form="minimal")
    numbers = numbers_on_accuracy(rows) + judge(rows, task, attention.neurons)
    shown = int(np.argmin([row["neurons"] for row in rows]))
    arrays = {
        **{f"pruned/{name}": np.asarray(array) for name, array in vars(pruned[shown]).items()},
        "received": written[shown],
        "received_by_query": queried(pruned[shown], task.symbols),
        "steps": students.run.steps,
        "losses": students.run.losses,
    }
    notes = (
        f"The picture shows seed {shown}, which has the fewest neurons. Attention itself takes "
        f"{attention.neurons} neurons.",
    )
    seeds = tuple(range(len(rows)))
    return Outcome(
        tuple(numbers), tuple(rows), notes, seeds, students.steps, arrays, (students.run,)
    )


def judge(rows: list[dict[str, Any]], task: AssociativeRecall, attention: int) -> list[Number]:
    """The paper's items, one number each."""

    def values(name: str) -> list[float]:
        return [row[name] for row in rows]

    def most(name: str, limit: int, paper: Any) -> Number:
        return median_at_most(name, values(name), limit, paper=paper)

    return [
        most("neurons", attention // 2, "way fewer than attention"),
        most("memory", task.symbols, task.symbols),
        most("query", 1, 1),
        most("other", 0, 0),
        *(median_at_least(name, values(name), 0.95, paper="1") for name in ITEMS[:-1]),
        median_at_least(ITEMS[-1], values(ITEMS[-1]), 0.95, paper=None),
    ]


def received(model: GatedRNN, symbols: int) -> np.ndarray:
    """G [neurons, x, y]: what each neuron receives from a pair."""
    tokens = np.zeros((symbols, symbols, 2 * symbols))
    x, y = np.indices((symbols, symbols))
    tokens[x, y, x] = tokens[x, y, symbols + y] = 1
    z = np.concatenate([tokens, np.ones((symbols, symbols, 1))], axis=-1)
    return np.einsum("xyk,ik->ixy", z, model.W_in_m) * np.einsum("xyk,ik->ixy", z, model.W_in_x)


def queried(model: GatedRNN, symbols: int) -> np.ndarray:
    """What each neuron receives from a query [neurons, x]."""
    z = np.concatenate([np.eye(symbols), np.zeros((symbols, symbols)), np.ones((symbols, 1))], 1)
    return np.asarray(model.W_in_m @ z.T) * np.asarray(model.W_in_x @ z.T)


def algorithm(model: GatedRNN, task: AssociativeRecall) -> dict[str, Any]:
    """The items of one student."""
    kind = kinds(np.asarray(model.decay))
    memory, query = kind == "memory", kind == "query"
    found: dict[str, Any] = {
        "neurons": model.neurons,
        "memory": int(memory.sum()),
        "query": int(query.sum()),
        "other": int(np.sum(kind == "other")),
        "gate outputs": model.gate_width,
    }
    G, asked = received(model, task.symbols), queried(model, task.symbols)
    if not memory.any() or not query.any():
        return found | dict.fromkeys(ITEMS, 0.0)
    stored = G[memory]
    by_y = np.sum(stored**2, axis=1)
    # What a sequence adds up to whatever is paired with what cannot be told from nothing: every x
    # and every y comes once, so only G up to functions of x alone and of y alone matters.
    centred = stored - stored.mean(axis=1, keepdims=True)
    unfolded = np.moveaxis(centred, 1, 0).reshape(task.symbols, -1)
    left, singular, _ = np.linalg.svd(unfolded, full_matrices=False)
    correlations = [abs(correlation(left[:, 0], one)) for one in asked[query]]
    return found | {
        "one y each": float(np.mean(by_y.max(axis=1) / top(by_y.sum(axis=1)))),
        "one value": float(singular[0] ** 2 / top(np.sum(singular**2))),
        "same value": max(correlations),
        "squares": squares(model, task, left[:, :1]),
        "in general": squares(model, task, left[:, : query.sum()]),
    }


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Pearson's; 0 where one is constant."""
    a, b = one - one.mean(), other - other.mean()
    size = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / size) if size else 0.0


def squares(model: GatedRNN, task: AssociativeRecall, v: np.ndarray) -> float:
    """R² of the scores by the paper's formula, on fresh sequences; v [x, values].

    Scores count up to a number common to all y. The formula is −(v_query − v_stored(y))² with
    weights of its own for the values, plus a constant and a multiple of v_query for every y.
    """
    batch = task.sample(jax.random.key(97), 512)
    tokens = np.asarray(batch.inputs, float)
    scores = quadratic_form(model)(tokens)[:, -1]
    xs, ys = tokens[:, :-1, : task.symbols], tokens[:, :-1, task.symbols :]
    stored = np.einsum("btx,xk,bty->byk", xs, v, ys)
    query = tokens[:, -1, : task.symbols] @ v
    apart = query[:, None] - stored
    first, second = np.triu_indices(v.shape[1])
    eye = np.broadcast_to(np.eye(task.symbols), (len(tokens), task.symbols, task.symbols))
    shifts = [eye * one[:, None, None] for one in query.T]
    features = np.concatenate([-apart[..., first] * apart[..., second], eye, *shifts], axis=-1)
    centred = features - features.mean(axis=1, keepdims=True)
    wanted = scores - scores.mean(axis=1, keepdims=True)
    F, t = centred.reshape(-1, features.shape[-1]), wanted.ravel()
    rest = t - F @ np.linalg.lstsq(F, t, rcond=None)[0]
    total = float(t @ t)
    return 1 - float(rest @ rest) / total if total else 0.0
