"""A run that an engine trains in units: the same folder and the same `Run` as `train` gives.

While it is trained its units lie in DIR/sweep, and are found there after a crash. Once all are
finished they are put together, and the folder is like that of any other run.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from underhood.common.errors import BadInput
from underhood.common.files import Json
from underhood.common.provenance import provenance
from underhood.sweeps.engines import Engine, Progress
from underhood.sweeps.store import Store
from underhood.sweeps.study import Study
from underhood.sweeps.sweeping import sweep
from underhood.sweeps.units import Unit
from underhood.training.run import Run
from underhood.training.storage.folder import is_finished, opened_folder
from underhood.training.storage.settings import check_same_settings, settings_of

SWEEP_FOLDER = "sweep"


def train_in_units(engine: Engine, study: Study, folder: Path, progress: Progress) -> Run:
    """Train the one student of a study in units, go on with it, or read the finished run."""
    ((name, make_student),) = study.students.items()
    settings = settings_of(study.ensemble(name))
    with opened_folder(folder):
        check_same_settings(folder, settings)
        if is_finished(folder):
            return Run.load(folder, make_student)
        units = {"planned": 0, "done": 0}

        def watch(unit: Unit, event: str, worker: str) -> None:
            if event in units:
                units[event] += 1
            if event != "planned":
                progress(units["done"], max(units["planned"], 1))

        # More units than workers, because they end at different times, and to show progress.
        swept = sweep(study, folder / SWEEP_FOLDER, engine, workers=2 * engine.workers, watch=watch)
        for unit, reason in swept.failed.items():
            raise RuntimeError(f"{len(swept.failed)} units failed, the first, {unit}: {reason}")
        trained = Store(folder / SWEEP_FOLDER).load_all(make_student)
        run = put_units_together(trained, list(study.addresses(name).values()), settings)
        run.save(folder)
        shutil.rmtree(folder / SWEEP_FOLDER, ignore_errors=True)
        return run


def put_units_together(units: Sequence[Run], addresses: list[str], settings: Json) -> Run:
    """Return one run of the members with these addresses, in this order."""
    members = {
        row.pop("address"): (row, losses, model)
        for unit in units
        for row, losses, model in zip(map(dict, unit.rows), unit.losses, unit.models, strict=True)
    }
    if missing := [address for address in addresses if address not in members]:
        raise BadInput(f"{len(missing)} students of the run are missing; run the same call again.")
    rows, losses, models = zip(*(members[address] for address in addresses), strict=True)
    place = {address: number for number, address in enumerate(addresses)}
    groups = (
        [
            place[unit.rows[number]["address"]]
            for number in group
            if unit.rows[number]["address"] in place
        ]
        for unit in units
        for group in unit.settings["grouping"]
    )
    return Run(
        rows=tuple({name: row[name] for name in row if name != "student"} for row in rows),
        steps=units[0].steps,
        losses=np.stack(losses),
        models=list(models),
        settings=settings | {"grouping": [group for group in groups if group]},
        provenance={
            **provenance(),
            "workers": sorted({unit.provenance["device"] for unit in units}),
            "predicted_bytes": max(unit.provenance["predicted_bytes"] for unit in units),
            "seconds": round(sum(unit.provenance["seconds"] for unit in units), 2),
        },
    )
