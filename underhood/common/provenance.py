"""Where numbers come from: commit, versions, device."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path

import jax

from underhood.common.files import Json


def provenance() -> Json:
    """Return what this process runs on."""
    device = jax.devices()[0]
    packages = ("underhood", "jax", "jaxlib", "equinox", "optax", "numpy")
    versions = {name: version(name) for name in packages}
    return {
        "commit": commit(),
        "versions": {"python": platform.python_version(), **versions},
        "device": f"{device.platform} ({device.device_kind})",
    }


def version(package: str) -> str | None:
    """Return an installed package's version; None if it runs from a folder."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    """Return the commit of the source tree, with a + if files have changed; None outside git."""
    folder = Path(__file__).parent.parent

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=folder, capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None
