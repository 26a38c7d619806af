"""Errors that say what to change, one line each."""

import difflib
from collections.abc import Iterable


class BadInput(ValueError):
    """What the caller gave cannot be used; the message says what to change."""


def refuse(problems: list[str], *, about: str) -> None:
    """Raise one line that lists every problem, if there are any."""
    if problems:
        raise BadInput(f"{about}: {'; '.join(problems)}.")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a question with the nearest known word, to follow a full stop; "" if none is near."""
    names = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), names, n=1)
    return f" Did you mean {names[close[0]]!r}?" if close else ""


def check_name(what: str, name: object, known: Iterable[str]) -> None:
    """Refuse a name of a `what` that is not known; list the known ones, and suggest the nearest."""
    names = list(known)
    if isinstance(name, str) and name in names:
        return
    hint = did_you_mean(str(name), names)
    raise BadInput(f"Unknown {what} {name!r}; use one of {', '.join(names)}.{hint}")


# Letters whose names begin with a vowel: an LSTM, but a GRU.
SPOKEN_WITH_VOWEL = "AEFHILMNORSX"


def with_article(name: str) -> str:
    """Return the name of a class after "a" or "an", as it is spoken."""
    letters = name[:2].isupper() or name.startswith("nd")
    vowel = name[:1].upper() in SPOKEN_WITH_VOWEL if letters else name[:1].lower() in "aeio"
    return f"{'an' if vowel else 'a'} {name}"


def kind_of(value: object) -> str:
    """Return the class of a value after "a" or "an"."""
    return with_article(type(value).__name__)


def in_words(error: Exception) -> str:
    """Return one line about an error of the user's or of the disk."""
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        return f"cannot use {error.filename}: {reason}." if error.filename else f"{reason}."
    return str(error)


def reason_of(error: BaseException) -> str:
    """Return the kind and message of any error in one line of at most 500 characters."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]
