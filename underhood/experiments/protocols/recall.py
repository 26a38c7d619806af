"""What the two recall experiments share.

The paper gives neither a width nor a number of updates, and describes one network. Its sequence can
be read in two ways: pairs alone, or with a token [y, x] between two pairs. At paper scale both are
trained, at several widths. The medians of the widest students on pairs alone are judged. How many
students of each width match the description in every item is shown beside them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from underhood.analysis import prune
from underhood.common.files import Json
from underhood.experiments.protocols.students import Students, column
from underhood.experiments.running.rules import judged, ours, shown
from underhood.experiments.running.setting import Setting
from underhood.layers import GatedRNN, SideGatedRNN
from underhood.results.files import Number
from underhood.tasks import AssociativeRecall
from underhood.training import evaluate

Recalling = TypeVar("Recalling", bound=GatedRNN | SideGatedRNN)
PRUNED_BY_INFLUENCE = (
    "Neurons that hardly change the function are removed (`prune`), here also where their weights "
    "are not zero; the paper removes zeros."
)
# Items of the paper's description, each with the least value that matches it.
Items = Mapping[str, float]


@dataclass(frozen=True)
class PrunedStudents(Generic[Recalling]):
    """Pruned networks and a row for each; `judged` are the rows whose medians are judged."""

    networks: list[Recalling]
    rows: list[Json]
    judged: list[Json]

    def matching(self, items: Items) -> list[Number]:
        """Return for every format and width how many of the students match in every item."""
        numbers = []
        for sequence, width in dict.fromkeys((row["sequence"], row["width"]) for row in self.rows):
            group = [
                row for row in self.rows if (row["sequence"], row["width"]) == (sequence, width)
            ]
            right = sum(all(row[name] >= least for name, least in items.items()) for row in group)
            name, count = f"students that match, {sequence}, width {width}", len(group)
            numbers.append(shown(name, f"{right} of {count}", seeds=count))
        return numbers


def prune_students(
    groups: Mapping[str, Students[AssociativeRecall]],
    setting: Setting,
    tidy: Callable[[Recalling, AssociativeRecall], Recalling],
    describe: Callable[[Recalling, AssociativeRecall], Json],
) -> PrunedStudents[Recalling]:
    """Prune the students of every format; return the networks, and a row for each with accuracies.

    tidy      changes the pruned network without changing its function
    describe  returns more columns of a row
    """
    networks, rows = [], []
    for place, (sequence, students) in enumerate(groups.items()):
        part = setting.part(place / len(groups), (place + 1) / len(groups))
        task = students.task
        for _, model, member in students.visit(part):
            network = tidy(prune(model, time=task.time).model, task)
            row = {
                "sequence": sequence,
                "width": member["width"],
                "seed": member["seed"],
                "accuracy": member["accuracy"],
                "accuracy, pruned": accuracy_of(network, task),
            }
            networks.append(network)
            rows.append(row | describe(network, task))
    first = [row for row in rows if row["sequence"] == next(iter(groups))]
    widest = max(column(first, "width"))
    return PrunedStudents(networks, rows, [row for row in first if row["width"] == widest])


def pair_columns(task: AssociativeRecall) -> tuple[np.ndarray, np.ndarray]:
    """Return the inputs that hold x and those that hold y in a token [x, y]."""
    symbols = np.arange(task.symbols)
    # With in-between tokens a slot holds x or y, the x first.
    return symbols, symbols + task.d_in - task.symbols


def accuracy_of(model: GatedRNN | SideGatedRNN, task: AssociativeRecall) -> float:
    """Return the share of right answers on fresh sequences."""
    single = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), model)
    return float(evaluate(single, task, key=jax.random.key(98))["accuracy"])


def judge_accuracy(rows: list[Json]) -> list[Number]:
    """Judge that every student, pruned or not, is right on all of 16,384 fresh sequences."""
    columns = ("accuracy", "accuracy, pruned")
    lowest = {name: min(row[name] or 0.0 for row in rows) for name in columns}
    return [
        ours(
            judged(name, value, "lowest over seeds = 1", value == 1.0, paper=None, seeds=len(rows))
        )
        for name, value in lowest.items()
    ]


def divisor(values: np.ndarray | np.floating) -> np.ndarray:
    """Return values to divide by: a tiny number where they are not positive."""
    return np.where(values > 0, values, 1e-300)
