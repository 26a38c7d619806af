"""Losses while training runs, one entry per window of steps, for other programs to watch.

log="losses.csv"    a CSV file with the columns step, member, loss
log="folder"        a TensorBoard folder, if tensorboardX or torch.utils.tensorboard is installed
log=function        function(step, losses), losses [members]

`step` is the last step of a window, and the loss is the mean over the window, as in `Run.losses`. A
member is its place in `Run.rows`. A loss that is no number is written as nan.
"""

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from underhood.common.errors import BadInput
from underhood.common.files import check_regular, write_atomically
from underhood.training.ensemble import Ensemble

LossLog = str | os.PathLike[str] | Callable[[int, np.ndarray], None] | None
# Called with the steps done and all curves [members, windows].
NoteLosses = Callable[[int, np.ndarray], None]
HEADER = "step,member,loss\n"
WRITERS = ("tensorboardX", "torch.utils.tensorboard")


def check_log(log: Any) -> None:  # Any: whatever the caller gave
    """Refuse a log that cannot be written, before anything is trained."""
    if log is None or callable(log):
        return
    if not isinstance(log, str | os.PathLike) or not str(log):
        wanted = "a path that ends in .csv, a folder for TensorBoard, or a function"
        raise BadInput(f"train: log is {log!r}; give {wanted}.")
    path = Path(log).expanduser()
    if path.suffix != ".csv":
        if path.is_file():
            raise BadInput(f"train: the log {path} is a file; name a folder, or a file *.csv.")
        writer_class()
        return
    check_regular(path)
    if not path.parent.is_dir():
        raise BadInput(f"train: the folder {path.parent} of the log does not exist; make it first.")
    if path.exists() and not is_log(path):
        raise BadInput(f"train: {path} is not a log of losses; name another file.")


def is_log(path: Path) -> bool:
    """Tell whether a file begins as our CSV files do."""
    with path.open("rb") as file:
        return file.read(len(HEADER)) == HEADER.encode()


def writer_class() -> Any:  # Any: a class of another package
    """Return a SummaryWriter of whichever package is installed."""
    for name in WRITERS:
        with contextlib.suppress(ImportError):
            return importlib.import_module(name).SummaryWriter
    raise BadInput(
        "train: a log folder is for TensorBoard, which needs the package tensorboardX (or torch "
        "with tensorboard); install it, or give a file *.csv."
    )


@contextlib.contextmanager
def opened_log(log: LossLog, ensemble: Ensemble, start: int) -> Iterator[NoteLosses]:
    """Yield a function that logs the windows that are complete and were not logged yet.

    start  the step from which training goes on
    """
    ends = np.minimum(ensemble.window * np.arange(1, ensemble.windows + 1), ensemble.recipe.steps)
    with opened_writer(log, start) as (write, from_start):
        logged = 0 if from_start else int(np.searchsorted(ends, start, side="right"))

        def note(until: int, curves: np.ndarray) -> None:
            nonlocal logged
            complete = int(np.searchsorted(ends, until, side="right"))
            if write is not None and complete > logged:
                write(ends[logged:complete], curves[:, logged:complete])
                logged = complete

        yield note


# Takes steps [windows] and losses [members, windows].
WriteLosses = Callable[[np.ndarray, np.ndarray], None]


@contextlib.contextmanager
def opened_writer(log: LossLog, start: int) -> Iterator[tuple[WriteLosses | None, bool]]:
    """Yield what writes losses, and whether it must also be given those up to `start`."""
    if log is None:
        yield None, False
    elif callable(log):
        called = log

        def call(steps: np.ndarray, losses: np.ndarray) -> None:
            for place, step in enumerate(steps):
                called(int(step), losses[:, place])

        yield call, False
    elif Path(log).suffix == ".csv":
        yield CSVLog(Path(log).expanduser(), start), True
    else:
        # TensorBoard drops what an earlier process logged from purge_step on.
        board = writer_class()(str(Path(log).expanduser()), purge_step=start + 1)

        def add(steps: np.ndarray, losses: np.ndarray) -> None:
            for (member, place), loss in np.ndenumerate(losses):
                board.add_scalar(f"loss/{member}", float(loss), int(steps[place]))
            board.flush()

        try:
            yield add, False
        finally:
            board.close()


class CSVLog:
    """A CSV file that holds the run from its first step, and no step twice.

    When training goes on from a checkpoint, the file is written anew, because the checkpoint knows
    all earlier losses. Later rows are appended, the rows of a chunk at once.
    """

    def __init__(self, path: Path, start: int):
        if start == 0 and path.exists() and path.stat().st_size > len(HEADER):
            raise BadInput(
                f"train: the log {path} holds another run; remove it or name another file."
            )
        self.path, self.begun = path, False

    def __call__(self, steps: np.ndarray, losses: np.ndarray) -> None:
        rows = "".join(
            f"{step},{member},{loss:.9g}\n"
            for step, column in zip(steps, losses.T, strict=True)
            for member, loss in enumerate(column)
        )
        if not self.begun:
            write_atomically(self.path, (HEADER + rows).encode())
            self.begun = True
            return
        with self.path.open("ab") as file:
            file.write(rows.encode())
