"""The commands, their help, and what goes wrong with them in one line on stderr.

Exit status 0: done; 1: something failed, or with --strict a claim did not hold; 2: bad input, one
line that says what to change, nothing half-written; 130: interrupted.
"""

import io
import os
import sys

from underhood import __version__
from underhood.common.errors import BadInput, in_words

# The command NAME is the class Name in underhood/cli/NAME.py: a frozen dataclass with the options
# (tyro reads them) and a method run() that returns the exit status.
COMMANDS = {
    "list": "List the experiments that can be reproduced.",
    "reproduce": "Repeat experiments of the paper and judge the results.",
    "report": "Turn the result files in a folder into one page, and into figures for print.",
    "sweep": "Train the students of a study of your own; finished students are kept.",
    "compile": "Compile attention weights, or a gated RNN, into a recurrent network.",
    "decompile": "Find the attention that a gated RNN computes; exit status 1 if there is none.",
    "inspect": "Show what is in a file: layers, sizes, roles, and a picture of every matrix.",
}

HELP = """\
usage: underhood COMMAND [OPTIONS]

Finds the attention under the hood of recurrent networks.

{commands}

underhood COMMAND --help shows the options of a command, underhood --version the version.
Exit status: 0 done; 1 something failed; 2 bad input; 130 interrupted.
"""


def run_command(words: list[str]) -> int:
    """Run the command in the words and return its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that lacks a character shows a question mark, not a traceback.
            stream.reconfigure(errors="replace")
    try:
        status = answer(words)
        print(end="", flush=True)
        return status
    except BrokenPipeError:
        # Nobody reads our output any more. Python would write the rest of it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (BadInput, OSError) as error:
        complain(in_words(error))
        return 2


def answer(words: list[str]) -> int:
    """Print help or the version, or run a command; return the exit status."""
    if not words:
        raise BadInput(f"Name a command: {', '.join(COMMANDS)}. See underhood --help.")
    name = words[0]
    if name in ("-h", "--help"):
        rows = (f"  {command:11}{does}" for command, does in COMMANDS.items())
        print(HELP.format(commands="\n".join(rows)), end="")
        return 0
    if name == "--version":
        print(f"underhood {__version__}")
        return 0
    if name not in COMMANDS and not name.startswith("--tyro-"):
        hint = suggestion(name, [*COMMANDS, "--help", "--version"])
        kind = "option" if name.startswith("-") else "command"
        raise BadInput(f"Unknown {kind} {name}{hint} See underhood --help.")
    from underhood.cli.arguments import parse

    run = parse(words)
    return 0 if run is None else run()


def complain(message: str) -> None:
    """Print a message on stderr as one line."""
    print(f"underhood: {' '.join(message.split())}", file=sys.stderr)


def suggestion(word: str, known: list[str]) -> str:
    """Return the end of a sentence: a question with the nearest known word, or a full stop."""
    import difflib

    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]}?" if close else "."
