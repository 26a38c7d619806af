"""From a folder of results to the page and the figures for print. Never trains."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from underhood.report.charts import Figure, NoFigure
from underhood.report.drawing import FORMATS, draw, write
from underhood.report.figures import figure_of
from underhood.report.page import MARK, page
from underhood.results.files import Entry, Found


@dataclass(frozen=True)
class Built:
    """What was written, and the claims that have no figure, with the reason."""

    page: Path
    size: int
    figures: tuple[Path, ...]
    without: dict[str, str]


def build(
    found: Found,
    output: Path,
    *,
    for_print: bool = True,
    beside: bool = True,
    renew: Collection[str] | None = None,
) -> Built:
    """The page, and with `for_print` figures as PDF, SVG and PNG.

    beside   NAME/figure.* beside every result; otherwise PAGE_figures/NAME/figure.* beside the page
    renew    print figures of these experiments alone, and of them what is missing or older than the
             result; None: of all, always
    """
    figures: dict[str, Figure] = {}
    without: dict[str, str] = {}
    drawn: list[Path] = []
    for entry in found.entries:
        name = entry.result["experiment"]
        try:
            figure = figure_of(entry.folder, entry.result)
            if for_print and (renew is None or (name in renew and outdated(entry.folder))):
                drawn += draw(place_of(entry, output, beside), figure, titled(entry))
            figures[name] = figure
        except NoFigure as reason:
            without[name] = str(reason)
    text = page(found, figures, without).encode()
    write(output, text)
    return Built(output, len(text), tuple(drawn), without)


def place_of(entry: Entry, output: Path, beside: bool) -> Path:
    """The folder of a result's figures."""
    if beside:
        return entry.folder
    place = output.parent / f"{output.stem}_figures" / entry.folder.name
    place.mkdir(parents=True, exist_ok=True)
    return place


def outdated(folder: Path) -> bool:
    """Whether a figure for print is missing, or was drawn before the result was written."""
    written = (folder / "result.json").stat().st_mtime_ns
    figures = [folder / f"figure.{kind}" for kind in FORMATS]
    return not all(one.exists() and one.stat().st_mtime_ns >= written for one in figures)


def titled(entry: Entry) -> str:
    return f"{entry.result['experiment']} ({entry.result['scale']} scale)"


def is_report(path: Path) -> bool:
    """Whether a file is a page of ours, which may be replaced."""
    with open(path, "rb") as file:
        return MARK.encode() in file.read(1000)
