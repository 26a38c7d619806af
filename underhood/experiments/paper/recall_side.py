"""Associative recall with side gating (Appendix D.3): attention, and a negative peak beside it.

After pruning, the paper finds W_x^in = W^side = [A | 0], W_m^in = [0 | B], D = Bᵀ and λ = 1, so a
pair (x, y) adds the matrix M(x, y) = Bᵀ diag(By ⊙ Ax) A to the map from query to scores, of rank 1
with one positive and one negative peak. docs/reproduction.md says how each item is measured.
"""

import functools

import equinox as eqx
import numpy as np

from underhood.common.arrays import Weight, in_float64
from underhood.common.decay import kinds
from underhood.common.files import Json
from underhood.experiments.paper.figure2 import exchange_rows
from underhood.experiments.protocols.recall import (
    PRUNED_BY_INFLUENCE,
    divisor,
    judge_accuracy,
    pair_columns,
    prune_students,
)
from underhood.experiments.protocols.students import (
    Students,
    arrays_of,
    column,
    left_out,
    recall_formats,
)
from underhood.experiments.running import Outcome, Setting
from underhood.experiments.running.rules import (
    median_at_least,
    median_at_most,
    median_near,
    shown,
)
from underhood.layers import SideGatedRNN
from underhood.results.files import Number
from underhood.tasks import AssociativeRecall

# A student has the paper's structure if every item is near 1.
STRUCTURE = {
    "all memory": 1.0,
    "W_in_x reads x": 0.99,
    "W_side reads x": 0.99,
    "W_in_m reads y": 0.99,
    "W_in_x and W_side": 0.95,
    "D and B": 0.95,
    "rank 1": 0.9,
    "peak at (y, x)": 1.0,
    "equal peaks": 0.9,
}


def reproduce_recall_side(setting: Setting) -> Outcome:
    groups = recall_formats(setting.part(0, 0.6), side=True)
    students, *others = groups.values()
    task, symbols = students.task, students.task.symbols
    pruned = prune_students(groups, setting.part(0.6, 1), oriented, structure_row)
    rows = pruned.judged
    networks = [pruned.networks[pruned.rows.index(row)] for row in rows]
    outcome = Outcome(
        numbers=[
            *judge_accuracy(rows),
            *judge_structure(rows),
            *show_untrained(students, rows[0]["width"]),
            *pruned.matching(STRUCTURE),
        ],
        rows=pruned.rows,
        notes=[
            f"The students were trained with {students.decay} weight decay. Judged are those of "
            f"width {rows[0]['width']} on pairs.",
            PRUNED_BY_INFLUENCE,
            *left_out(groups, setting, side=True),
            "untrained: the same students before training. What they have too says nothing.",
            "M[seed, x, y] is the matrix that a pair (x, y) adds, [scores over y', query x'].",
        ],
        arrays={
            "M": np.stack([matrices_of(on_pairs(rnn, task), symbols) for rnn in networks]).astype(
                np.float32
            ),
            **arrays_of({"pruned": networks[0]}),
        },
        runs=[other.run for other in others],
    )
    return students.complete(outcome)


def judge_structure(rows: list[Json]) -> list[Number]:
    values = functools.partial(column, rows)

    def at_least(name: str, item: str, paper: str) -> Number:
        return median_at_least(name, values(item), STRUCTURE[item], paper=paper)

    return [
        median_at_most("neurons with λ < 0.98", values("not memory"), 0, paper=0),
        at_least("W_x^in reads x", "W_in_x reads x", "[A | 0]"),
        at_least("W_side reads x", "W_side reads x", "[A | 0]"),
        at_least("W_m^in reads y", "W_in_m reads y", "[0 | B]"),
        at_least("W_x^in = W_side", "W_in_x and W_side", "equal"),
        at_least("D = Bᵀ", "D and B", "equal"),
        median_at_most("rank 1 of M, σ₂/σ₁", values("second singular value"), 0.1, paper=0),
        at_least("positive peak at (y, x)", "peak at (y, x)", "all"),
        median_near("negative over positive peak", values("negative peak"), 1.0, 0.1, paper=1),
    ]


def show_untrained(students: Students[AssociativeRecall], width: int) -> list[Number]:
    """Show medians of the items that are no share of a half, of the students before training."""
    items = {
        "W_x^in = W_side": "W_in_x and W_side",
        "D = Bᵀ": "D and B",
        "rank 1 of M, σ₂/σ₁": "second singular value",
        "negative over positive peak": "negative peak",
    }
    rows = [
        structure_row(oriented(students.untrained(place), students.task), students.task)
        for place, member in enumerate(students.run.rows)
        if member["width"] == width
    ]
    return [
        shown(f"{title}, untrained", float(np.median(column(rows, name))), seeds=len(rows))
        for title, name in items.items()
    ]


