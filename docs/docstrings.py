"""Turn docstrings, which are plain text, into Markdown for the API pages.

A paragraph with indented lines or aligned columns is a table or an equation. It becomes a text
block, so that its lines stay as they are. Other paragraphs are valid Markdown.
"""

import re
from typing import Any

import griffe

ALIGNED = re.compile(r"\S {2,}\S")


class TextBlocks(griffe.Extension):
    """An extension of griffe that sees every docstring that mkdocstrings shows."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            paragraphs = re.split(r"\n{2,}", obj.docstring.value)
            obj.docstring.value = "\n\n".join(map(as_markdown, paragraphs))


def as_markdown(paragraph: str) -> str:
    """Return the paragraph, in a text block if its lines must not be joined."""
    lines = paragraph.splitlines()
    if any(line.startswith("    ") for line in lines) or any(map(ALIGNED.search, lines)):
        return f"```text\n{paragraph}\n```"
    return paragraph
