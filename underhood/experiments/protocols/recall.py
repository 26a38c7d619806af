"""What the two recall experiments share."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from underhood.analysis import prune
from underhood.common.files import Json
from underhood.experiments.protocols.students import Students
from underhood.experiments.running.rules import judged
from underhood.experiments.running.setting import Setting
from underhood.layers import GatedRNN, SideGatedRNN
from underhood.results.files import Number
from underhood.tasks import AssociativeRecall
from underhood.training import evaluate

Recalling = TypeVar("Recalling", bound=GatedRNN | SideGatedRNN)


def prune_students(
    students: Students[AssociativeRecall],
    setting: Setting,
    tidy: Callable[[Recalling], Recalling],
    describe: Callable[[Recalling], Json],
) -> tuple[list[Recalling], list[Json]]:
    """Prune every student; return the networks, and a row for each with accuracies.

    tidy      changes the pruned network without changing its function
    describe  returns more columns of a row
    """
    task, networks, rows = students.task, [], []
    for seed, model, member in students.visit(setting):
        network = tidy(prune(model, time=task.time).model)
        before, after = member["accuracy"], accuracy_of(network, task)
        row = {"seed": seed, "accuracy": before, "accuracy, pruned": after}
        networks.append(network)
        rows.append(row | describe(network))
    return networks, rows


def accuracy_of(model: GatedRNN | SideGatedRNN, task: AssociativeRecall) -> float:
    """Return the share of right answers on fresh sequences."""
    single = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), model)
    return float(evaluate(single, task, key=jax.random.key(98))["accuracy"])


def judge_accuracy(rows: list[Json]) -> list[Number]:
    """Judge that every student, pruned or not, is right on all of 16,384 fresh sequences."""
    numbers = []
    for name in ("accuracy", "accuracy, pruned"):
        lowest = min(row[name] or 0.0 for row in rows)
        rule = "lowest over seeds = 1"
        numbers.append(judged(name, lowest, rule, lowest == 1.0, paper=1, seeds=len(rows)))
    return numbers


def divisor(values: np.ndarray | np.floating) -> np.ndarray:
    """Return values to divide by: a tiny number where they are not positive."""
    return np.where(values > 0, values, 1e-300)
