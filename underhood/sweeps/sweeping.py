"""Running a study: plan, train, keep, report failures. Nothing finished is trained again."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from underhood.common.errors import refuse
from underhood.common.files import as_json
from underhood.common.numbers import whole_problems
from underhood.sweeps.engines import Engine, Local, Watch
from underhood.sweeps.store import Store
from underhood.sweeps.study import Study
from underhood.sweeps.units import MOST_STUDENTS, Unit, plan


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
        """Whether every student is trained."""
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
        units = plan(
            study, finished, workers=workers or engine.workers, most=most, memory=engine.memory
        )
        for unit in units:
            tell(unit, "planned", "")
        failed: dict[Unit, str] = {}
        done = 0
        for outcome in engine.run(study, units, store, tell):
            if outcome.files is None:
                failed[outcome.unit] = outcome.reason
                tell(outcome.unit, "failed", outcome.worker)
                continue
            origin = {name: getattr(outcome, name) for name in ("worker", "seconds", "attempts")}
            store.write(outcome.unit, {"origin.json": as_json(origin), **outcome.files})
            done += 1
            tell(outcome.unit, "done", outcome.worker)
        table = store.write_table(study)
    return Swept(len(finished), done, failed, table, time.monotonic() - began)


def plan_sweep(study: Study, folder: Path, engine: Engine, most: int) -> list[Unit]:
    """Return the units that `sweep` would train; nothing is written."""
    finished = Store(folder).finished()
    return plan(study, finished, workers=engine.workers, most=most, memory=engine.memory)
