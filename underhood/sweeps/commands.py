"""What `underhood sweep` needs besides: an engine by its name, the plan, and a short table."""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np

from underhood.common.errors import BadInput, reason_of
from underhood.sweeps.cost import CORE, H200, hours
from underhood.sweeps.engines import Engine, Local
from underhood.sweeps.store import Store
from underhood.sweeps.study import Study
from underhood.sweeps.units import Unit, plan

ENGINES = ("local", "dask")
# Options that mean nothing without dask.
DASK = ("workers", "address", "jobqueue", "needs", "insecure", "tls_ca", "tls_cert", "tls_key")


def engine_of(command: Any) -> Any:
    """The engine that a command asks for, to be entered."""
    if command.engine not in ENGINES:
        raise BadInput(f"--engine is {' or '.join(ENGINES)}, not {command.engine!r}.")
    if command.engine == "local":
        for name in DASK:
            if getattr(command, name) not in (None, False):
                option = name.replace("_", "-")
                raise BadInput(f"--{option} is for --engine dask; add that, or leave it out.")
        return contextlib.nullcontext(Local())
    # Here, because dask.distributed is an extra.
    from underhood.sweeps.dask.cluster import Cluster, require_dask
    from underhood.sweeps.dask.queueing import Queue
    from underhood.sweeps.dask.security import Certificates

    require_dask()
    return Cluster(
        count=command.workers,
        address=command.address,
        queue=None if command.jobqueue is None else Queue.read(command.jobqueue),
        needs=command.needs,
        insecure=command.insecure,
        tls=Certificates(command.tls_ca, command.tls_cert, command.tls_key),
    ).opened()


def planned(study: Study, out: Path, engine: Engine, most: int) -> list[Unit]:
    """Units that are left."""
    finished = Store(out).finished()
    return plan(study, finished, workers=engine.workers, most=most, memory=engine.memory)


def cost(study: Study, units: list[Unit]) -> str:
    """What units will take, in words."""
    students = sum(len(unit.addresses) for unit in units)
    told = f"{len(units):,} units, {students:,} students"
    try:
        gpu, core = (hours(study, units, device) for device in (H200, CORE))
    except Exception as error:
        return f"{told}; what they cost cannot be said: {reason_of(error)}"
    both = f"about {gpu:.2g} H200-hours, or {core:.2g} core-hours"
    return f"{told}: {both} (docs/cluster.md says how that is reckoned)"


def summary(out: Path, study: Study) -> list[dict[str, Any]]:
    """A row per student's kind, width and point of the axes: the median loss and its range."""
    addresses = {one for name in study.students for one in study.addresses(name).values()}
    groups: dict[tuple[Any, ...], list[float]] = {}
    for row in Store(out).rows(addresses):
        place = (row["student"], row["width"], *(row[name] for name in study.axes))
        loss = row["loss"] if row["loss"] is not None else np.nan
        groups.setdefault(place, []).append(loss)
    names = ("student", "width", *study.axes)
    return [
        {
            **dict(zip(names, place, strict=True)),
            "seeds": len(losses),
            "lost": int(np.sum(np.isnan(losses))),
            "median loss": float(np.nanmedian(losses)) if np.isfinite(losses).any() else None,
            "lowest": float(np.nanmin(losses)) if np.isfinite(losses).any() else None,
        }
        for place, losses in sorted(groups.items(), key=lambda item: str(item[0]))
    ]
