"""What the two recall experiments share."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from underhood.experiments.running.rules import DIFFERS, NOT_JUDGED, REPRODUCED, Number
from underhood.tasks import AssociativeRecall
from underhood.training import evaluate


def accuracy_of(model: Any, task: AssociativeRecall) -> float:
    """The share of right answers on fresh sequences."""
    single = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), model)
    return float(evaluate(single, task, key=jax.random.key(98))["accuracy"])


def numbers_on_accuracy(rows: list[dict[str, Any]]) -> list[Number]:
    """Every student is right on all of 16,384 fresh sequences; pruned ones too."""
    found = []
    for name in ("accuracy", "accuracy, pruned"):
        values = [0.0 if row[name] is None else row[name] for row in rows]
        lowest = min(values)
        verdict = REPRODUCED if lowest == 1.0 else DIFFERS
        verdict = verdict if len(values) >= 4 else NOT_JUDGED
        found.append(Number(name, lowest, 1, "lowest over seeds = 1", verdict, len(values)))
    return found


def top(values: np.ndarray | np.floating) -> np.ndarray:
    """Values to divide by."""
    return np.where(values > 0, values, 1e-300)
