"""Run the Python blocks of README.md and of these pages, and write down what they print.

    python docs/refresh.py            every page
    python docs/refresh.py README.md  one of them

A page's blocks share their names, as in a notebook. The text block that follows a Python block
holds its output, so that every number in the documentation is one that a command printed.
"""

import contextlib
import io
import os
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")))
BLOCK = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)


def run_page(text: str, name: str) -> str:
    """The page with every output as its block prints it now."""
    names: dict[str, object] = {"__name__": name}

    def run(block: re.Match[str]) -> str:
        code, old = block.group(1), block.group(2)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, name, "exec"), names)
        if old is None:
            if printed.getvalue():
                raise ValueError(f"{name}: a block prints but has no text block:\n{code}")
            return block.group(0)
        return f"```python\n{code}```\n\n```text\n{printed.getvalue()}```\n"

    folder = os.getcwd()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        try:
            return BLOCK.sub(run, text)
        finally:
            os.chdir(folder)


if __name__ == "__main__":
    for page in sys.argv[1:] or PAGES:
        path = ROOT / page
        before = path.read_text(encoding="utf-8")
        after = run_page(before, page)
        path.write_text(after, encoding="utf-8")
        print(f"{page}: {'changed' if after != before else 'as it was'}")
