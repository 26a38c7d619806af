"""Work units: students that are trained by one call, because they can share a program.

Compiling takes seconds and a step of a small network microseconds, so a hundred students in one
unit are far cheaper than a hundred units. A unit is all points of the axes at some seeds of one
width and kind; it is cut where there would be fewer units than workers, or more students than fit.
"""

import hashlib
import json
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from underhood.common.files import as_json
from underhood.sweeps.study import Study
from underhood.training import train
from underhood.training.members import Member
from underhood.training.program_cache import forget_if_many
from underhood.training.run import Run
from underhood.training.storage.folder import VERSION

# What is done with a unit: its files.
Work = Callable[..., dict[str, bytes]]

# Most students of a unit, however few workers there are: what is lost with a worker is one unit.
MOST = 256
# Numbers that training keeps of a neuron at a token, and some more: by what XLA foresaw for our
# layers on an H200 it is 3 to 41, most for two layers of LRUs.
PER_NEURON = 48


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
        seeds = f"seed {self.seeds[0]}"
        if len(self.seeds) > 1:
            seeds = f"{len(self.seeds)} seeds from {min(self.seeds)}"
        return f"{self.student}, width {self.width}, {seeds}"


def plan(
    study: Study,
    finished: Collection[str] = (),
    *,
    workers: int = 1,
    most: int = MOST,
    memory: int | None = None,
) -> list[Unit]:
    """Units for all students that are not finished, the widest first.

    Wide students take longest, and what is long should not come last.

    most      students of a unit
    memory    bytes that a unit may take on a worker's device; None: not known
    """
    cells: list[tuple[str, int, list[int], dict[int, list[str]]]] = []
    for student in study.students:
        by_place: dict[tuple[int, int], list[str]] = {}
        for member, address in study.addresses(student).items():
            by_place.setdefault((member.width, member.seed), []).append(address)
        for width in sorted({width for width, _ in by_place}, reverse=True):
            own = {seed: found for (one, seed), found in by_place.items() if one == width}
            left = [seed for seed, found in own.items() if not set(found) <= set(finished)]
            if left:
                cells.append((student, width, left, own))
    cells.sort(key=lambda cell: -cell[1])
    # As many units as workers at least, each cell cut into equal parts.
    parts = max(1, math.ceil(workers / max(len(cells), 1)))
    units = []
    for student, width, seeds, own in cells:
        points = len(own[seeds[0]])
        fit = most if memory is None else max(1, memory // bytes_of(study, student, width))
        size = min(most, fit)
        count = min(len(seeds), max(parts, math.ceil(len(seeds) * points / size)))
        size = math.ceil(len(seeds) / count)
        for start in range(0, len(seeds), size):
            chunk = tuple(seeds[start : start + size])
            addresses = tuple(address for seed in chunk for address in own[seed])
            units.append(Unit(student, width, chunk, addresses))
    return units


def bytes_of(study: Study, student: str, width: int) -> int:
    """About what a student takes while it is trained, rather too much than too little.

    Weights, their gradients and two moments, and what is kept of every neuron at every token for
    the way back. `train` knows better once it has compiled, and cuts what does not fit.
    """
    import jax

    try:
        made = jax.eval_shape(lambda: study.students[student](width, key=jax.random.key(0)))
    except Exception:
        # One that cannot be made is told about when its unit is tried.
        return 1
    numbers = sum(leaf.size for leaf in jax.tree.leaves(made) if hasattr(leaf, "size"))
    task = (
        study.task if study.recipe.length is None else study.task.with_length(study.recipe.length)
    )
    per_number = 8 if study.recipe.precision == "float64" else 4
    kept = PER_NEURON * study.recipe.batch * task.time * width
    return int(per_number * (4 * numbers + kept))


def work(study: Study, unit: Unit, **options: Any) -> dict[str, bytes]:
    """Train a unit; its files."""
    import jax

    # A worker may meet very many kinds of students.
    forget_if_many()
    run = train(
        study.students[unit.student],
        study.task,
        study.recipe,
        widths=unit.width,
        seeds=unit.seeds,
        axes=study.axes,
        key=jax.random.key(study.key),
        **options,
    )
    return packed(run, study, unit)


def packed(run: Run, study: Study, unit: Unit) -> dict[str, bytes]:
    """A trained unit as the files that keep it; every row has its address."""
    members = [
        Member(one["seed"], one["width"], tuple(map(tuple, one["axes"])))
        for one in run.settings["members"]
    ]
    addresses = study.addresses(unit.student, members).values()
    if set(addresses) != set(unit.addresses):
        raise RuntimeError("The unit's students are not those that were asked for.")
    rows = [
        {"student": unit.student, "address": address, **row}
        for address, row in zip(addresses, run.rows, strict=True)
    ]
    files = {
        "settings.json": as_json({"version": VERSION, "begun": run.provenance, **run.settings})
    }
    files |= run.files()
    table = json.loads(files["members.json"]) | {"rows": rows}
    files["members.json"] = as_json(table)
    return files
