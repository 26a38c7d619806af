"""One program that advances a group of members: every step on the device, none on the host.

A step draws a batch, takes the gradient and updates the weights, for all members by vmap. Steps
run in a loop whose ends are arguments. So one compiled program serves every chunk, and where a run
is cut into chunks cannot change a bit of the result. The first steps of a recipe (`Recipe.first`)
run the program of the whole recipe.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from underhood.layers import GatedRNN, LinearAttention, batch_outputs, last_outputs
from underhood.layers.batches import outputs_on_data
from underhood.layers.kernels.choice import KERNELS, default_backend
from underhood.layers.kernels.gated_step import (
    GateWeights,
    registered_target,
    step_loss,
    step_sizes,
)
from underhood.tasks import Task, TeacherStudent
from underhood.tasks.task import Batch
from underhood.training.recipes import Recipe
from underhood.training.shrinking.settled_loss import SettledLoss

ALIVE = -1


class GroupConstants(NamedTuple):
    """What a group's members have and keep; leaves are [members, …].

    settled_loss  takes the place of batches; None: a batch is drawn at every step
    """

    fixed: PyTree
    mask: PyTree
    numbers: dict[str, Float[Array, " members"]]
    key: PRNGKeyArray
    teacher: PyTree
    settled_loss: SettledLoss | None = None


class GroupState(NamedTuple):
    """What changes from step to step; leaves are [members, …]."""

    weights: PyTree
    moments: PyTree
    lost_at: Int[Array, "*members"]
    curve: Float[Array, "*members windows"]


# advance(constants, state, start, stop, window)
Advance = Callable[[GroupConstants, GroupState, PyTree, PyTree, PyTree], GroupState]


def outputs_of(student: PyTree, task: Task, inputs: Array, *, backend: str | None = None) -> Array:
    """Return the outputs that the task's loss reads: all of them, or the last ones."""
    return (last_outputs if task.reads_last else batch_outputs)(student, inputs, backend=backend)


def batch_loss(
    student: PyTree, task: Task, batch: Batch, *, backend: str | None = None
) -> Float[Array, ""]:
    """Return the task's loss on a batch, by a kernel where there is one."""
    if has_step_kernel(student, task, batch, backend):
        return step_loss(gate_weights(student), batch.inputs, batch.targets)
    which = last_outputs if task.reads_last else batch_outputs
    outputs = outputs_on_data(which, student, batch.inputs, backend=backend)
    return task.loss(outputs, batch.targets)


def has_step_kernel(student: PyTree, task: Task, batch: Batch, backend: str | None) -> bool:
    """Tell whether a kernel computes the loss: of gated RNNs in float32 on teacher-student."""
    if (backend or default_backend()) != KERNELS:
        return False
    if type(student) is not GatedRNN or type(task) is not TeacherStudent:
        return False
    arrays = [*jax.tree.leaves(student), batch.inputs, batch.targets]
    if any(array.dtype != jnp.float32 for array in arrays):
        return False
    sizes = step_sizes(gate_weights(student), batch.inputs)
    return sizes is not None and registered_target(sizes) is not None


def gate_weights(student: GatedRNN) -> GateWeights:
    fields = ((name, getattr(student, name)) for name in GateWeights._fields)
    return GateWeights(**{name: jnp.asarray(array) for name, array in fields})


