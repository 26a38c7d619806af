"""Files that are written whole or not at all, and JSON as our files have it."""

import contextlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from underhood.common.errors import BadInput

# A JSON object as it comes from a file.
Json = dict[str, Any]


def as_json(data: Any) -> bytes:  # Any: whatever JSON can hold
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def make_output_folder(folder: Path, *, ours: Collection[str], begun: bool) -> None:
    """Make a folder for output; refuse a file, what cannot be written, and other people's files.

    ours   names that such a folder may hold, besides hidden files
    begun  whether the folder holds output already; then other files may be there too
    """
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"The output {folder} is a file; name a folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        names = sorted(path.name for path in folder.iterdir() if path.name[0] != ".")
        probe = folder / f".{time.time_ns()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        problem = f"cannot be written: {error.strerror}"
        raise BadInput(f"The output folder {folder} {problem}; choose another.") from None
    if not begun and (foreign := [name for name in names if name not in ours]):
        advice = "name a new or empty folder, or one that underhood wrote"
        raise BadInput(f"The output folder {folder} holds other files ({foreign[0]}); {advice}.")


# What else than a regular file a path may name.
FILE_KINDS: dict[int, str] = {
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def irregular_kind(path: Path, *, follow: bool) -> str | None:
    """Return what a path names, "a folder" for example; None for a regular file or nothing.

    follow  look at what a symbolic link points to, not at the link
    """
    try:
        mode = (path.stat if follow else path.lstat)().st_mode
    except FileNotFoundError:
        return None
    return None if stat.S_ISREG(mode) else FILE_KINDS.get(stat.S_IFMT(mode), "no regular file")


def check_regular(path: Path) -> None:
    """Refuse an output that names anything but a regular file or nothing: a rename would end it."""
    if (kind := irregular_kind(path, follow=False)) is not None:
        raise BadInput(f"The output {path} is {kind}; name a regular file.")


def write_atomically(path: Path, data: bytes) -> None:
    """Write to a temporary file beside the target, then rename: never half a file."""
    check_regular(path)
    try:
        write_and_rename(path, data)
    except OSError as error:
        # The caller knows the path, not the temporary one beside it. A full disk names no file.
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None


def write_and_rename(path: Path, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
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
