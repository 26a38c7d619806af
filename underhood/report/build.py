"""From a folder of results to the page and the figures for print. Never trains."""

from dataclasses import dataclass
from pathlib import Path

from underhood.report.charts import Figure
from underhood.report.drawing import draw, write
from underhood.report.figures import NoFigure, figure_of
from underhood.report.page import MARK, page
from underhood.report.results import Entry, Found


@dataclass(frozen=True)
class Built:
    """What was written, and the claims that have no figure, with the reason."""

    page: Path
    size: int
    figures: tuple[Path, ...]
    without: dict[str, str]


def build(found: Found, output: Path, *, for_print: bool = True) -> Built:
    """The page, and with `for_print` NAME/figure.pdf, .svg and .png beside every result."""
    figures: dict[str, Figure] = {}
    without: dict[str, str] = {}
    drawn: list[Path] = []
    for entry in found.entries:
        name = entry.result["experiment"]
        try:
            figures[name] = figure_of(entry.folder, entry.result)
            drawn += draw(entry.folder, figures[name], titled(entry)) if for_print else []
        except NoFigure as reason:
            without[name] = str(reason)
    text = page(found, figures, without).encode()
    write(output, text)
    return Built(output, len(text), tuple(drawn), without)


def titled(entry: Entry) -> str:
    return f"{entry.result['experiment']} ({entry.result['scale']} scale)"


def is_report(path: Path) -> bool:
    """Whether a file is a page of ours, which may be replaced."""
    with open(path, "rb") as file:
        return MARK.encode() in file.read(1000)