def advance_program(
    static: PyTree, task: Task, recipe: Recipe, *, backend: str | None = None
) -> Advance:
    """Return `advance`, which runs steps start to stop−1 and adds each loss to curve[step//window].

    static   what the group's students hold besides arrays
    backend  "cpu", "gpu", "tpu" or "nvidia"; by default the one that JAX runs on, and on an
             NVIDIA GPU the one with kernels (`layers/kernels/choice.py`)
    """
    recipe = recipe.whole
    direction_of = recipe.optimiser.direction()

    def member_step(
        constants: GroupConstants, state: GroupState, step: Int[Array, ""], window: Int[Array, ""]
    ) -> GroupState:
        member_task = with_teacher(task, constants.teacher)
        step_key = jax.random.fold_in(constants.key, step)

        def loss_of(weights: PyTree) -> Float[Array, ""]:
            student = eqx.combine(weights, constants.fixed, static)
            if constants.settled_loss is not None:
                return constants.settled_loss(student)
            batch = member_task.sample(step_key, recipe.batch)
            return batch_loss(student, member_task, batch, backend=backend)

        loss, slopes = jax.value_and_grad(loss_of)(state.weights)
        # JAX's gradient by a complex weight is the conjugate of the way up.
        slopes = jax.tree.map(jnp.conj, slopes)
        if constants.mask is not None:
            slopes = jax.tree.map(jnp.multiply, slopes, constants.mask)
        norm = jnp.sqrt(sum(jnp.vdot(leaf, leaf).real for leaf in jax.tree.leaves(slopes)))
        if recipe.clip is not None:
            shrink = jnp.minimum(1.0, recipe.clip / jnp.maximum(norm, 1e-30))
            slopes = jax.tree.map(lambda leaf: leaf * shrink, slopes)
        progress = step.astype(loss.dtype) / recipe.steps
        rate = constants.numbers["learning_rate"] * recipe.schedule(progress)
        fading = constants.numbers["weight_decay"] * recipe.decay_schedule(progress)
        if recipe.decay == "coupled":
            slopes = add_decay(slopes, state.weights, fading, recipe.spared)
        directions, moments = direction_of.update(slopes, state.moments, state.weights)
        lost = {"coupled": 0.0 * fading, "decoupled": fading, "optax": rate * fading}[recipe.decay]
        weights = updated(state.weights, directions, rate, lost, recipe.spared)

        # A member whose loss or gradient is no longer a number stops where it was; the others
        # share its program but none of its arithmetic.
        healthy = (state.lost_at == ALIVE) & jnp.isfinite(loss) & jnp.isfinite(norm)
        new, old = (weights, moments), (state.weights, state.moments)
        weights, moments = jax.tree.map(lambda *both: jnp.where(healthy, *both), new, old)
        lost_at = jnp.where((state.lost_at == ALIVE) & ~healthy, step, state.lost_at)
        curve = state.curve.at[step // window].add(jnp.where(healthy, loss, jnp.nan))
        return GroupState(weights, moments, lost_at.astype(jnp.int32), curve)

    def advance(
        constants: GroupConstants, state: GroupState, start: PyTree, stop: PyTree, window: PyTree
    ) -> GroupState:
        every_member = jax.vmap(member_step, in_axes=(0, 0, None, None))
        return jax.lax.fori_loop(
            start, stop, lambda step, state: every_member(constants, state, step, window), state
        )

    return advance


def with_teacher(task: Task, teacher: LinearAttention | None) -> Task:
    return task if teacher is None else eqx.tree_at(lambda new: new.attention, task, teacher)


def add_decay(slopes: PyTree, weights: PyTree, fading: Array, spared: tuple[str, ...]) -> PyTree:
    """Return slopes + fading·w; fields named in `spared` do not fade."""

    def new_slope(path: PyTree, slope: Array, weight: Array) -> Array:
        return slope if is_spared(path, spared) else slope + fading.astype(slope.dtype) * weight

    return jax.tree_util.tree_map_with_path(new_slope, slopes, weights)


def updated(
    weights: PyTree, directions: PyTree, rate: Array, fading: Array, spared: tuple[str, ...]
) -> PyTree:
    """Return w − rate·direction − fading·w; fields named in `spared` do not fade."""

    def new_weight(path: PyTree, weight: Array, direction: Array) -> Array:
        kept = weight if is_spared(path, spared) else weight * (1 - fading).astype(weight.dtype)
        return kept - (rate * direction).astype(weight.dtype)

    return jax.tree_util.tree_map_with_path(new_weight, weights, directions)


def is_spared(path: PyTree, spared: tuple[str, ...]) -> bool:
    """Tell whether the field at the end of a path is spared by weight decay."""
    return bool(path) and getattr(path[-1], "name", None) in spared
