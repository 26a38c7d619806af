"""Safetensors files: the one place that reads them."""

from pathlib import Path
from typing import NamedTuple

# Gives NumPy the type bfloat16; comes with JAX.
import ml_dtypes
import numpy as np
import safetensors

from underhood.common.files import irregular_kind

# Types that our layers do not compute in; every such number is a float32 too.
WIDENED = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


class Tensors(NamedTuple):
    """The arrays of a file by name, and its metadata."""

    arrays: dict[str, np.ndarray]
    metadata: dict[str, str]


class UnreadableTensors(ValueError):
    """Why a file is not a readable safetensors file, in one line."""


def read_tensors(path: Path, prefix: str = "") -> Tensors:
    """Read the metadata of a file and its arrays; float16 and bfloat16 become float32.

    prefix  if any name begins with it, only such arrays are read; a file can be large
    """
    # Opening a pipe would wait for somebody to write.
    kind = irregular_kind(path, follow=True)
    if kind is not None and not path.is_dir():
        raise UnreadableTensors(f"it is {kind}")
    # The system's message names the file and the reason; safetensors' does not.
    path.open("rb").close()
    try:
        with safetensors.safe_open(path, "np") as file:
            names = list(file.keys())
            chosen = [name for name in names if name.startswith(prefix)] or names
            arrays = {name: read_array(file, name) for name in chosen}
            return Tensors(arrays, file.metadata() or {})
    except UnreadableTensors:
        raise
    except OSError:
        raise
    except Exception as error:
        # Whatever a damaged header makes the parser raise, the file is what is wrong.
        detail = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise UnreadableTensors(detail) from None


def read_array(file: safetensors.safe_open, name: str) -> np.ndarray:
    """Read one array in a type that our layers know."""
    try:
        array = file.get_tensor(name)
    except (AttributeError, TypeError):
        # NumPy lacks the type.
        kind = file.get_slice(name).get_dtype()
        problem = f"{name} holds {kind} numbers; convert them to F32"
        raise UnreadableTensors(problem) from None
    return array.astype(np.float32) if array.dtype in WIDENED else array


def tensor_shapes(path: Path) -> dict[str, list[int]]:
    """Return the names and shapes of a file's arrays; {} if it cannot be read or was cut off."""
    try:
        with safetensors.safe_open(path, "np") as file:
            return {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, safetensors.SafetensorError):
        return {}
