"""Smaller students with the same function, up to a tolerance, on sequences of their task.

Neurons and gate outputs are ranked by how far the outputs move without them. As many of the least
influential go as the tolerance allows. Then decays near 0 and 1 become 0 and 1.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray, PyTree

from underhood.common.arrays import in_float64
from underhood.common.decay import NU_ONE, NU_ZERO
from underhood.common.errors import BadInput, with_article
from underhood.common.files import Json
from underhood.common.threads import one_thread
from underhood.layers import GatedRNN, SideGatedRNN
from underhood.tasks import Task
from underhood.training.shrinking.plan import Shrinking

# Sequences that influences and changes are measured on.
MEASURED_SEQUENCES = 64
# Widths are rounded up to a multiple of this, so that runs share compiled programs.
WIDTH_STEP = 4
INNER = ("W_in_m", "W_in_x", "nu")
Shrinkable = GatedRNN | SideGatedRNN


@dataclass(frozen=True)
class Activity:
    """What a student does on some sequences, in float64.

    states  of each token [tokens, hidden]
    us      its inputs [tokens, d_in]; a side gate reads them
    """

    student: Shrinkable
    states: Float[np.ndarray, "tokens hidden"]
    us: Float[np.ndarray, "tokens d_in"]

    @classmethod
    def of(cls, student: Shrinkable, inputs: np.ndarray, *, last: bool) -> "Activity":
        """Run a student on sequences [batch, time, d_in]; `last`: only the last token counts."""
        student = in_float64(student)
        written = bilinear_writing(student, inputs)
        decay = np.asarray(student.decay)
        states = np.zeros_like(written)
        state = np.zeros_like(written[:, 0])
        for token in range(written.shape[1]):
            state = decay * state + written[:, token]
            states[:, token] = state
        if last:
            states, inputs = states[:, -1:], inputs[:, -1:]
        return cls(student, states.reshape(-1, len(decay)), inputs.reshape(-1, inputs.shape[-1]))

    def outputs(self, neurons: np.ndarray, gates: np.ndarray) -> np.ndarray:
        """Return the outputs [tokens, d_out] of some neurons and gate outputs alone."""
        states, student = self.states[:, neurons], self.student
        if isinstance(student, SideGatedRNN):
            return (self.us @ student.W_side[neurons].T * states) @ student.D[:, neurons].T
        m, x = (W[gates][:, neurons] for W in (student.W_out_m, student.W_out_x))
        return ((states @ m.T) * (states @ x.T)) @ student.D[:, gates].T

    def influences(self) -> tuple[np.ndarray, np.ndarray]:
        """Return how far the outputs move, squared, without each neuron and each gate output."""
        states, student = self.states, self.student
        if isinstance(student, SideGatedRNN):
            gated = np.mean((self.us @ student.W_side.T * states) ** 2, axis=0)
            moved = gated * np.sum(student.D**2, axis=0)
            return moved, moved
        m, x = student.W_out_m, student.W_out_x
        left, right = states @ m.T, states @ x.T
        gates = np.mean((left * right) ** 2, axis=0) * np.sum(student.D**2, axis=0)
        neurons = np.zeros(states.shape[1])
        for row in student.D:
            # (m·h)(x·h) without neuron i loses h_i (m_i (x·h) + x_i (m·h)) − m_i x_i h_i².
            slope = (left * row) @ x + (right * row) @ m
            neurons += np.mean((states * slope - states**2 * (row @ (m * x))) ** 2, axis=0)
        return neurons, gates


def bilinear_writing(student: Shrinkable, inputs: np.ndarray) -> np.ndarray:
    """Return what the input gate writes at every token [batch, time, hidden]."""
    inputs = np.asarray(inputs, float)
    if isinstance(student, GatedRNN):
        inputs = np.concatenate([inputs, np.ones_like(inputs[..., :1])], axis=-1)
    return (inputs @ student.W_in_m.T) * (inputs @ student.W_in_x.T)


@dataclass(frozen=True)
class Ranking:
    """A student's neurons and gate outputs by influence, and how many of each are needed."""

    activity: Activity
    neurons: np.ndarray
    gates: np.ndarray
    needed: tuple[int, int]

    @classmethod
    def of(cls, activity: Activity, tolerance: float) -> "Ranking":
        """Leave out as many of the least influential as the tolerance allows."""
        influences = activity.influences()
        neurons, gates = (np.argsort(-part, kind="stable") for part in influences)
        count = len(influences[0])
        order = np.argsort(np.concatenate(influences), kind="stable")
        side = isinstance(activity.student, SideGatedRNN)

        def needed_without(dropped: int) -> tuple[int, int]:
            stays = order[dropped:]
            neurons_left = int(np.sum(stays < count))
            return neurons_left, neurons_left if side else int(np.sum(stays >= count))

        low, high = 0, len(order)
        ranking = cls(activity, neurons, gates, needed_without(0))
        while low < high:
            middle = (low + high + 1) // 2
            fits = ranking.change(*needed_without(middle)) <= tolerance
            low, high = (middle, high) if fits else (low, middle - 1)
        return dataclasses.replace(ranking, needed=needed_without(low))

    def kept(self, neurons: int, gates: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the places of the most influential, in their old order."""
        return np.sort(self.neurons[:neurons]), np.sort(self.gates[:gates])

    def change(self, neurons: int, gates: int) -> float:
        """Return how far the outputs move with so many left, over the size of the outputs."""
        everything = self.activity.outputs(*self.kept(len(self.neurons), len(self.gates)))
        difference = self.activity.outputs(*self.kept(neurons, gates)) - everything
        size = float(np.linalg.norm(everything))
        return float(np.linalg.norm(difference)) / size if size > 0 else 0.0


@one_thread
def shrink(
    students: Sequence[Shrinkable], tasks: Sequence[Task], plan: Shrinking, *, key: PRNGKeyArray
) -> tuple[list[Shrinkable], list[Json]]:
    """Return smaller students, all of one width, and what was done to each.

    tasks  each student's own, of equal shapes
    """
    sample = jax.jit(lambda task, key: task.sample(key, MEASURED_SEQUENCES).inputs)
    rankings = []
    for student, task in zip(students, tasks, strict=True):
        activity = Activity.of(student, np.asarray(sample(task, key)), last=task.reads_last)
        rankings.append(Ranking.of(activity, plan.tolerance))
    width, gates = (
        min(-(-max(*many, 1) // WIDTH_STEP) * WIDTH_STEP, most)
        for many, most in zip(
            zip(*(ranking.needed for ranking in rankings), strict=True),
            (students[0].neurons, students[0].gate_width),
            strict=True,
        )
    )
    smaller, notes = [], []
    for student, ranking in zip(students, rankings, strict=True):
        cut, settled = with_settled_decays(
            selected(student, *ranking.kept(width, gates)), plan.settle
        )
        smaller.append(cut)
        notes.append(
            {
                "needed": list(ranking.needed),
                "neurons": width,
                "gate_outputs": gates,
                "change": ranking.change(width, gates),
                "settled": settled,
            }
        )
    return smaller, notes


def selected(student: Shrinkable, neurons: np.ndarray, gates: np.ndarray) -> Shrinkable:
    """Return a student of some neurons and gate outputs, in its own precision."""
    parts: dict[str, PyTree] = {name: getattr(student, name)[neurons] for name in INNER}
    if isinstance(student, SideGatedRNN):
        parts |= {"W_side": student.W_side[neurons], "D": student.D[:, neurons]}
    else:
        outer = ("W_out_m", "W_out_x")
        parts |= {name: getattr(student, name)[gates][:, neurons] for name in outer}
        parts["D"] = student.D[:, gates]
    names = tuple(parts)
    values = tuple(parts.values())
    return eqx.tree_at(lambda new: [getattr(new, name) for name in names], student, values)


def with_settled_decays(student: Shrinkable, distance: float) -> tuple[Shrinkable, int]:
    """Set each λ within a distance of 0 or 1 to 0 or 1; return also how many there are."""
    decay = np.asarray(student.decay)
    # A distance of 0 settles nothing, because an end need not be where a decay stays.
    ones = (distance > 0) & (decay >= 1 - distance)
    zeros = (distance > 0) & (decay <= distance) & ~ones
    nu = np.asarray(student.nu)
    nu = np.where(ones, NU_ONE, np.where(zeros, NU_ZERO, nu)).astype(nu.dtype)
    return eqx.tree_at(lambda new: new.nu, student, jnp.asarray(nu)), int(np.sum(ones | zeros))


def check_shrinkable(students: Sequence[PyTree]) -> None:
    """Refuse students that `shrink` cannot take apart."""
    for student in students:
        if not isinstance(student, Shrinkable):
            kind = type(student).__name__
            advice = "give a GatedRNN or a SideGatedRNN, or train it with a Recipe"
            raise BadInput(f"train: Shrinking cannot shrink {with_article(kind)}; {advice}.")
