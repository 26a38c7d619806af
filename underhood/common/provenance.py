"""Where numbers come from: commit, versions, device."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

import jax


def provenance() -> dict[str, Any]:
    """What this process runs on."""
    device = jax.devices()[0]
    packages = ("underhood", "jax", "jaxlib", "equinox", "optax", "numpy")
    versions = {name: version(name) for name in packages}
    return {
        "commit": commit(),
        "versions": {"python": platform.python_version(), **versions},
        "device": f"{device.platform} ({device.device_kind})",
    }


def version(package: str) -> str | None:
    """An installed package's version; None where it runs from a folder that is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    """The commit of the source tree, with a + if it has been changed since; None outside git."""
    folder = Path(__file__).parent.parent

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=folder, capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None
