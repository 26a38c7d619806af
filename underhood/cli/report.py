"""underhood report: result files into one page, and into figures for print."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from underhood.cli.arguments import Maybe
from underhood.cli.commands import complain
from underhood.common.errors import BadInput
from underhood.common.files import check_regular

if TYPE_CHECKING:
    from underhood.results.files import Results


@dataclass(frozen=True)
class Report:
    folder: tyro.conf.Positional[Path]
    """The folder that underhood reproduce wrote."""
    output: Annotated[Maybe[Path], tyro.conf.arg(aliases=["-o"])] = None
    """Where to write the page; by default FOLDER/report.html."""
    figures: bool = True
    """Also draw figures for print, as PDF, SVG and PNG: FOLDER/NAME/figure.*, or beside the page
    in PAGE_figures if an output is given."""

    def run(self) -> int:
        from underhood.cli.printing import console, summary_table
        from underhood.report.build import build, is_report
        from underhood.results.claims import CLAIMS

        folder = self.folder
        results = results_in(folder)
        output = self.output or folder / "report.html"
        if output.is_dir() or not output.parent.is_dir():
            raise BadInput(f"--output {output} is a folder, or lies in one that does not exist.")
        check_regular(output)
        if output.exists() and not is_report(output):
            raise BadInput(f"{output} exists and is not a report; choose another --output.")
        for name, reason in results.unreadable.items():
            complain(f"left out {name}/result.json: {reason}.")
        built = build(results, output, for_print=self.figures, beside=self.output is None)
        for name, reason in built.without.items():
            complain(f"no figure of {name}: {reason}.")
        places = {claim.name: place for place, claim in enumerate(CLAIMS)}
        names = [result["experiment"] for result in results.results]
        names.sort(key=lambda name: places.get(name, len(places)))
        console().print(summary_table(results.results, names))
        if built.figures:
            place = built.figures[0].parent.parent
            print(f"{len(built.figures)} files for print: {place}/NAME/figure.pdf, .svg, .png")
        print(f"{built.page}: {built.size / 1e6:.1f} MB, opens without a network")
        return 0


def results_in(folder: Path) -> "Results":
    """Return the results in a folder; refuse what is no folder, and a folder without results."""
    from underhood.results.files import find

    if folder.is_file():
        raise BadInput(f"{folder} is a file; give the folder that underhood reproduce wrote.")
    if not folder.is_dir():
        raise BadInput(f"The folder {folder} does not exist; run underhood reproduce first.")
    results = find(folder)
    if not results.entries and not results.unreadable:
        raise BadInput(f"The folder {folder} holds no results; {where_results_are(folder)}")
    return results


def where_results_are(folder: Path) -> str:
    if (folder / "result.json").exists():
        return f"it is one result; did you mean {folder.resolve().parent}?"
    inside = sorted({path.parent.parent.name for path in folder.glob("*/*/result.json")})
    return f"did you mean {folder / inside[0]}?" if inside else "run underhood reproduce."
