"""One program that advances a group of members: every step on the device, none on the host.

A step draws a batch, takes the gradient and updates the weights, for all members by vmap. Steps
run in a loop whose ends are arguments, so one compiled program serves every chunk, and where a
run is cut into chunks cannot change a bit of the result. `Recipe.first`
gives the first steps of a recipe, with the program of all.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from underhood.layers import batch_outputs, last_outputs
from underhood.tasks import Task
from underhood.training.recipes import Recipe

ALIVE = -1


class Given(NamedTuple):
    """What a group's members have and keep; leaves are [members, …]."""

    fixed: Any
    mask: Any
    numbers: dict[str, Float[Array, " members"]]
    key: PRNGKeyArray
    teacher: Any


class State(NamedTuple):
    """What changes from step to step; leaves are [members, …]."""

    weights: Any
    moments: Any
    lost_at: Int[Array, "*members"]
    curve: Float[Array, "*members windows"]


Advance = Callable[[Given, State, Any, Any, Any], State]


def outputs_of(
    student: Any,
    task: Task,
    inputs: Float[Array, "batch time d_in"],
    *,
    backend: str | None = None,
) -> Array:
    """What the task's loss wants to see: all outputs, or the last ones."""
    return (last_outputs if task.reads_last else batch_outputs)(student, inputs, backend=backend)


def first_state(weights: Any, recipe: Recipe, windows: int) -> State:
    """One member before its first step."""
    moments = recipe.optimiser.direction().init(weights)
    return State(weights, moments, jnp.asarray(ALIVE, jnp.int32), jnp.zeros(windows))


def advance_program(
    static: Any, task: Task, recipe: Recipe, *, backend: str | None = None
) -> Advance:
    """The function that takes a group from one step to another, so many to a point of its curve."""
    recipe = recipe.whole
    direction_of = recipe.optimiser.direction()

    def member_step(
        given: Given, state: State, step: Int[Array, ""], window: Int[Array, ""]
    ) -> State:
        now = with_teacher(task, given.teacher)
        batch = now.sample(jax.random.fold_in(given.key, step), recipe.batch)

        def loss_of(weights: Any) -> Float[Array, ""]:
            student = eqx.combine(weights, given.fixed, static)
            outputs = outputs_of(student, now, batch.inputs, backend=backend)
            return now.loss(outputs, batch.targets)

        loss, slopes = jax.value_and_grad(loss_of)(state.weights)
        # JAX's gradient by a complex weight is the conjugate of the way up.
        slopes = jax.tree.map(jnp.conj, slopes)
        if given.mask is not None:
            slopes = jax.tree.map(jnp.multiply, slopes, given.mask)
        norm = jnp.sqrt(sum(jnp.vdot(leaf, leaf).real for leaf in jax.tree.leaves(slopes)))
        if recipe.clip is not None:
            shrink = jnp.minimum(1.0, recipe.clip / jnp.maximum(norm, 1e-30))
            slopes = jax.tree.map(lambda leaf: leaf * shrink, slopes)
        directions, moments = direction_of.update(slopes, state.moments, state.weights)
        progress = step.astype(loss.dtype) / recipe.steps
        rate = given.numbers["learning_rate"] * recipe.schedule(progress)
        fading = given.numbers["weight_decay"] * recipe.decay_schedule(progress)
        weights = updated(state.weights, directions, rate, fading, recipe.spared)

        # A member whose loss or gradient is no longer a number stops where it was; the others
        # share its program but none of its arithmetic.
        healthy = (state.lost_at == ALIVE) & jnp.isfinite(loss) & jnp.isfinite(norm)
        weights, moments = jax.tree.map(
            lambda new, old: jnp.where(healthy, new, old),
            (weights, moments),
            (state.weights, state.moments),
        )
        lost_at = jnp.where((state.lost_at == ALIVE) & ~healthy, step, state.lost_at)
        curve = state.curve.at[step // window].add(jnp.where(healthy, loss, jnp.nan))
        return State(weights, moments, lost_at.astype(jnp.int32), curve)

    def advance(given: Given, state: State, start: Any, stop: Any, window: Any) -> State:
        every_member = jax.vmap(member_step, in_axes=(0, 0, None, None))
        return jax.lax.fori_loop(
            start, stop, lambda step, state: every_member(given, state, step, window), state
        )

    return advance


def with_teacher(task: Task, teacher: Any) -> Any:
    """The task with a member's own teacher, if it has one."""
    if teacher is None:
        return task
    return eqx.tree_at(lambda one: one.attention, task, teacher)


def updated(
    weights: Any, directions: Any, rate: Array, fading: Array, spared: tuple[str, ...]
) -> Any:
    """w − rate·direction − fading·w, where weight decay spares the fields of some names."""

    def one(path: Any, weight: Array, direction: Array) -> Array:
        name = getattr(path[-1], "name", None) if path else None
        kept = weight if name in spared else weight * (1 - fading).astype(weight.dtype)
        return kept - (rate * direction).astype(weight.dtype)

    return jax.tree_util.tree_map_with_path(one, weights, directions)
