"""Losses of trained students on fresh sequences."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from underhood.common.files import Json
from underhood.common.numbers import finite_or_none
from underhood.layers import parameter_count
from underhood.tasks import Task
from underhood.training.arrangement import common_shapes, numbers_by_kind, pad
from underhood.training.ensemble import Ensemble
from underhood.training.step import ALIVE, GroupState, outputs_of, with_teacher

FRESH_SEQUENCES = 2**14
AT_ONCE = 256


@eqx.filter_jit
def evaluate(
    student: PyTree, task: Task, *, key: PRNGKeyArray, sequences: int = FRESH_SEQUENCES
) -> dict[str, Float[Array, ""]]:
    """Return mean scores on fresh sequences: `loss`, and what else the task measures.

    Where that is more precise, the loss is a difference plus a known number: the student is
    compared on the same sequences with the task's best attention, whose loss is known exactly.
    The expected value is the same, and the sampling error that both share cancels. In in-context
    regression this is nearly all of the error.
    """
    at_once = min(sequences, AT_ONCE)
    rounds = -(-sequences // at_once)
    reference = task.best_attention()

    def scores_of(key: PRNGKeyArray) -> dict[str, Array]:
        batch = task.sample(key, at_once)
        scores = task.scores(outputs_of(student, task, batch.inputs), batch.targets)
        known = task.losses(outputs_of(reference, task, batch.inputs), batch.targets)
        return {**scores, "difference": scores["loss"] - known}

    scores = jax.lax.map(scores_of, jax.random.split(key, rounds))
    difference = scores.pop("difference")
    means = {name: jnp.mean(values) for name, values in scores.items()}
    # A reference that shares no luck with the student would only add its own rounding.
    helps = jnp.var(difference) < 0.5 * jnp.var(scores["loss"])
    compared = jnp.mean(difference) + task.best_loss
    return means | {"loss": jnp.where(helps, compared, means["loss"])}


def evaluate_members(ensemble: Ensemble, states: Sequence[GroupState]) -> list[Json]:
    """Return a row per member: seed, width, axes, and scores of its last state."""
    test_key, validation_key = jax.random.split(jax.random.fold_in(ensemble.key, 2**31 - 1))
    # Padded where that is exact, so that few programs evaluate all students.
    models: dict[int, PyTree] = {}
    for numbers in numbers_by_kind(ensemble.students).values():
        students = [ensemble.students[number] for number in numbers]
        shapes = common_shapes([parts.shapes for parts in students])
        for number, parts in zip(numbers, students, strict=True):
            models[number] = parts.joined(pad(states[number].weights, shapes))
    rows = []
    for number, (member, state) in enumerate(zip(ensemble.members, states, strict=True)):
        model = models[number]
        task = with_teacher(ensemble.task, ensemble.teacher_of(member))
        scores = evaluate(model, task, key=test_key)
        validation = task.validation()
        if validation is not task:
            more = evaluate(model, validation, key=validation_key)
            scores |= {f"validation_{name}": value for name, value in more.items()}
        finite = {name: finite_or_none(float(value)) for name, value in scores.items()}
        loss = finite["loss"]
        # A task with nothing to predict has no scale.
        normalised = loss / task.scale if loss is not None and task.scale > 0 else None
        measured = finite | {"normalised_loss": normalised}
        lost_at = None if int(state.lost_at) == ALIVE else int(state.lost_at)
        rows.append(
            {"seed": member.seed, "width": member.width, **dict(member.axes)}
            | (measured if lost_at is None else dict.fromkeys(measured))
            | {"parameters": parameter_count(state.weights), "lost_at": lost_at}
        )
    return rows
