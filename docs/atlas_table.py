"""Write the table of the atlas into docs/modern.md, from the answers of `uh.can`.

    python docs/atlas_table.py

A cell has a sign for the answer, the order of a limit, and the letters of the theorems.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from underhood.constructions.atlas import ATLAS_SOURCES, THEOREMS, AtlasAnswer, atlas_targets, can
from underhood.constructions.atlas.facts import facts_of

PAGE = Path(__file__).parent / "modern.md"
SIGNS = {"exact": "=", "limit": "→", "impossible": "✕", "open": "?"}
PLACE = re.compile(
    r"(<!-- written by docs/atlas_table.py -->\n).*?(\n<!-- end of what it writes -->)", re.DOTALL
)


def table_text(answers: Mapping[tuple[str, str], AtlasAnswer]) -> str:
    """Return the table: a row per target, a column per source."""
    titles = [source.title for source in ATLAS_SOURCES.values()]
    lines = [f"| | {' | '.join(titles)} |", "|---" * (len(titles) + 1) + "|"]
    for target in atlas_targets():
        cells = [cell_text(answers[source, target]) for source in ATLAS_SOURCES]
        lines.append(f"| {facts_of(target).title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell_text(answer: AtlasAnswer) -> str:
    letters = "".join(THEOREMS[name].letter for name in answer.theorems)
    words = (SIGNS[answer.answer], str(answer.order or ""), letters)
    return " ".join(word for word in words if word)


def with_answers(page: str, answers: Mapping[tuple[str, str], AtlasAnswer]) -> str:
    """Return the page with the table in its place."""
    return PLACE.sub(lambda place: f"{place[1]}\n{table_text(answers)}\n{place[2]}", page)


if __name__ == "__main__":
    every = {
        (source, target): can(source, target)
        for source in ATLAS_SOURCES
        for target in atlas_targets()
    }
    PAGE.write_text(with_answers(PAGE.read_text(encoding="utf-8"), every), encoding="utf-8")
