"""Where numbers come from: commit, source, versions, device.

The source is a checksum of the code that ran. A checkout of the commit has the same, so anyone can
check that a result comes from the commit it names.
"""

import functools
import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path

import jax

from underhood.common.errors import BadInput
from underhood.common.files import Json

PACKAGE = Path(__file__).parent.parent
SOURCE_SUFFIXES = (".py", ".cu", ".cuh", ".cc", ".h")


def provenance() -> Json:
    device = jax.devices()[0]
    packages = ("underhood", "jax", "jaxlib", "equinox", "optax", "numpy")
    versions = {name: version(name) for name in packages}
    return {
        "commit": commit(),
        "source": source_checksum(),
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
    """Return the commit of the source tree, with a + if files have changed; None outside git.

    UNDERHOOD_COMMIT comes first: the history that a copy lies in may be another's.
    """
    if name := os.environ.get("UNDERHOOD_COMMIT"):
        if not re.fullmatch(r"[0-9a-f]{40}", name):
            advice = "give the 40 digits that git rev-parse HEAD prints"
            raise BadInput(f"UNDERHOOD_COMMIT is {name!r}; {advice}.")
        return name

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=PACKAGE, capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()

    try:
        # An installed package may lie in somebody's repository, which does not track it.
        git("ls-files", "--error-unmatch", "__init__.py")
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def source_files(folder: Path) -> list[Path]:
    """Return all files of Python, C++ and CUDA in a folder and below."""
    return sorted(path for path in folder.rglob("*") if path.suffix in SOURCE_SUFFIXES)


@functools.cache
def source_checksum(folder: Path = PACKAGE) -> str:
    """Return a checksum of the paths and contents of a package's source files, 16 digits."""
    total = hashlib.sha256()
    paths = {path.relative_to(folder).as_posix(): path for path in source_files(folder)}
    for name in sorted(paths):
        data = paths[name].read_bytes()
        # The length keeps the end of a file apart from the beginning of the next.
        total.update(f"{name} {len(data)}\n".encode() + data)
    return total.hexdigest()[:16]