def oriented(model: SideGatedRNN, task: AssociativeRecall) -> SideGatedRNN:
    """Return the same function, with the factor of each gate that reads x as W_in_x."""
    double = in_float64(model)
    m, x = double.W_in_m, double.W_in_x
    reads_x, reads_y = (
        [np.linalg.norm(W[:, columns], axis=1) for W in (m, x)] for columns in pair_columns(task)
    )
    exchanged = exchange_rows(m, x, reads_x[0] * reads_y[1] > reads_x[1] * reads_y[0])
    return eqx.tree_at(lambda rnn: (rnn.W_in_m, rnn.W_in_x), double, exchanged)


def on_pairs(model: SideGatedRNN, task: AssociativeRecall) -> SideGatedRNN:
    """Return the network over the inputs of tokens [x, y] alone, x first."""
    columns = np.concatenate(pair_columns(task))
    return eqx.tree_at(
        lambda rnn: (rnn.W_in_m, rnn.W_in_x, rnn.W_side),
        model,
        tuple(W[:, columns] for W in (model.W_in_m, model.W_in_x, model.W_side)),
    )


def structure_row(model: SideGatedRNN, task: AssociativeRecall) -> Json:
    """Return the items of one student."""
    pairs = on_pairs(model, task)
    row = structure(pairs, matrices_of(pairs, task.symbols), task.symbols)
    # So that every item matches from some value on.
    return row | {
        "all memory": float(row["not memory"] == 0),
        "rank 1": 1 - row["second singular value"],
        "equal peaks": 1 - abs(1 - row["negative peak"]),
    }


def matrices_of(model: SideGatedRNN, symbols: int) -> np.ndarray:
    """Return M [x, y, y', x']: what a pair adds to the map from query to scores, at λ = 1."""
    written = (model.W_in_m[:, symbols:][:, None, :] * model.W_in_x[:, :symbols][:, :, None]) + (
        model.W_in_x[:, symbols:][:, None, :] * model.W_in_m[:, :symbols][:, :, None]
    )
    # A token [x, y] also writes the squares of its own parts.
    for half, axis in ((slice(0, symbols), 2), (slice(symbols, None), 1)):
        written = written + np.expand_dims(model.W_in_m[:, half] * model.W_in_x[:, half], axis)
    return np.einsum("oi,ixy,iq->xyoq", model.D, written, model.W_side[:, :symbols])


def structure(model: SideGatedRNN, M: np.ndarray, symbols: int) -> Json:
    """Return the items of one student; M is that of `matrices_of`."""
    flat = M.reshape(-1, symbols, symbols)
    singular = np.linalg.svd(flat, compute_uv=False)
    highest = flat.reshape(len(flat), -1)
    place = np.argmax(highest, axis=1)
    x, y = np.divmod(np.arange(len(flat)), symbols)
    return {
        "neurons": model.neurons,
        "not memory": int(np.sum(kinds(np.asarray(model.decay)) != "memory")),
        "W_in_x reads x": column_share(model.W_in_x, slice(0, symbols)),
        "W_side reads x": column_share(model.W_side, slice(0, symbols)),
        "W_in_m reads y": column_share(model.W_in_m, slice(symbols, None)),
        "W_in_x and W_side": row_agreement(model.W_in_x[:, :symbols], model.W_side[:, :symbols]),
        "D and B": row_agreement(model.D.T, model.W_in_m[:, symbols:]),
        "second singular value": float(np.median(singular[:, 1] / divisor(singular[:, 0]))),
        "peak at (y, x)": float(np.mean(place == y * symbols + x)),
        "negative peak": float(np.median(-highest.min(axis=1) / divisor(highest.max(axis=1)))),
    }


def column_share(W: Weight, half: slice) -> float:
    total = float(np.sum(W**2))
    return float(np.sum(W[:, half] ** 2)) / total if total else 0.0


def row_agreement(A: Weight, B: Weight) -> float:
    """Return how far the rows of two matrices have the same direction, up to signs and lengths."""
    sizes = np.linalg.norm(A, axis=1) * np.linalg.norm(B, axis=1)
    total = float(sizes.sum())
    return float(np.abs(np.sum(A * B, axis=1)).sum()) / total if total else 0.0
