"""Docstrings of this project are plain text; this makes Markdown of them for the API pages.

A paragraph whose lines are indented, or aligned in columns, is a table or an equation and becomes
a text block. The others are Markdown already.
"""

import re
from typing import Any

import griffe

ALIGNED = re.compile(r"\S {2,}\S")


class TextBlocks(griffe.Extension):
    """Runs over every docstring that mkdocstrings shows."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called once for every module, class, function and attribute."""
        if obj.docstring is not None:
            paragraphs = re.split(r"\n{2,}", obj.docstring.value)
            obj.docstring.value = "\n\n".join(map(as_markdown, paragraphs))


def as_markdown(paragraph: str) -> str:
    """The paragraph, in a text block if its lines must not flow."""
    lines = paragraph.splitlines()
    if any(line.startswith("    ") for line in lines) or any(map(ALIGNED.search, lines)):
        return f"```text\n{paragraph}\n```"
    return paragraph
