"""What a run trains: its members, their students before the first step, the task and the recipe."""

import dataclasses
import inspect
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

from underhood.common.arrays import key_problems, typed_key
from underhood.common.errors import BadInput, kind_of, reason_of, refuse, with_article
from underhood.layers import LinearAttention
from underhood.layers.files import KINDS
from underhood.layers.modern.mixer import ModernLayer
from underhood.tasks import Task
from underhood.training.device import precision_of
from underhood.training.members import TEACHER_AXIS, Axes, Member, combine
from underhood.training.recipes import Recipe
from underhood.training.shrinking.plan import Shrinking
from underhood.training.shrinking.settled_loss import SettledLoss

# make_student(width, *, key) returns a student: a module (a pytree of arrays) that can be called.
StudentMaker = Callable[..., PyTree]
MAKER_WANTED = "make_student must be a function make_student(width, *, key)"
# The shapes of a student's trained arrays.
Shapes = tuple[tuple[int, ...], ...]
# Points of a loss curve.
WINDOWS = 500
# What checkpoints can hold and optimisers can be trusted with.
PRECISIONS = ("float32", "float64", "complex64", "complex128")


@dataclass(frozen=True)
class SplitStudent:
    """A student as arrays that are trained, arrays that are not (whole numbers), and the rest."""

    weights: PyTree
    fixed: PyTree
    static: PyTree

    @classmethod
    def of(cls, student: PyTree) -> "SplitStudent":
        arrays, static = eqx.partition(student, eqx.is_array)
        weights, fixed = eqx.partition(jax.tree.map(jnp.asarray, arrays), eqx.is_inexact_array)
        return cls(weights, fixed, static)

    @property
    def shapes(self) -> Shapes:
        return tuple(tuple(leaf.shape) for leaf in jax.tree.leaves(self.weights))

    def joined(self, weights: PyTree = None) -> PyTree:
        """Return the student again, with other weights if they are given."""
        return eqx.combine(self.weights if weights is None else weights, self.fixed, self.static)

    def kind(self) -> Hashable:
        """Return a value that is equal for students that one program can train."""
        leaves, structure = jax.tree.flatten((self.weights, self.fixed))
        statics, frame = jax.tree.flatten(self.static)
        dtypes = tuple((leaf.dtype, leaf.ndim) for leaf in leaves)
        names = tuple(leaf if isinstance(leaf, str | int | float) else id(leaf) for leaf in statics)
        fixed = tuple(leaf.shape for leaf in jax.tree.leaves(self.fixed))
        # Students of our own kinds may be padded to one shape.
        shapes = None if may_be_padded(self.joined()) else self.shapes
        return structure, frame, dtypes, names, fixed, shapes


