"""Options of commands that train: on which engine, and where its workers are."""

from dataclasses import dataclass
from pathlib import Path

from underhood.cli.arguments import Maybe


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Options that choose where students are trained."""

    engine: str = "local"
    """local (train in this process) or dask."""
    workers: Maybe[int] = None
    """dask: start this many workers on this machine."""
    address: Maybe[str] = None
    """dask: use a scheduler that runs already, tls://HOST:PORT or tcp://127.0.0.1:PORT."""
    jobqueue: Maybe[Path] = None
    """dask: start workers as jobs of Slurm, PBS and others, as this YAML file says
    (docs/cluster.md)."""
    needs: Maybe[str] = None
    """dask: use only workers that advertise this resource (gpu, cpu, or a custom name)."""
    insecure: bool = False
    """dask: allow connections without TLS that other machines can reach."""
    tls_ca: Maybe[str] = None
    """dask: file with the certificate of the authority."""
    tls_cert: Maybe[str] = None
    """dask: file with the certificate of this process."""
    tls_key: Maybe[str] = None
    """dask: file with the key of this process."""
