"""Errors that say what to change, one line each."""

import difflib
from collections.abc import Iterable


class BadInput(ValueError):
    """What the caller gave cannot be used; the message says what to change."""


def refuse(problems: list[str], *, about: str) -> None:
    """Raise one line that lists every problem, if there are any."""
    if problems:
        raise BadInput(f"{about}: {'; '.join(problems)}.")


def check_name(what: str, name: object, known: Iterable[str]) -> None:
    """Refuse a name that is not known; the message lists the known ones and suggests the nearest.

    what  what the name is of: "target", "form"
    """
    names = list(known)
    if isinstance(name, str) and name in names:
        return
    close = difflib.get_close_matches(str(name), names, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise BadInput(f"Unknown {what} {name!r}; use one of {', '.join(names)}.{hint}")


def in_words(error: Exception) -> str:
    """Return one line about an error of the user's or of the disk."""
    if isinstance(error, OSError):
        where = f" {error.filename}" if error.filename else ""
        return f"cannot use{where}: {error.strerror or error}."
    return str(error)


def reason_of(error: BaseException) -> str:
    """Return the kind and message of any error in one line of at most 500 characters."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]
