"""Work units: students that are trained by one call, because they can share a program.

A unit is all points of the axes at some seeds of one width and kind. It is cut where there would be
fewer units than workers, or more students than fit. docs/cluster.md says what packing gains.
"""

import dataclasses
import hashlib
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import jax

from underhood.sweeps.study import Study
from underhood.training.ensemble import at_length
from underhood.training.program_cache import forget_if_many
from underhood.training.training import train_members

# What is done with a unit; it returns the unit's files by name.
Work = Callable[..., dict[str, bytes]]

# Most students of a unit, however few workers there are: a worker that dies loses one unit.
MOST_STUDENTS = 256
# Upper bound on floats kept per neuron and token. XLA's estimates for our layers on an H200 were
# 3 to 41, most for two layers of LRUs.
FLOATS_PER_NEURON = 48


@dataclass(frozen=True)
class Unit:
    """Students of one kind and width at some seeds, and their addresses."""

    student: str
    width: int
    seeds: tuple[int, ...]
    addresses: tuple[str, ...]

    @property
    def name(self) -> str:
        """The same students give the same name."""
        return hashlib.sha256(" ".join(self.addresses).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        first, count = min(self.seeds), len(self.seeds)
        seeds = f"{count} seeds from {first}" if count > 1 else f"seed {first}"
        return f"{self.student}, width {self.width}, {seeds}"


def plan(
    study: Study,
    finished: Collection[str] = (),
    *,
    workers: int = 1,
    most: int = MOST_STUDENTS,
    memory: int | None = None,
) -> list[Unit]:
    """Return units for all students that are not finished, the widest first: they take longest.

    finished  addresses of students that need not be trained
    most      students of a unit
    memory    bytes that a unit may take on a worker's device; None: not known
    """
    # Addresses by seed, for every width and kind of student.
    cells: dict[tuple[int, str], dict[int, list[str]]] = {}
    for student in study.students:
        for member, address in study.addresses(student).items():
            cell = cells.setdefault((member.width, student), {})
            cell.setdefault(member.seed, []).append(address)
    done, left = set(finished), {}
    for place, cell in sorted(cells.items(), key=lambda item: -item[0][0]):
        if todo := {seed: some for seed, some in cell.items() if not done.issuperset(some)}:
            left[place] = todo
    # As many units as workers at least, each cell cut into equal parts.
    parts = max(1, math.ceil(workers / max(len(left), 1)))
    units = []
    for (width, student), cell in left.items():
        seeds = list(cell)
        fit = most if memory is None else max(1, memory // bytes_of(study, student, width))
        students = sum(map(len, cell.values()))
        count = min(len(seeds), max(parts, math.ceil(students / min(most, fit))))
        size = math.ceil(len(seeds) / count)
        for start in range(0, len(seeds), size):
            chunk = tuple(seeds[start : start + size])
            addresses = tuple(address for seed in chunk for address in cell[seed])
            units.append(Unit(student, width, chunk, addresses))
    return units


def bytes_of(study: Study, student: str, width: int) -> int:
    """Return about what a student takes while it is trained, rather too much than too little.

    That is its weights, their gradients and two moments, and what the gradient needs of every
    neuron at every token. `train` knows better once it has compiled, and cuts what does not fit.
    """
    try:
        made = jax.eval_shape(lambda: study.students[student](width, key=jax.random.key(0)))
    except Exception:
        # A student that cannot be made is reported when its unit is tried.
        return 1
    numbers = sum(leaf.size for leaf in jax.tree.leaves(made) if hasattr(leaf, "size"))
    recipe = study.recipe
    kept = FLOATS_PER_NEURON * recipe.batch * at_length(study.task, recipe).time * width
    return int((8 if recipe.precision == "float64" else 4) * (4 * numbers + kept))


def work(
    study: Study, unit: Unit, *, out: Path | None = None, progress: bool | None = None
) -> dict[str, bytes]:
    """Train a unit, with checkpoints in `out`; return a run's files, with addresses in its rows."""
    # A worker may meet very many kinds of students.
    forget_if_many()
    ensemble = study.ensemble(unit.student, widths=unit.width, seeds=unit.seeds)
    addresses = list(study.addresses(unit.student, ensemble.members).values())
    if set(addresses) != set(unit.addresses):
        raise RuntimeError("The unit's students are not those that were asked for.")
    run = train_members(ensemble, out=out, progress=progress)
    named = zip(addresses, run.rows, strict=True)
    rows = tuple({"student": unit.student, "address": address, **row} for address, row in named)
    return dataclasses.replace(run, rows=rows).files()
