"""Workers as jobs of a queueing system, by dask-jobqueue; one worker is one job.

A YAML file names the system and says what a job asks for; docs/cluster.md has an example and its
words. The scheduler runs in this process. Connections are encrypted with certificates that live as
long as it does, unless others are given; workers find them in `shared-temp-directory`, which every
host must see.
"""

import contextlib
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any  # dask-jobqueue has no types

from underhood.common.errors import BadInput, reason_of, refuse
from underhood.common.files import Json
from underhood.common.numbers import whole_problems
from underhood.sweeps.dask.certificates import NO_DASHBOARD, TLSFiles, require_dask
from underhood.sweeps.dask.scheduler import configure
from underhood.sweeps.dask.worker import OWN_GPU

# The classes of dask-jobqueue by what files call them.
QUEUE_SYSTEMS = {
    name.lower(): f"{name}Cluster"
    for name in ("SLURM", "PBS", "SGE", "LSF", "HTCondor", "Moab", "OAR", "Local")
}
# Options that we set: a job is one process that runs one unit at a time.
RESERVED = ("processes", "nanny", "worker_command", "n_workers")


@dataclass(frozen=True)
class Queue:
    """A queueing system.

    kind     one of QUEUE_SYSTEMS
    options  of each job, in the words of dask-jobqueue
    gpu      whether each job has a GPU of its own
    """

    kind: str
    jobs: int
    options: Json = field(default_factory=dict)
    gpu: bool = False

    @classmethod
    def read(cls, path: Path) -> "Queue":
        require_dask()
        import yaml

        try:
            data = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise BadInput(f"--jobqueue {path} cannot be read: {error.strerror}.") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise BadInput(f"--jobqueue {path} is not YAML: {reason_of(error)}.") from None
        if isinstance(data, dict) and list(data) == ["jobqueue"]:
            data = data["jobqueue"]
        known = ", ".join(QUEUE_SYSTEMS)
        if not isinstance(data, dict) or len(data) != 1 or next(iter(data)) not in QUEUE_SYSTEMS:
            raise BadInput(f"--jobqueue {path} must name one system, and its options: {known}.")
        ((kind, given),) = data.items()
        if not isinstance(given, dict):
            raise BadInput(f"--jobqueue {path}: give {kind} options, for example cores: 4.")
        options = {str(name).replace("-", "_"): value for name, value in given.items()}
        jobs, gpu = options.pop("jobs", 1), options.pop("gpu", False)
        taken = [f"leave {name} out; a job is one worker" for name in RESERVED if name in options]
        asked = [name for name in ("cores", "memory") if name not in options]
        missing = [f"say what a job asks for, as {name}: …" for name in asked]
        refuse([*whole_problems(jobs=jobs), *taken, *missing], about=f"--jobqueue {path}")
        return cls(kind, jobs, options, bool(gpu))

    @contextlib.contextmanager
    def opened(self, tls: TLSFiles, insecure: bool) -> Iterator[Any]:  # Any: a cluster
        """Yield the cluster of dask-jobqueue, with jobs in its queue."""
        command = getattr(self.maker().job_cls, "submit_command", None)
        if command and shutil.which(name := command.split()[0]) is None:
            problem = f"{self.kind} needs the command {name}, which is not here"
            raise BadInput(f"--jobqueue: {problem}; run this where jobs are submitted.")
        cluster = self.made(tls, insecure)
        before = None
        if threading.current_thread() is threading.main_thread():
            # Remove jobs and keys also when this process is told to end.
            before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        try:
            cluster.adapt(minimum_jobs=self.jobs, maximum_jobs=self.jobs, interval="2s")
            yield cluster
        finally:
            with contextlib.suppress(Exception):
                cluster.close(timeout=10)
            if before is not None:
                signal.signal(signal.SIGTERM, before)

    def maker(self) -> Any:  # Any: a class of dask-jobqueue
        import dask_jobqueue
        import dask_jobqueue.local

        kind = QUEUE_SYSTEMS[self.kind]
        return getattr(dask_jobqueue, kind, None) or getattr(dask_jobqueue.local, kind)

    def made(self, tls: TLSFiles, insecure: bool) -> Any:  # Any: a cluster
        """Return the cluster before any job is submitted."""
        # The scheduler runs in this process.
        configure()
        options = {"name": "underhood", **self.options}
        options["scheduler_options"] = NO_DASHBOARD | options.get("scheduler_options", {})
        # When this process ends, no other scheduler follows.
        extra = [*options.pop("worker_extra_args", []), "--once"]
        extra += ["--gpu", OWN_GPU] if self.gpu else []
        if tls.given:
            options["security"] = tls.security()
        elif insecure:
            extra += ["--insecure"]
        else:
            options["security"] = True
            shared = Path(options.get("shared_temp_directory", "~/.cache/underhood")).expanduser()
            shared.mkdir(mode=0o700, parents=True, exist_ok=True)
            options["shared_temp_directory"] = str(shared)
        options |= {"processes": 1, "worker_extra_args": extra}
        options["worker_command"] = "underhood.sweeps.dask.worker"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return self.maker()(**options)
        except (TypeError, ValueError, ImportError, OSError) as error:
            problem = f"{self.kind} refuses these options: {reason_of(error)}"
            raise BadInput(f"--jobqueue: {problem}.") from None
