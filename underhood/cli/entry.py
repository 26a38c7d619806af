"""The command line: underhood COMMAND.

Exit status 0: done; 1: something failed, or with --strict a claim did not hold; 2: bad input, one
line on stderr that says what to change, nothing half-written; 130: interrupted.

This file imports little, so that --help answers at once and Ctrl-C is heard early.
"""

import io
import os
import sys

from underhood import __version__
from underhood.cli.messages import complain, suggestion
from underhood.common.errors import BadInput, in_words

# The command NAME is the class Name in underhood/cli/NAME.py: a frozen dataclass with the options
# (tyro reads them) and a method run() that returns the exit status.
COMMANDS = {
    "list": "List the experiments that can be reproduced.",
    "reproduce": "Redo results of the paper and judge them by their rules.",
    "report": "Turn the result files in a folder into one page, and into figures for print.",
    "sweep": "Train the students of a study of your own; finished students are kept.",
    "compile": "Compile attention weights, or a gated RNN, into a recurrent network.",
    "decompile": "Find the attention that a gated RNN computes; status 1 if there is none.",
    "inspect": "Show what is in a file: layers, sizes, roles, and a picture of every matrix.",
}

HELP = """\
usage: underhood COMMAND [OPTIONS]

Finds the attention under the hood of recurrent networks.

{commands}

underhood COMMAND --help shows the options of a command, underhood --version the version.
Exit status: 0 done; 1 something failed; 2 bad input; 130 interrupted.
"""

# What a command leaves behind when it is interrupted.
KEPT = {
    "reproduce": "; what is done is kept, and --resume goes on",
    "sweep": "; what is done is kept, and the same command goes on",
}


def main(arguments: list[str] | None = None) -> int:
    """Run a command and turn whatever goes wrong into one line and an exit status.

    arguments  the words after `underhood`; None: those of this process, which Ctrl-C then ends
    """
    words = sys.argv[1:] if arguments is None else arguments
    interrupted = f"interrupted{KEPT.get(words[0], '') if words else ''}."
    try:
        if arguments is None:
            from underhood.cli.interrupts import hear_interrupts

            hear_interrupts(interrupted, main.__code__)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                # A terminal that lacks a character shows a question mark, not a traceback.
                stream.reconfigure(errors="replace")
        status = run_command(words)
        print(end="", flush=True)
        return status
    except BrokenPipeError:
        # Nobody reads our output any more. Python would write the rest of it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (BadInput, OSError) as error:
        complain(in_words(error))
        return 2
    except KeyboardInterrupt:
        if arguments is None:
            from underhood.cli.interrupts import leave

            leave(interrupted)
        complain(interrupted)
        return 130


def run_command(words: list[str]) -> int:
    """Run the command that the words name, and return its exit status."""
    if not words:
        raise BadInput(f"Name a command: {', '.join(COMMANDS)}. See underhood --help.")
    name = words[0]
    if name in ("-h", "--help"):
        commands = "\n".join(f"  {name:11}{does}" for name, does in COMMANDS.items())
        print(HELP.format(commands=commands), end="")
        return 0
    if name == "--version":
        print(f"underhood {__version__}")
        return 0
    if name not in COMMANDS and not name.startswith("--tyro-"):
        hint = suggestion(name, [*COMMANDS, "--help", "--version"])
        raise BadInput(f"Unknown command {name}{hint} See underhood --help.")
    from underhood.cli.arguments import parse

    run = parse(words)
    return 0 if run is None else run()
