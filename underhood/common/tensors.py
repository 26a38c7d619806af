"""Safetensors files: the one place that reads them."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors


class Tensors(NamedTuple):
    """The arrays of a file by name, and its metadata."""

    arrays: dict[str, np.ndarray]
    metadata: dict[str, str]


class UnreadableTensors(ValueError):
    """Why a file is not a readable safetensors file, in one line."""


def read_tensors(path: Path) -> Tensors:
    """Read all arrays and the metadata of a file."""
    # The system's message names the file and the reason; safetensors' does not.
    path.open("rb").close()
    try:
        with safetensors.safe_open(path, "np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return Tensors(arrays, file.metadata() or {})
    except OSError:
        raise
    except Exception as error:
        # Whatever a damaged header makes the parser raise, the file is what is wrong.
        detail = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise UnreadableTensors(detail) from None


def tensor_shapes(path: Path) -> dict[str, list[int]]:
    """Return the names and shapes of a file's arrays; {} if it cannot be read or was cut off."""
    try:
        with safetensors.safe_open(path, "np") as file:
            return {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, safetensors.SafetensorError):
        return {}
