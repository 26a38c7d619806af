"""A run whose members an engine trains: the same folder and the same `Run` as `train` gives.

While it is trained its units lie in DIR/sweep, and are found there after a crash; once all are
there they are put together and the folder is as any other run's.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from underhood.common.errors import BadInput
from underhood.common.provenance import provenance
from underhood.sweeps.engines import Engine
from underhood.sweeps.store import Store
from underhood.sweeps.study import Study
from underhood.sweeps.sweeping import sweep
from underhood.sweeps.units import MOST, Unit, plan
from underhood.training.run import Run
from underhood.training.storage import folder as storage
from underhood.training.training import settings_of

UNITS = "sweep"


def train_on(
    engine: Engine, study: Study, folder: Path, progress: Callable[[float, float], None]
) -> Run:
    """The run of a study with one kind of student: trained, continued, or read."""
    ((name, make_student),) = study.students.items()
    settings = settings_of(
        make_student,
        study.task,
        study.recipe,
        widths=study.widths,
        seeds=study.seeds,
        axes=study.axes,
        key=jax.random.key(study.key),
    )
    storage.make_folder(folder)
    with storage.locked(folder):
        storage.agree_or_none(folder, settings)
        if (folder / "members.json").exists():
            return Run.load(folder, make_student)
        found = trained(engine, study, folder / UNITS, progress)
        run = together(found, list(study.addresses(name).values()), settings)
        storage.begin(folder, run.settings, run.provenance)
        run.save(folder)
        shutil.rmtree(folder / UNITS, ignore_errors=True)
        return run


def trained(
    engine: Engine, study: Study, folder: Path, progress: Callable[[float, float], None]
) -> list[Run]:
    """All units of a study; raises with the reason of one that failed."""
    finished = Store(folder).finished()
    ours = {one for name in study.students for one in study.addresses(name).values()}
    # More than workers, because they end at different times, and so that there is progress to see.
    workers = 2 * engine.workers
    units = len(plan(study, finished & ours, workers=workers, memory=engine.memory))
    done = 0

    def watch(unit: Unit, what: str, where: str) -> None:
        nonlocal done
        done += what == "done"
        progress(done, max(units, 1))

    swept = sweep(study, folder, engine, most=MOST, workers=workers, watch=watch)
    for unit, reason in swept.failed.items():
        raise RuntimeError(f"{len(swept.failed)} units failed, the first, {unit}: {reason}")
    (make_student,) = study.students.values()
    return [
        Run.load(path.parent, make_student)
        for path in sorted((folder / "units").glob("[!.]*/members.json"))
    ]


def together(found: list[Run], addresses: list[str], settings: dict[str, Any]) -> Run:
    """One run from those of its units, its members in their order."""
    rows: dict[str, tuple[dict[str, Any], np.ndarray, Any]] = {}
    groups: list[list[str]] = []
    for unit in found:
        names = [row["address"] for row in unit.rows]
        rows |= dict(zip(names, zip(unit.rows, unit.losses, unit.models, strict=True), strict=True))
        groups += [[names[place] for place in group] for group in unit.settings["grouping"]]
    missing = [one for one in addresses if one not in rows]
    if missing:
        raise BadInput(f"{len(missing)} students of the run are missing; run the same call again.")
    place = {address: number for number, address in enumerate(addresses)}
    ordered = [rows[address] for address in addresses]
    grouping = [[place[one] for one in group if one in place] for group in groups]
    hidden = ("student", "address")
    return Run(
        rows=tuple(
            {name: value for name, value in row.items() if name not in hidden}
            for row, _, _ in ordered
        ),
        steps=found[0].steps,
        losses=np.stack([losses for _, losses, _ in ordered]),
        models=[model for _, _, model in ordered],
        settings=settings | {"grouping": [group for group in grouping if group]},
        provenance={
            **provenance(),
            "workers": sorted({unit.provenance["device"] for unit in found}),
            "predicted_bytes": max(unit.provenance["predicted_bytes"] for unit in found),
            "seconds": round(sum(unit.provenance["seconds"] for unit in found), 2),
        },
    )
