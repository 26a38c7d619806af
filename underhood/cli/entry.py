"""Where the command underhood starts.

Python runs this file before anything else of ours, so it imports nothing: Ctrl-C is heard early,
and --help answers at once.
"""

import sys


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit status.

    arguments  the words after `underhood`; None: those of this process, which then ends with main
    """
    words = sys.argv[1:] if arguments is None else arguments
    ending = None
    try:
        if arguments is None:
            from underhood.cli.ending import Ending

            ending = Ending(words, main.__code__)
        from underhood.cli.commands import run_command

        status = run_command(words)
    except KeyboardInterrupt:
        if ending is not None:
            ending.leave()
        print("underhood: interrupted.", file=sys.stderr)
        status = 130
    if ending is not None:
        ending.status = status
    return status
