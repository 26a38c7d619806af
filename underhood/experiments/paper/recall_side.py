"""Associative recall with side gating (Appendix D.3): attention, and a negative peak beside it.

After pruning, the paper finds W_x^in = W^side = [A | 0], W_m^in = [0 | B], D = Bᵀ and λ = 1, so a
pair (x, y) adds the matrix M(x, y) = Bᵀ diag(By ⊙ Ax) A to the map from query to scores. Every M
has rank 1, a positive peak at (y, x) as attention has, and a negative peak of the same height
elsewhere. Each of these is judged by its median over seeds:

reads        the share of squared weights in the half of the token that the paper names
correlation  Σ|a_i·b_i| / Σ|a_i||b_i| over neurons: 1 where two matrices agree up to signs and
             scales of neurons, which the function cannot tell apart
rank         the second singular value of M over the first, median over the pairs
peaks        the share of pairs whose largest entry is at (y, x); the depth of the negative peak
             over the height of the positive one, median over the pairs
"""

import functools

import equinox as eqx
import numpy as np

from underhood.common.arrays import Weight
from underhood.common.decay import kinds
from underhood.common.files import Json
from underhood.common.float64 import in_float64
from underhood.experiments.paper.figure2 import exchange_rows
from underhood.experiments.protocols.recall import divisor, judge_accuracy, prune_students
from underhood.experiments.protocols.students import arrays_of, column, recall_students
from underhood.experiments.running import Outcome, Setting
from underhood.experiments.running.rules import median_at_least, median_at_most, median_near
from underhood.layers import SideGatedRNN
from underhood.results.files import Number


def reproduce_recall_side(setting: Setting) -> Outcome:
    """Judge the accuracy, and the structure item by item."""
    students = recall_students(setting.part(0, 0.6), side=True)
    symbols = students.task.symbols
    pruned, rows = prune_students(
        students,
        setting.part(0.6, 1),
        lambda network: oriented(network, symbols),
        lambda network: structure(network, matrices_of(network, symbols), symbols),
    )
    outcome = Outcome(
        numbers=judge_accuracy(rows) + judge_structure(rows),
        rows=rows,
        notes=["M[seed, x, y] is the matrix that a pair (x, y) adds, [scores over y', query x']."],
        arrays={
            "M": np.stack([matrices_of(rnn, symbols) for rnn in pruned]).astype(np.float32),
            **arrays_of({"pruned": pruned[0]}),
        },
    )
    return students.complete(outcome)


def judge_structure(rows: list[Json]) -> list[Number]:
    values = functools.partial(column, rows)
    return [
        median_at_most("neurons with λ < 0.98", values("not memory"), 0, paper=0),
        median_at_least("W_x^in reads x", values("W_in_x reads x"), 0.99, paper="[A | 0]"),
        median_at_least("W_side reads x", values("W_side reads x"), 0.99, paper="[A | 0]"),
        median_at_least("W_m^in reads y", values("W_in_m reads y"), 0.99, paper="[0 | B]"),
        median_at_least("W_x^in = W_side", values("W_in_x and W_side"), 0.95, paper="equal"),
        median_at_least("D = Bᵀ", values("D and B"), 0.95, paper="equal"),
        median_at_most("rank 1 of M, σ₂/σ₁", values("second singular value"), 0.1, paper=0),
        median_at_least("positive peak at (y, x)", values("peak at (y, x)"), 1.0, paper="all"),
        median_near("negative over positive peak", values("negative peak"), 1.0, 0.1, paper=1),
    ]


def oriented(model: SideGatedRNN, symbols: int) -> SideGatedRNN:
    """Return the same function, with the factor of each gate that reads x as W_in_x."""
    double = in_float64(model)
    m, x = double.W_in_m, double.W_in_x
    reads_x = [np.linalg.norm(W[:, :symbols], axis=1) for W in (m, x)]
    reads_y = [np.linalg.norm(W[:, symbols:], axis=1) for W in (m, x)]
    exchanged = exchange_rows(m, x, reads_x[0] * reads_y[1] > reads_x[1] * reads_y[0])
    return eqx.tree_at(lambda rnn: (rnn.W_in_m, rnn.W_in_x), double, exchanged)


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
    """Return the share of a matrix's squared weights in some columns."""
    total = float(np.sum(W**2))
    return float(np.sum(W[:, half] ** 2)) / total if total else 0.0


def row_agreement(A: Weight, B: Weight) -> float:
    """Return how far the rows of two matrices have the same direction, up to signs and lengths."""
    sizes = np.linalg.norm(A, axis=1) * np.linalg.norm(B, axis=1)
    total = float(sizes.sum())
    return float(np.abs(np.sum(A * B, axis=1)).sum()) / total if total else 0.0
