"""Run the blocks of README.md and of the pages, and write what they print into the pages.

    python docs/refresh.py            every page
    python docs/refresh.py README.md  one page

The blocks of a page share their variables and one empty folder, as in a notebook. Two kinds run:

    python   the text block that follows holds the output
    console  lines that begin with "$ underhood" are commands, the others are their output;
             a block without output stays without

The table of claims (claims.py) is written too.
"""

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path

from claims import with_table

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "README.md",
    *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")),
)
BLOCK = re.compile(
    r"^```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?|^```console\n(.*?)```\n",
    re.DOTALL | re.MULTILINE,
)


def run_page(text: str, name: str) -> str:
    """Return the page with every output as its block prints it now."""
    names: dict[str, object] = {"__name__": name}

    def run(block: re.Match[str]) -> str:
        code, old, shell = block.groups()
        if shell is not None:
            return f"```console\n{run_commands(shell, name)}```\n"
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, name, "exec"), names)
        if old is None:
            if printed.getvalue():
                raise ValueError(f"{name}: a block prints but has no text block:\n{code}")
            return block.group(0)
        return f"```python\n{code}```\n\n```text\n{trimmed(printed.getvalue())}```\n"

    folder = os.getcwd()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        try:
            return BLOCK.sub(run, text)
        finally:
            os.chdir(folder)


def run_commands(shell: str, name: str) -> str:
    """Run the commands of a console block in this process; return them with what they print."""
    from underhood.cli.entry import main

    lines = shell.splitlines()
    commands = [line for line in lines if line.startswith("$ ")]
    shown = ""
    for command in commands:
        words = shlex.split(command[2:])
        if words[0] != "underhood":
            raise ValueError(f"{name}: only underhood runs in a console block, not {command!r}")
        printed, progress = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(progress):
            status = main(words[1:])
        if status:
            raise ValueError(f"{name}: {command!r} ended with {status}: {progress.getvalue()}")
        shown += command + "\n"
        if len(commands) < len(lines):
            shown += trimmed(printed.getvalue())
    return shown


def trimmed(printed: str) -> str:
    """Return the text without spaces at the ends of lines and empty lines at both ends."""
    lines = [line.rstrip() for line in printed.splitlines()]
    return "\n".join(lines).strip("\n") + "\n"


if __name__ == "__main__":
    for page in sys.argv[1:] or PAGES:
        path = ROOT / page
        before = path.read_text(encoding="utf-8")
        after = run_page(with_table(before, page), page)
        path.write_text(after, encoding="utf-8")
        print(f"{page}: {'changed' if after != before else 'as it was'}")
