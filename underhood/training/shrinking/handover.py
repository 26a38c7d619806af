"""From a wide run to the narrow run that goes on from it."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import numpy as np
from jaxtyping import PyTree

from underhood.common.errors import BadInput
from underhood.common.files import Json
from underhood.tasks import Task
from underhood.training.device import precision_of
from underhood.training.ensemble import Ensemble, SplitStudent, at_length
from underhood.training.members import TEACHER_AXIS, Axes, Member
from underhood.training.run import Run
from underhood.training.shrinking.cutting import check_shrinkable, shrink
from underhood.training.shrinking.plan import Shrinking
from underhood.training.shrinking.settled_loss import SettledLoss, check_set
from underhood.training.step import with_teacher
from underhood.training.storage import folder as storage

# Folded into a key: that of the sequences of the second recipe, that of the measurement, and that
# of the fixed set of sequences.
NARROW, MEASURED, FIXED = 2**31 - 2, 2**31 - 3, 2**31 - 4
WIDE = "wide"


@dataclass(frozen=True, eq=False)
class Shrunk:
    """A finished run, and how its students were made smaller, member by member."""

    run: Run
    notes: tuple[Json, ...]

    def joined(self, after: Run) -> Run:
        """Return the run that goes on from the smaller students, with this one before it."""
        first = int(self.run.steps[-1])
        rows = []
        for wide, row, note in zip(self.run.rows, after.rows, self.notes, strict=True):
            lost_at = None if row["lost_at"] is None else first + row["lost_at"]
            lost_at = lost_at if wide["lost_at"] is None else wide["lost_at"]
            kept = {name: note[name] for name in ("neurons", "gate_outputs")}
            rows.append({**row, **kept, "lost_at": lost_at})
        origin = {"provenance": self.run.provenance, "shrunk": list(self.notes)}
        seconds = self.run.provenance["seconds"] + after.provenance["seconds"]
        return replace(
            after,
            rows=tuple(rows),
            steps=np.concatenate([self.run.steps, first + after.steps]),
            losses=np.concatenate([self.run.losses, after.losses], axis=1),
            provenance={**after.provenance, "seconds": round(seconds, 2), WIDE: origin},
        )


def check_plan(ensemble: Ensemble, plan: Shrinking, axes: Axes | None) -> None:
    """Refuse students that cannot shrink, tasks without exact gradients, and axes of one recipe."""
    check_shrinkable([parts.joined() for parts in ensemble.students])
    if plan.sequences is not None:
        check_set(at_length(ensemble.task, plan.narrow), plan.sequences)
    if others := sorted(set(axes or {}) - {TEACHER_AXIS}):
        raise BadInput(
            f"train: the axis {others[0]} changes one Recipe, and a Shrinking has two; "
            "make a Shrinking for each value."
        )


def wide_folder(out: str | os.PathLike[str] | None) -> Path | None:
    """Return where the first run of a folder lies; refuse a folder with a run of another kind."""
    if out is None:
        return None
    folder = storage.run_folder(out)
    if (folder / storage.SETTINGS).exists() and not (folder / WIDE / storage.SETTINGS).exists():
        raise BadInput(f"{folder} holds a run of one Recipe; choose another folder for Shrinking.")
    return folder / WIDE


def narrow_ensemble(ensemble: Ensemble, wide: Run, plan: Shrinking) -> tuple[Ensemble, Shrunk]:
    """Return the members with what is left of their students, and how that came about.

    Members of equal width shrink to the same width, the largest that one of them needs.
    """
    with precision_of(plan.narrow.precision):
        students, notes = list(ensemble.students), [Json() for _ in ensemble.members]
        for width in sorted({member.width for member in ensemble.members}):
            places = [n for n, member in enumerate(ensemble.members) if member.width == width]
            members = [ensemble.members[place] for place in places]
            smaller, what = shrink(
                [healthy(wide, place) for place in places],
                [with_teacher(ensemble.task, ensemble.teacher_of(member)) for member in members],
                plan,
                key=jax.random.fold_in(ensemble.key, MEASURED),
            )
            for place, student, note in zip(places, smaller, what, strict=True):
                if wide.rows[place]["lost_at"] is not None:
                    # What was lost stays lost: no number comes out of these weights.
                    student = jax.tree.map(lambda leaf: np.nan * leaf, student)
                students[place], notes[place] = SplitStudent.of(student), note
        keys = tuple(jax.random.fold_in(key, NARROW) for key in ensemble.sequence_keys)
    after = replace(
        ensemble,
        students=tuple(students),
        sequence_keys=keys,
        recipe=plan.narrow,
        shrunk=plan,
        settled_losses=settled_losses(ensemble, plan),
    )
    return after, Shrunk(wide, tuple(notes))


def settled_losses(ensemble: Ensemble, plan: Shrinking) -> tuple[SettledLoss, ...]:
    """Draw the fixed set of sequences of each member; none where batches are drawn."""
    if plan.sequences is None:
        return ()
    # Members that differ in width or seed alone have the same teacher, and share the set.
    teachers = {member.get(TEACHER_AXIS, 0): member for member in ensemble.members}
    of_teacher = {
        number: SettledLoss.of(
            narrow_task(ensemble, member, plan),
            sequences=plan.sequences,
            key=jax.random.fold_in(ensemble.key, FIXED),
            precision=plan.narrow.precision,
        )
        for number, member in teachers.items()
    }
    return tuple(of_teacher[member.get(TEACHER_AXIS, 0)] for member in ensemble.members)


def narrow_task(ensemble: Ensemble, member: Member, plan: Shrinking) -> Task:
    """Return a member's task at the length that the second recipe trains on."""
    task = with_teacher(ensemble.task, ensemble.teacher_of(member))
    return at_length(task, plan.narrow)


def healthy(wide: Run, place: int) -> PyTree:
    """Return a student of a run; one that was lost becomes zero, so that it asks for no width."""
    lost = wide.rows[place]["lost_at"] is not None
    student = wide.models[place]
    return jax.tree.map(np.zeros_like, student) if lost else student
