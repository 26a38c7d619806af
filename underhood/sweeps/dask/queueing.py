"""Workers as jobs of a queueing system, by dask-jobqueue; one worker is one job.

A file says which system and what a job asks for, in the words of dask-jobqueue:

    slurm:
      jobs: 8                 # how many; a job that ends early is submitted again
      cores: 4
      memory: 16GB
      walltime: "04:00:00"
      queue: gpu
      gpu: true               # the job has a GPU of its own
      job-extra-directives: ["--gres=gpu:1"]

The scheduler runs in this process. Connections are encrypted with certificates that live as long
as it does, unless others are given; workers find them in `shared-temp-directory`, which every host
must see (the home directory's .cache/underhood unless given).
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

from underhood.common.errors import BadInput
from underhood.common.files import Json
from underhood.common.numbers import is_whole
from underhood.sweeps.dask.certificates import HTTP, Certificates
from underhood.sweeps.dask.scheduler import configure
from underhood.sweeps.dask.worker import OWN_GPU

# The classes of dask-jobqueue by what files call them.
SYSTEM_NAMES = ("SLURM", "PBS", "SGE", "LSF", "HTCondor", "Moab", "OAR", "Local")
QUEUE_SYSTEMS = {name.lower(): f"{name}Cluster" for name in SYSTEM_NAMES}
SHARED = ".cache/underhood"
# Options that we set: a job is one process that runs one unit at a time.
RESERVED = ("processes", "nanny", "worker_command", "n_workers")


@dataclass(frozen=True)
class Queue:
    """A queueing system.

    kind     its name, one of QUEUE_SYSTEMS
    jobs     how many
    options  of each job, in the words of dask-jobqueue
    gpu      whether each job has a GPU of its own
    """

    kind: str
    jobs: int
    options: Json = field(default_factory=dict)
    gpu: bool = False

    @classmethod
    def read(cls, path: Path) -> "Queue":
        """Read a file; refuse what it cannot mean."""
        import yaml

        try:
            data = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise BadInput(f"--jobqueue {path} cannot be read: {error.strerror}.") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            where = " ".join(str(error).split())[:200]
            raise BadInput(f"--jobqueue {path} is not YAML: {where}.") from None
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
        if not is_whole(jobs) or jobs < 1:
            raise BadInput(f"--jobqueue {path}: jobs is {jobs!r}; give how many, as jobs: 4.")
        for name in RESERVED:
            if name in options:
                raise BadInput(f"--jobqueue {path}: leave {name} out; a job is one worker.")
        for name in ("cores", "memory"):
            if name not in options:
                raise BadInput(f"--jobqueue {path}: say what a job asks for, as {name}: ….")
        return cls(kind, jobs, options, bool(gpu))

    @contextlib.contextmanager
    def opened(self, tls: Certificates, insecure: bool) -> Iterator[Any]:  # Any: a cluster
        """Yield the cluster of dask-jobqueue, with jobs in its queue."""
        command = getattr(self.maker().job_cls, "submit_command", None)
        if command and shutil.which(command.split()[0]) is None:
            raise BadInput(
                f"--jobqueue: {self.kind} needs the command {command.split()[0]}, which is not "
                "here; run this where jobs are submitted."
            )
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

    def made(self, tls: Certificates, insecure: bool) -> Any:  # Any: a cluster
        """Return the cluster before any job is submitted."""
        # The scheduler runs in this process.
        configure()
        options = {"name": "underhood", **self.options}
        shown: Json = {"dashboard": False, "dashboard_address": HTTP}
        options["scheduler_options"] = shown | options.get("scheduler_options", {})
        # When this process ends, no other scheduler follows.
        extra = [*options.pop("worker_extra_args", []), "--once"]
        extra += ["--gpu", OWN_GPU] if self.gpu else []
        if tls.given:
            options["security"] = tls.security()
        elif insecure:
            extra += ["--insecure"]
        else:
            options["security"] = True
            shared = Path(options.get("shared_temp_directory", Path.home() / SHARED)).expanduser()
            shared.mkdir(mode=0o700, parents=True, exist_ok=True)
            options["shared_temp_directory"] = str(shared)
        options |= {"processes": 1, "worker_extra_args": extra}
        options["worker_command"] = "underhood.sweeps.dask.worker"
        maker = self.maker()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return maker(**options)
        except (TypeError, ValueError, ImportError, OSError) as error:
            reason = " ".join(str(error).split())[:300]
            raise BadInput(f"--jobqueue: {self.kind} refuses these options: {reason}.") from None
