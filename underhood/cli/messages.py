"""Lines about problems, on stderr."""

import sys


def complain(message: str) -> None:
    """Print a message on stderr as one line."""
    print(f"underhood: {' '.join(message.split())}", file=sys.stderr)


def suggestion(word: str, known: list[str]) -> str:
    """Return a question with the known word nearest to a misspelt one, or a full stop."""
    import difflib

    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]}?" if close else "."
