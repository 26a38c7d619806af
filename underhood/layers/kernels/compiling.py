"""CUDA kernels, compiled by the machine's nvcc for the sizes at hand, when they are first needed.

A library is kept in the user's cache folder, under a name that depends on its text and its sizes.
Without nvcc there are no such kernels, and callers use the plain path.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import jax

HERE = Path(__file__).parent
# Shared memory of a program on Hopper. A kernel that needs more is not used.
MOST_BYTES = 227 * 1024


@cache
def compiler() -> str | None:
    """Return the path of nvcc; None if there is none."""
    homes = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    places = [Path(home) / "bin" / "nvcc" for home in (*homes, "/usr/local/cuda")]
    return shutil.which("nvcc") or next((str(path) for path in places if path.exists()), None)


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "underhood" / "kernels"


def compiled_library(command: Sequence[str], source: Path, folder: Path) -> Path:
    """Compile a source into a shared library, unless the folder has it from the same text."""
    read = [source, *sorted(HERE.glob("*.cuh")), *sorted(HERE.glob("*.h"))]
    texts = (path.read_bytes() for path in read)
    digest = hashlib.sha256(b"\0".join((*texts, " ".join(command).encode()))).hexdigest()[:16]
    library = folder / f"{source.stem}_{digest}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / library.name
            subprocess.run([*command, "-o", made, source], check=True, capture_output=True)
            made.replace(library)
    return library


@cache
def registered(source: Path, handlers: tuple[str, ...], flags: tuple[str, ...]) -> str | None:
    """Compile a source and register its handlers with JAX; None if that fails.

    With several handlers, a name ends in "." and the handler's.
    """
    nvcc = compiler()
    if nvcc is None:
        return None
    capability = str(jax.devices()[0].compute_capability).replace(".", "")
    command = [nvcc, "-std=c++17", "-O3", f"-arch=sm_{capability}", "-shared", "-Xcompiler=-fPIC"]
    command += [f"-I{jax.ffi.include_dir()}", *flags]
    try:
        library = compiled_library(command, source, cache_folder())
        functions = ctypes.CDLL(str(library))
        for handler in handlers:
            name = library.stem if len(handlers) == 1 else f"{library.stem}.{handler}"
            capsule = jax.ffi.pycapsule(getattr(functions, handler))
            jax.ffi.register_ffi_target(name, capsule, platform="CUDA")
    except (OSError, subprocess.CalledProcessError):
        return None
    return library.stem
