"""Losses of trained students on fresh sequences."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from underhood.layers import batch_outputs, last_outputs
from underhood.tasks import Task
from underhood.training.program import outputs_of

SEQUENCES = 2**14
AT_ONCE = 256


@eqx.filter_jit
def evaluate(
    student: Any, task: Task, *, key: PRNGKeyArray, sequences: int = SEQUENCES
) -> dict[str, Float[Array, ""]]:
    """Mean scores on fresh sequences: `loss`, and what else the task measures.

    The loss is a difference plus a known number: on the same sequences the student is compared
    with the task's best attention, whose loss is known exactly. That leaves the mean what it is
    and removes the luck of the draw that both share, which for in-context regression is nearly all
    of it.
    """
    rounds = max(sequences // AT_ONCE, 1)
    reference = task.best_attention()
    read = last_outputs if task.reads_last else batch_outputs

    def one_round(key: PRNGKeyArray) -> dict[str, Array]:
        batch = task.sample(key, AT_ONCE)
        scores = task.scores(outputs_of(student, task, batch.inputs), batch.targets)
        by_reference = task.losses(read(reference, batch.inputs), batch.targets)
        scores["loss"] = scores["loss"] - by_reference
        return {name: jnp.mean(values) for name, values in scores.items()}

    means = jax.lax.map(one_round, jax.random.split(key, rounds))
    scores = {name: jnp.mean(values) for name, values in means.items()}
    # The mean over chunks of a difference may dip below zero where the exact loss is zero.
    scores["loss"] = scores["loss"] + task.best_loss
    return scores
