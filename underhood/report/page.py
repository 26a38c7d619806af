"""One HTML page from result files: self-contained, offline, safe with any strings in them.

The template escapes everything it is given; charts travel as compressed JSON in base64, in which
`<` cannot occur; and a Content-Security-Policy allows no script but the page's own, by its hash.

Scripts are ES modules that import one another by lines `import { name } from "./file.js";`. Here
they are joined in the order of their imports, without those lines and without the word `export`. So
top-level names must be unique over all files, which a test checks.
"""

import base64
import hashlib
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import jinja2
from jinja2.utils import markupsafe

from underhood.common.files import Json
from underhood.report.charts import Chart, Figure, Grid, alt_text, encode_chart, share_lists
from underhood.report.tallies import deciding, tally_of_ours, what_we_found
from underhood.results.claims import CLAIMS, Claim
from underhood.results.files import (
    OURS,
    PAPERS,
    Results,
    claim_words,
    columns_of,
    number_text,
    select_numbers,
    verdict_words,
)
from underhood.results.verdicts import FAILS, HOLDS, NOT_RUN

# How a verdict looks where colour is not enough.
SIGNS = dict(zip((*HOLDS, *FAILS), "▲✓≠✗", strict=True))
MARK = "<!-- underhood report -->"
IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([a-z_]+\.js)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export ", re.MULTILINE)


@dataclass(frozen=True)
class Part:
    """A section of the page: a claim, and its result or the reason why there is none."""

    claim: Claim
    result: Json | None
    missing: str
    figure: Figure | None
    no_figure: str


def parts_of(results: Results, figures: dict[str, Figure], without: dict[str, str]) -> list[Part]:
    """Return the fifteen claims in their order, then whatever else lies in the folder.

    Experiments of our own are shown where they were run.
    """
    by_name: dict[str, Json] = {}
    for result in results.results:
        by_name.setdefault(result["experiment"], result)
    claims = {claim.name: claim for claim in CLAIMS}
    for name in (*by_name, *results.unreadable):
        claims.setdefault(name, Claim(name, name, "", ""))
    parts = []
    for name, claim in claims.items():
        reason = results.unreadable.get(name)
        if claim.ours and name not in by_name and reason is None:
            continue
        missing = f"Its file cannot be shown: {reason}." if reason else "It was not run."
        figure = figures.get(name), without.get(name, "")
        parts.append(Part(claim, by_name.get(name), "" if name in by_name else missing, *figure))
    return parts


def page_text(results: Results, figures: dict[str, Figure], without: dict[str, str]) -> str:
    """Return the page.

    figures   by the name of their claim
    without   why a claim has no figure
    """
    parts = parts_of(results, figures, without)
    shown = [part.result for part in parts if part.result]
    drawn = [part.figure for part in parts if part.figure]
    story = next((figure.story for figure in drawn if figure.story), ())
    # In the order in which the template places them.
    charts: list[Chart] = [step.pictures for step in story]
    charts += [chart for figure in drawn for chart in figure.charts]
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"shown": number_text, "described": alt_text}
    encoded = packed_json(share_lists([encode_chart(chart) for chart in charts]))
    raw = {"mark": MARK, "style": style(), "script": script(), "charts": encoded}
    return environment.from_string(asset("page.html")).render(
        **{name: markupsafe.Markup(text) for name, text in raw.items()},
        policy=policy(),
        parts=parts,
        signs=SIGNS,
        deciding=deciding,
        in_words=what_we_found,
        claim_words=claim_words,
        story=story,
        select_numbers=select_numbers,
        whose=(PAPERS, OURS),
        verdict_words=verdict_words,
        ours=[number for result in shown for number in select_numbers(result, OURS)],
        tally_of_ours=tally_of_ours,
        columns=table_columns,
        provenance=origin_of,
        totals=verdict_counts(part for part in parts if not part.claim.ours),
        totals_beyond=verdict_counts(part for part in parts if part.claim.ours),
        scales=sorted({result["scale"] for result in shown}),
    )


def table_columns(rows: list[Json], figure: Figure | None) -> list[str]:
    """Return the columns of the table of rows, without those that a grid shows for each cell."""
    charts = figure.charts if figure else ()
    hidden = {name for chart in charts if isinstance(chart, Grid) for name in chart.hidden}
    return [name for name in columns_of(rows) if name not in hidden]


def verdict_counts(parts: Iterable[Part]) -> Counter[tuple[str, str]]:
    """Count claims by verdict and by the words for it."""
    return Counter(
        (part.result["verdict"], claim_words(part.result)) if part.result else (NOT_RUN, NOT_RUN)
        for part in parts
    )


def packed_json(value: Json) -> str:
    """Return JSON, compressed and in base64; page.js unpacks it.

    Numbers of charts are most of the page, and take a third of their space so.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def origin_of(result: Json) -> list[tuple[str, str]]:
    origin = result["provenance"]
    seeds, versions, training = (origin.get(name) for name in ("seeds", "versions", "training"))
    pairs = [
        ("scale", result["scale"]),
        *((name, origin.get(name)) for name in ("commit", "device", "seconds")),
        ("seeds", len(seeds) if isinstance(seeds, list) else None),
        ("updates", origin.get("steps") or None),
    ]
    if isinstance(versions, dict):
        pairs.append(("versions", ", ".join(f"{name} {of}" for name, of in versions.items())))
    for run in training if isinstance(training, list) else []:
        if isinstance(run, dict):
            words = [f"{run.get('students', '?')} students", run.get("device")]
            words += [f"{run['seconds']:.0f} s"] if isinstance(run.get("seconds"), float) else []
            words += [f"commit {run.get('commit')}"] if run.get("commit") else []
            pairs.append(("trained", ", ".join(str(word) for word in words if word)))
    return [(name, number_text(value)) for name, value in pairs if value not in (None, "")]


def asset(name: str) -> str:
    """Return the text of a file of `report/assets`."""
    return files("underhood.report").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def script(first: str = "page.js") -> str:
    """Return one module with all that a file needs, each part after what it imports."""
    parts: dict[str, str] = {}

    def add(name: str) -> None:
        text = asset(name)
        for needed in IMPORT.finditer(text):
            if needed[2] not in parts:
                add(needed[2])
        parts[name] = EXPORT.sub("", IMPORT.sub("", text))

    add(first)
    return "\n".join(parts.values())


@cache
def style() -> str:
    return "\n".join(map(asset, ("page.css", "explorer.css")))


def policy_hash(text: str) -> str:
    """Return the name of an inline script or style in a Content-Security-Policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def policy() -> str:
    """Return a policy that allows no request, and no script or style but ours."""
    ours = f"script-src '{policy_hash(script())}'; style-src '{policy_hash(style())}'"
    return f"default-src 'none'; {ours}; base-uri 'none'; form-action 'none'"
