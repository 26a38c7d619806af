"""One HTML page from result files: self-contained, offline, safe with any strings in them.

The template escapes everything it is given; charts travel as JSON in which `<` cannot occur; and a
Content-Security-Policy allows no script but the page's own.
"""

import json
from collections import Counter
from dataclasses import dataclass

import jinja2
from jinja2.utils import markupsafe

from underhood.common.files import Json
from underhood.report.bundle import asset, policy, script, style
from underhood.report.charts import Chart, Figure, alt_text, encode_chart, shortened
from underhood.report.terminal import columns_of, number_text
from underhood.results.claims import CLAIMS, Claim
from underhood.results.files import Results
from underhood.results.verdicts import FAILS, HOLDS, NOT_JUDGED, NOT_RUN

# How a verdict looks where colour is not enough.
SIGNS = dict(zip((*HOLDS, *FAILS), "▲✓≠✗", strict=True))
MARK = "<!-- underhood report -->"


@dataclass(frozen=True)
class Part:
    """A section of the page: a claim, and its result or the reason why there is none."""

    claim: Claim
    result: Json | None
    missing: str
    figure: Figure | None
    no_figure: str


def parts_of(results: Results, figures: dict[str, Figure], without: dict[str, str]) -> list[Part]:
    """Return the fifteen claims in their order, then whatever else lies in the folder."""
    by_name: dict[str, Json] = {}
    for result in results.results:
        by_name.setdefault(result["experiment"], result)
    claims = {claim.name: claim for claim in CLAIMS}
    for name in (*by_name, *results.unreadable):
        claims.setdefault(name, Claim(name, name, "", ""))
    parts = []
    for name, claim in claims.items():
        reason = results.unreadable.get(name)
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
    charts: list[Chart] = []
    places: dict[str, range] = {}
    for part in parts:
        if part.figure:
            places[part.claim.name] = range(len(charts), len(charts) + len(part.figure.charts))
            charts += part.figure.charts
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"shown": number_text, "described": alt_text}
    encoded = script_json([encode_chart(chart) for chart in charts])
    raw = {"mark": MARK, "style": style(), "script": script(), "charts": encoded}
    return environment.from_string(asset("page.html")).render(
        **{name: markupsafe.Markup(text) for name, text in raw.items()},
        policy=policy(),
        drawn=charts,
        places=places,
        parts=parts,
        signs=SIGNS,
        deciding=deciding,
        found=what_we_found,
        columns=columns_of,
        provenance=origin_of,
        totals=Counter(part.result["verdict"] if part.result else NOT_RUN for part in parts),
        scales=sorted({part.result["scale"] for part in parts if part.result}),
    )


def script_json(value: list[Json]) -> str:
    """Return JSON that cannot end the script element it stands in."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def deciding(result: Json) -> Json | None:
    """Return the number that a claim's verdict rests on.

    The first number with that verdict, if possible one that the paper gives; else the first of all.
    """
    numbers = result["numbers"]
    same = [number for number in numbers if number["verdict"] == result["verdict"]]
    of_paper = [number for number in same if number["paper"] is not None]
    return next(iter(of_paper or same or numbers), None)


def what_we_found(result: Json) -> str:
    """Return a sentence: how many numbers hold, and which do not."""
    numbers = result["numbers"]
    judged = [number for number in numbers if number["verdict"] not in (NOT_JUDGED, NOT_RUN)]
    if not judged:
        return "Nothing was judged: too few seeds or steps for a verdict."
    holding = sum(number["verdict"] in HOLDS for number in judged)
    text = f"{holding} of {len(judged)} judged numbers hold"
    for verdict in FAILS:
        names = [number["name"] for number in judged if number["verdict"] == verdict]
        text += f"; {verdict}: {shortened(names, 6)}" if names else ""
    left = len(numbers) - len(judged)
    return text + (f"; {left} not judged." if left else ".")


def origin_of(result: Json) -> list[tuple[str, str]]:
    """Return where a result comes from, as pairs of words."""
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
