"""From a folder of results to the page and the figures for print. Never trains."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from underhood.common.files import write_atomically
from underhood.report.charts import Figure, NoFigure
from underhood.report.drawing import FORMATS, draw
from underhood.report.figures import figure_of
from underhood.report.page import MARK, page_text
from underhood.results.files import RESULT, Results


@dataclass(frozen=True)
class BuiltReport:
    """What was written, and the claims that have no figure, with the reason."""

    page: Path
    size: int
    figures: tuple[Path, ...]
    without: dict[str, str]


def build(
    results: Results,
    output: Path,
    *,
    for_print: bool = True,
    beside: bool = True,
    renew: Collection[str] | None = None,
) -> BuiltReport:
    """Write the page, and with `for_print` figures as PDF, SVG and PNG.

    beside   NAME/figure.* beside every result; otherwise PAGE_figures/NAME/figure.* beside the page
    renew    draw figures for print of these experiments only, where they are missing or older than
             the result; None: of all, always
    """
    figures: dict[str, Figure] = {}
    without: dict[str, str] = {}
    drawn: list[Path] = []
    for folder, result in results.entries.items():
        name = result["experiment"]
        try:
            figure = figure_of(folder, result)
            if for_print and (renew is None or (name in renew and outdated(folder))):
                apart = output.parent / f"{output.stem}_figures" / folder.name
                target = folder if beside else apart
                target.mkdir(parents=True, exist_ok=True)
                drawn += draw(target, figure, f"{name} ({result['scale']} scale)")
            figures[name] = figure
        except NoFigure as reason:
            without[name] = str(reason)
    text = page_text(results, figures, without).encode()
    write_atomically(output, text)
    return BuiltReport(output, len(text), tuple(drawn), without)


def outdated(folder: Path) -> bool:
    """Tell whether a figure for print is missing, or older than the result."""
    written = (folder / RESULT).stat().st_mtime_ns
    figures = [folder / f"figure.{kind}" for kind in FORMATS]
    return not all(path.exists() and path.stat().st_mtime_ns >= written for path in figures)


def is_report(path: Path) -> bool:
    """Tell whether a file is a page of ours, which may be replaced."""
    with open(path, "rb") as file:
        return MARK.encode() in file.read(1000)
