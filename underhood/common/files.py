"""Files that are written whole or not at all, and JSON as our files have it."""

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from underhood.common.errors import BadInput

# A JSON object as it comes from a file.
Json = dict[str, Any]


def as_json(data: Any) -> bytes:  # Any: whatever JSON can hold
    """Return data as the text of a JSON file."""
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def check_writable(path: Path, *, replace: bool) -> None:
    """Refuse an output that exists or cannot be written, before any work is done."""
    if path.is_dir():
        raise BadInput(f"The output {path} is a folder; name a file.")
    if path.exists() and not replace:
        raise BadInput(f"The output {path} exists; add --force to replace it.")
    if not path.parent.is_dir():
        raise BadInput(f"The folder {path.parent} does not exist; make it first.")
    if not os.access(path.parent, os.W_OK):
        raise BadInput(f"The folder {path.parent} cannot be written to.")


def write_atomically(path: Path, data: bytes) -> None:
    """Write to a temporary file beside the target, then rename: never half a file."""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        # The caller knows the path, not the temporary one beside it.
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
