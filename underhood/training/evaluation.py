"""Losses of trained students on fresh sequences."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from underhood.layers import batch_outputs, last_outputs
from underhood.tasks import Task
from underhood.training.step import outputs_of

SEQUENCES = 2**14
AT_ONCE = 256


@eqx.filter_jit
def evaluate(
    student: Any, task: Task, *, key: PRNGKeyArray, sequences: int = SEQUENCES
) -> dict[str, Float[Array, ""]]:
    """Mean scores on fresh sequences: `loss`, and what else the task measures.

    Where that is more precise, the loss is a difference plus a known number: on the same sequences
    the student is compared with the task's best attention, whose loss is known exactly. That
    leaves the mean what it is and removes the luck of the draw that both share, which for
    in-context regression is nearly all of it.
    """
    at_once = min(sequences, AT_ONCE)
    rounds = -(-sequences // at_once)
    reference = task.best_attention()
    read = last_outputs if task.reads_last else batch_outputs

    def one_round(key: PRNGKeyArray) -> dict[str, Array]:
        batch = task.sample(key, at_once)
        scores = task.scores(outputs_of(student, task, batch.inputs), batch.targets)
        return {
            **scores,
            "difference": scores["loss"]
            - task.losses(read(reference, batch.inputs), batch.targets),
        }

    scores = jax.lax.map(one_round, jax.random.split(key, rounds))
    difference = scores.pop("difference")
    means = {name: jnp.mean(values) for name, values in scores.items()}
    # A reference that shares no luck with the student would only add its own rounding.
    helps = jnp.var(difference) < 0.5 * jnp.var(scores["loss"])
    compared = jnp.mean(difference) + task.best_loss
    return means | {"loss": jnp.where(helps, compared, means["loss"])}
