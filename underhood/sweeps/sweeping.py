"""Running a study: plan, run, keep what comes, say what failed. Nothing finished is done again."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from underhood.common.files import as_json
from underhood.sweeps.engines import Engine, Outcome
from underhood.sweeps.store import Store
from underhood.sweeps.study import Study
from underhood.sweeps.units import MOST, Unit, plan


@dataclass(frozen=True)
class Swept:
    """What a sweep did: units that were there, done now, and failed with the reason."""

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
    folder: Path,
    engine: Engine,
    *,
    most: int = MOST,
    workers: int | None = None,
    watch: Callable[[Unit, str, str], None] | None = None,
) -> Swept:
    """Train what is not there yet and keep it in a folder; this process is the only writer.

    workers   plan for so many; None: for those that the engine has
    """
    began = time.monotonic()
    tell = watch or (lambda unit, what, where: None)
    addresses = {one for name in study.students for one in study.addresses(name).values()}
    with Store(folder).opened(study.described | {"students": list(study.students)}) as store:
        finished = store.finished() & addresses
        units = plan(
            study, finished, workers=workers or engine.workers, most=most, memory=engine.memory
        )
        failed: dict[Unit, str] = {}
        done = 0
        for outcome in engine.run(study, units, store, tell):
            if outcome.files is None:
                failed[outcome.unit] = outcome.reason
                tell(outcome.unit, "failed", outcome.worker)
                continue
            store.write(outcome.unit, with_origin(outcome))
            done += 1
            tell(outcome.unit, "done", outcome.worker)
        table = store.write_table(addresses)
    return Swept(len(finished), done, failed, table, time.monotonic() - began)


def with_origin(outcome: Outcome) -> dict[str, bytes]:
    """The files, with a note of where and how often the unit ran."""
    assert outcome.files is not None
    origin: dict[str, Any] = {
        "worker": outcome.worker,
        "seconds": round(outcome.seconds, 3),
        "attempts": outcome.attempts,
    }
    return {"origin.json": as_json(origin), **outcome.files}
