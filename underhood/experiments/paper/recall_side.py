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

from typing import Any

import equinox as eqx
import numpy as np

from underhood.analysis import prune
from underhood.common.decay import kinds
from underhood.common.float64 import in_float64
from underhood.experiments.protocols.recall import accuracy_of, numbers_on_accuracy, top
from underhood.experiments.protocols.students import recall_students
from underhood.experiments.running.outcomes import Outcome
from underhood.experiments.running.rules import Number, median_at_least, median_at_most, median_near
from underhood.experiments.running.setting import Setting
from underhood.layers import SideGatedRNN


def run(setting: Setting) -> Outcome:
    """Accuracy, and the structure item by item."""
    students = recall_students(setting.part(0, 0.6), side=True)
    looking = setting.part(0.6, 1)
    rows: list[dict[str, Any]] = []
    matrices, pruned = [], []
    for seed, (model, member) in enumerate(
        zip(students.run.models, students.run.rows, strict=True)
    ):
        looking.tick(seed, len(students.run.models))
        small = oriented(prune(model, time=students.task.time).model, students.task.symbols)
        M = matrices_of(small, students.task.symbols)
        rows.append(
            {
                "seed": seed,
                "accuracy": member["accuracy"],
                "accuracy, pruned": accuracy_of(small, students.task),
                **structure(small, M, students.task.symbols),
            }
        )
        matrices.append(M)
        pruned.append(small)
    setting.tick(1, 1)
    numbers = numbers_on_accuracy(rows) + judge(rows)
    arrays = {
        "M": np.stack(matrices).astype(np.float32),
        **{f"pruned/{name}": np.asarray(array) for name, array in vars(pruned[0]).items()},
        "steps": students.run.steps,
        "losses": students.run.losses,
    }
    notes = ("M[seed, x, y] is the matrix that a pair (x, y) adds, [scores over y', query x'].",)
    seeds = tuple(range(len(rows)))
    return Outcome(
        tuple(numbers), tuple(rows), notes, seeds, students.steps, arrays, (students.run,)
    )


def judge(rows: list[dict[str, Any]]) -> list[Number]:
    """The paper's items, one number each."""

    def values(name: str) -> list[float]:
        return [row[name] for row in rows]

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
    """The same function, with the factor of each gate that reads x as W_in_x."""
    own = in_float64(model)
    reads_x = [np.linalg.norm(W[:, :symbols], axis=1) for W in (own.W_in_m, own.W_in_x)]
    reads_y = [np.linalg.norm(W[:, symbols:], axis=1) for W in (own.W_in_m, own.W_in_x)]
    exchange = (reads_x[0] * reads_y[1] > reads_x[1] * reads_y[0])[:, None]
    return eqx.tree_at(
        lambda one: (one.W_in_m, one.W_in_x),
        own,
        (
            np.where(exchange, own.W_in_x, own.W_in_m),
            np.where(exchange, own.W_in_m, own.W_in_x),
        ),
    )


def matrices_of(model: SideGatedRNN, symbols: int) -> np.ndarray:
    """M [x, y, y', x']: what the pair (x, y) adds to the map from query to scores, at λ = 1."""
    written = (model.W_in_m[:, symbols:][:, None, :] * model.W_in_x[:, :symbols][:, :, None]) + (
        model.W_in_x[:, symbols:][:, None, :] * model.W_in_m[:, :symbols][:, :, None]
    )
    # A token [x, y] also writes the squares of its own parts.
    for half, axis in ((slice(0, symbols), 2), (slice(symbols, None), 1)):
        own = model.W_in_m[:, half] * model.W_in_x[:, half]
        written = written + np.expand_dims(own, axis)
    return np.einsum("oi,ixy,iq->xyoq", model.D, written, model.W_side[:, :symbols])


def structure(model: SideGatedRNN, M: np.ndarray, symbols: int) -> dict[str, Any]:
    """The items of one student."""
    kind = kinds(np.asarray(model.decay))
    flat = M.reshape(-1, symbols, symbols)
    singular = np.linalg.svd(flat, compute_uv=False)
    highest = flat.reshape(len(flat), -1)
    place = np.argmax(highest, axis=1)
    x, y = np.divmod(np.arange(len(flat)), symbols)
    return {
        "neurons": model.neurons,
        "not memory": int(np.sum(kind != "memory")),
        "W_in_x reads x": share(model.W_in_x, slice(0, symbols)),
        "W_side reads x": share(model.W_side, slice(0, symbols)),
        "W_in_m reads y": share(model.W_in_m, slice(symbols, None)),
        "W_in_x and W_side": correlation(model.W_in_x[:, :symbols], model.W_side[:, :symbols]),
        "D and B": correlation(model.D.T, model.W_in_m[:, symbols:]),
        "second singular value": float(np.median(singular[:, 1] / top(singular[:, 0]))),
        "peak at (y, x)": float(np.mean(place == y * symbols + x)),
        "negative peak": float(np.median(-highest.min(axis=1) / top(highest.max(axis=1)))),
    }


def share(W: Any, half: slice) -> float:
    """Of a matrix's squared weights, those in some columns."""
    total = float(np.sum(W**2))
    return float(np.sum(W[:, half] ** 2)) / total if total else 0.0


def correlation(one: Any, other: Any) -> float:
    """How far the rows of two matrices point along the same lines, weighted by their lengths."""
    sizes = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    total = float(sizes.sum())
    return float(np.abs(np.sum(one * other, axis=1)).sum()) / total if total else 0.0
