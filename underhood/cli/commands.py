"""The commands, their help, and what goes wrong with them in one line on stderr.

Exit status 0: done; 1: something failed, or with --strict a claim did not hold; 2: bad input, one
line that says what to change, nothing half-written; 75: the time of --stop-after was over; 130:
interrupted.
"""

import errno
import io
import os
import sys

from underhood import __version__
from underhood.common.errors import BadInput, check_name, in_words

# Failures of the disk that no other input would avoid: full, over quota, too large a file, broken.
DISK_FAILURES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

# The command NAME is the class Name in underhood/cli/NAME.py, or in the folder NAME: a frozen
# dataclass with the options (tyro reads them) and a method run() that returns the exit status.
COMMANDS = {
    "discover": "Train a random student, and find its teacher's attention in it.",
    "list": "List the experiments that can be reproduced.",
    "reproduce": "Repeat experiments of the paper and judge the results.",
    "verify": "Compute results again from the stored students, and compare; trains nothing.",
    "report": "Turn the result files in a folder into one page, and into figures for print.",
    "sweep": "Train the students of a study of your own; finished students are kept.",
    "compile": "Compile attention weights, or a gated RNN, into a recurrent network.",
    "decompile": "Find the attention that a gated RNN computes, with a certificate.",
    "recall": "Solve associative recall without training, with a state of a given size.",
    "plant": "Write networks with a known attention inside, to test methods on.",
    "grade": "Grade a method's answers about planted networks.",
    "inspect": "Show what is in a file: layers, sizes, roles, and a picture of every matrix.",
}

LISTED = "\n".join(f"  {command:11}{does}" for command, does in COMMANDS.items())
HELP = f"""\
usage: underhood COMMAND [OPTIONS]

Finds the attention under the hood of recurrent networks.

{LISTED}

underhood COMMAND --help shows the options of a command, underhood --version the version.
Exit status: 0 done; 1 something failed; 2 bad input; 130 interrupted. decompile also: 3 not
attention; 4 undecided. reproduce also: 75 stopped by --stop-after, to be continued.
"""


def run_command(words: list[str]) -> int:
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
        return 1 if getattr(error, "errno", None) in DISK_FAILURES else 2


def answer(words: list[str]) -> int:
    """Print help or the version, or run a command; return the exit status."""
    if not words:
        raise BadInput(f"Name a command: {', '.join(COMMANDS)}. See underhood --help.")
    name = words[0]
    if name in ("-h", "--help"):
        print(HELP, end="")
        return 0
    if name == "--version":
        print(f"underhood {__version__}")
        return 0
    if not name.startswith("--tyro-"):
        kind = "option" if name.startswith("-") else "command"
        check_name(kind, name, [*COMMANDS, "--help", "--version"])
    from underhood.cli.arguments import parse

    run = parse(words)
    return 0 if run is None else run()


def complain(message: str) -> None:
    print(f"underhood: {' '.join(message.split())}", file=sys.stderr)
