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
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
from jaxtyping import Array

HERE = Path(__file__).parent
# Shared memory that a program can have, in KiB, by compute capability; elsewhere it is the least.
SHARED_KIB = {"8.0": 163, "8.7": 163, "9.0": 227, "10.0": 227, "10.3": 227, "11.0": 227}
LEAST_SHARED_KIB = 99
# Largest relative error with which a kernel is used. Rounding stays far below, mistakes do not.
LARGEST_ERROR = 1e-4
# Programs are traced in several threads, and a library is compiled and registered once.
ONE_AT_A_TIME = threading.Lock()


@cache
def most_bytes() -> int:
    """Return the shared memory that a program can have; without a GPU, that of an H200."""
    capability = str(getattr(jax.devices()[0], "compute_capability", "9.0"))
    return 1024 * SHARED_KIB.get(capability, LEAST_SHARED_KIB)


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
    texts = [path.read_bytes() for path in read]
    # Headers of XLA belong to a version of jaxlib, and machine code to one of the compiler.
    asked = " ".join((*command, jaxlib.__version__, version_of(command[0])))
    digest = hashlib.sha256(b"\0".join((*texts, asked.encode()))).hexdigest()[:16]
    library = folder / f"{source.stem}_{digest}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / library.name
            subprocess.run([*command, "-o", made, source], check=True, capture_output=True)
            made.replace(library)
    return library


@cache
def version_of(compiler: str) -> str:
    ran = subprocess.run([compiler, "--version"], check=True, capture_output=True, text=True)
    return ran.stdout


def registered(source: Path, handlers: tuple[str, ...], flags: tuple[str, ...]) -> str | None:
    """Compile a source and register its handlers with JAX; None if that fails, with a warning.

    With several handlers, a name ends in "." and the handler's.
    """
    with ONE_AT_A_TIME:
        return register_once(source, handlers, flags)


@cache
def register_once(source: Path, handlers: tuple[str, ...], flags: tuple[str, ...]) -> str | None:
    nvcc = compiler()
    if nvcc is None:
        warn_plain(source, "there is no nvcc")
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
    except subprocess.CalledProcessError as error:
        said = error.stderr if isinstance(error.stderr, str) else error.stderr.decode()
        warn_plain(source, f"it did not compile: {said.strip()[-500:]}")
        return None
    # XLA refuses a library of another version with an error of its own.
    except (OSError, RuntimeError, ValueError) as error:
        warn_plain(source, str(error))
        return None
    return library.stem


def agrees_here(source: Path, error_of: Callable[[], float]) -> bool:
    """Tell whether a kernel agrees with its equations on this machine, with a warning if not.

    A compiler or a GPU may do what no test has seen. Training asks while it traces; a thread of its
    own traces nothing.
    """
    with ThreadPoolExecutor(1) as pool:
        error = pool.submit(error_of).result()
    if error <= LARGEST_ERROR:
        return True
    warn_plain(source, f"on this machine its relative error is {error:.0e}")
    return False


def relative_error(pairs: Iterable[tuple[Array, Array]]) -> float:
    """Return the largest error of an array beside its expected one, relative to the latter.

    It is not a number if any of the errors is none.
    """
    return float(np.max([jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b)) for a, b in pairs]))


def warn_plain(source: Path, reason: str) -> None:
    warnings.warn(f"Trained without the kernel {source.name}: {reason}", stacklevel=3)
