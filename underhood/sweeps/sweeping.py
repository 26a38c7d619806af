"""Running a study: plan, train, keep, report failures. Nothing finished is trained again.

`sweep` keeps units; `train_in_units` puts them together to the same folder and the same `Run` as
`train` gives. While such a run is trained its units lie in DIR/sweep, and are found there after a
crash.
"""

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from underhood.common.errors import BadInput, refuse
from underhood.common.files import Json, as_json
from underhood.common.numbers import whole_problems
from underhood.common.provenance import provenance
from underhood.sweeps.engines import Engine, Local, Progress, Watch
from underhood.sweeps.store import Store
from underhood.sweeps.study import Study
from underhood.sweeps.units import MOST_STUDENTS, Unit, plan
from underhood.training.run import Run
from underhood.training.storage.folder import is_finished, opened_folder
from underhood.training.storage.settings import check_same_settings, settings_of

SWEEP_FOLDER = "sweep"


@dataclass(frozen=True)
class Swept:
    """What a sweep did.

    before  students that were already finished
    done    units trained now
    failed  units that failed, with the reason
    table   a CSV file with a row per student
    """

    before: int
    done: int
    failed: dict[Unit, str]
    table: Path
    seconds: float

    @property
    def complete(self) -> bool:
        return not self.failed


def sweep(
    study: Study,
    folder: str | os.PathLike[str],
    engine: Engine | None = None,
    *,
    most: int = MOST_STUDENTS,
    workers: int | None = None,
    watch: Watch | None = None,
) -> Swept:
    """Train the students of a study that are not finished yet, and keep them in a folder.

    engine   who trains; None: this process. A Cluster must be opened first
    most     students that one unit of work may hold
    workers  plan for so many; None: for those that the engine has
    watch    called with (unit, event, worker) whenever something happens to a unit
    """
    refuse(whole_problems(most=most), about="sweep")
    engine, tell = engine or Local(), watch or (lambda unit, event, worker: None)
    began = time.monotonic()
    description = study.description | {"students": list(study.students)}
    with Store(Path(folder)).opened(description) as store:
        finished = store.finished() & study.all_addresses()
        count = workers or engine.workers
        units = plan(study, finished, workers=count, most=most, memory=engine.memory)
        for unit in units:
            tell(unit, "planned", "")
        done, failed = 0, dict[Unit, str]()
        for outcome in engine.run(study, units, store, tell):
            if outcome.files is None:
                failed[outcome.unit] = outcome.reason
            else:
                origin = {"worker": outcome.worker, "seconds": round(outcome.seconds, 3)}
                origin_file = as_json(origin | {"attempts": outcome.attempts})
                store.write(outcome.unit, {"origin.json": origin_file, **outcome.files})
                done += 1
            tell(outcome.unit, "failed" if outcome.files is None else "done", outcome.worker)
        table = store.write_table(study)
    return Swept(len(finished), done, failed, table, time.monotonic() - began)


def train_in_units(engine: Engine, study: Study, folder: Path, progress: Progress) -> Run:
    """Train the one student of a study in units, as `train` would."""
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
        if swept.failed:
            unit, reason = next(iter(swept.failed.items()))
            raise RuntimeError(f"{len(swept.failed)} units failed, the first, {unit}: {reason}")
        folders = Store(folder / SWEEP_FOLDER).unit_folders()
        trained = [Run.load(unit_folder, make_student) for unit_folder in folders]
        run = put_units_together(trained, list(study.addresses(name).values()), settings)
        run.save(folder)
        shutil.rmtree(folder / SWEEP_FOLDER, ignore_errors=True)
        return run


def put_units_together(units: Sequence[Run], addresses: list[str], settings: Json) -> Run:
    """Return one run of the members with these addresses, in this order."""
    members = {}
    for unit in units:
        for row, losses, model in zip(unit.rows, unit.losses, unit.models, strict=True):
            kept = {name: row[name] for name in row if name not in ("address", "student")}
            members[row["address"]] = (kept, losses, model)
    if missing := [address for address in addresses if address not in members]:
        raise BadInput(f"{len(missing)} students of the run are missing; run the same call again.")
    rows, losses, models = zip(*(members[address] for address in addresses), strict=True)
    place = {address: number for number, address in enumerate(addresses)}
    groups = (
        [place[address] for address in (unit.rows[n]["address"] for n in group) if address in place]
        for unit in units
        for group in unit.settings["grouping"]
    )
    origins = [unit.provenance for unit in units]
    origin = provenance() | {
        "workers": sorted({origin["device"] for origin in origins}),
        "predicted_bytes": max(origin["predicted_bytes"] for origin in origins),
        "seconds": round(sum(origin["seconds"] for origin in origins), 2),
    }
    settings = settings | {"grouping": [group for group in groups if group]}
    return Run(rows, units[0].steps, np.stack(losses), list(models), settings, origin)