@dataclass(frozen=True, eq=False)
class Ensemble:
    """All members of a run before their first step.

    teachers        of the teacher axis; none without that axis
    task            in the recipe's precision, at its own length
    shrunk          the plan by which students of a finished run became these
    settled_losses  one per member where they take the place of batches; otherwise none
    """

    make_student: StudentMaker
    members: tuple[Member, ...]
    teachers: tuple[LinearAttention, ...]
    students: tuple[SplitStudent, ...]
    sequence_keys: tuple[PRNGKeyArray, ...]
    task: Task
    recipe: Recipe
    key: PRNGKeyArray
    shrunk: Shrinking | None = None
    settled_losses: tuple[SettledLoss, ...] = ()

    @property
    def window(self) -> int:
        """Steps that one point of a loss curve is the mean of."""
        return -(-self.recipe.steps // WINDOWS)

    @property
    def windows(self) -> int:
        return -(-self.recipe.steps // self.window)

    def teacher_of(self, member: Member) -> LinearAttention | None:
        return self.teachers[int(member.get(TEACHER_AXIS, 0))] if self.teachers else None


def make_ensemble(
    make_student: StudentMaker,
    task: Task,
    recipe: Recipe,
    *,
    widths: int | Iterable[int],
    key: PRNGKeyArray,
    seeds: int | Iterable[int] = 1,
    axes: Axes | None = None,
) -> Ensemble:
    """Make every member's student, and refuse what cannot be trained; see `train`."""
    if not callable(make_student) or isinstance(make_student, eqx.Module):
        raise BadInput(f"train: {MAKER_WANTED}.")
    check_task_and_recipe(task, recipe, about="train")
    if getattr(jax.config, "jax_disable_jit", False):
        raise BadInput("train compiles its programs and cannot run under jax.disable_jit.")
    refuse(key_problems(key), about="train")
    key = typed_key(key)
    with precision_of(recipe.precision):
        members, teachers = combine(seeds, widths, axes, task)
        task, teachers = in_precision(recipe.precision, (task, teachers))
        # A key for the first weights and a key for the sequences.
        keys = [jax.random.split(jax.random.fold_in(key, member.seed)) for member in members]
        shown = at_length(task, recipe)
        students = tuple(
            SplitStudent.of(make_checked(make_student, member.width, weight_key, shown))
            for member, (weight_key, _) in zip(members, keys, strict=True)
        )
    sequence_keys = tuple(sequence_key for _, sequence_key in keys)
    return Ensemble(make_student, members, teachers, students, sequence_keys, task, recipe, key)


def check_task_and_recipe(task: PyTree, recipe: PyTree, *, about: str) -> None:
    for name, value, kind, advice in (
        ("task", task, Task, "one of underhood.tasks"),
        ("recipe", recipe, Recipe, "Recipe.fast(steps) or Recipe.paper()"),
    ):
        if not isinstance(value, kind):
            raise BadInput(f"{about}: the {name} is {kind_of(value)}; use {advice}.")


def at_length(task: Task, recipe: Recipe) -> Task:
    return task if recipe.length is None else task.with_length(recipe.length)


def in_precision(precision: str, tree: PyTree) -> PyTree:
    """Return a task with its arrays in the training's precision, whatever the caller's default."""

    def cast(leaf: PyTree) -> PyTree:
        real = eqx.is_array(leaf) and np.issubdtype(leaf.dtype, np.floating)
        return np.asarray(leaf, precision) if real and leaf.ndim else leaf

    return jax.tree.map(cast, tree)


def is_ours(student: PyTree) -> bool:
    """Tell whether a student is made of our own layers throughout."""
    if isinstance(student, eqx.Module):
        fields = (getattr(student, field.name) for field in dataclasses.fields(student))
        return KINDS.get(type(student).__name__) is type(student) and all(map(is_ours, fields))
    return all(map(is_ours, student)) if isinstance(student, tuple) else True


def may_be_padded(student: PyTree) -> bool:
    """Tell whether zero neurons leave a student's function as it is."""
    parts = jax.tree.leaves(student, is_leaf=lambda part: isinstance(part, ModernLayer))
    return is_ours(student) and not any(isinstance(part, ModernLayer) for part in parts)


def make_checked(make_student: StudentMaker, width: int, key: PRNGKeyArray, task: Task) -> PyTree:
    """Make one student; refuse it with one line if the task cannot use it."""
    try:
        inspect.signature(make_student).bind(width, key=key)
    except TypeError as error:
        raise BadInput(f"train: {MAKER_WANTED}, but {error}.") from None
    except ValueError:
        # Some callables of C have no signature to check.
        pass
    student = make_student(width, key=key)
    weights = [leaf for leaf in jax.tree.leaves(student) if eqx.is_inexact_array(leaf)]
    if not callable(student) or not weights:
        kind = type(student).__name__
        wanted = "a module (a pytree) with arrays of weights and a call"
        raise BadInput(f"train: make_student gave {with_article(kind)}; give {wanted}.")
    if others := [leaf.dtype for leaf in weights if str(leaf.dtype) not in PRECISIONS]:
        raise BadInput(f"train: the student holds {others[0]} weights; use float32.")
    sequence = jax.ShapeDtypeStruct((task.time, task.d_in), jnp.result_type(float))
    try:
        outputs = eqx.filter_eval_shape(student, sequence)
    except BadInput:
        raise
    except Exception as error:
        given = f"one sequence [time, d_in] = {sequence.shape}"
        raise BadInput(f"train: the student fails on {given}: {reason_of(error)}") from error
    if not isinstance(outputs, jax.ShapeDtypeStruct):
        kind = type(outputs).__name__
        raise BadInput(
            f"train: the student returns {with_article(kind)}; return one array [time, d_out]."
        )
    if outputs.shape != (task.time, task.d_out):
        got = f"on a sequence {sequence.shape} the student gives {outputs.shape}"
        wanted = f"the task wants {(task.time, task.d_out)}"
        advice = f"give the student {task.d_in} inputs and {task.d_out} outputs"
        raise BadInput(f"train: {got}, and {wanted}; {advice}.")
    return student
