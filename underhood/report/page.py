"""One HTML page from result files: self-contained, offline, safe with any strings in them.

The template escapes everything it is given; charts travel as JSON in which `<` cannot occur; and a
Content-Security-Policy allows no script but the page's own.
"""

import json
from dataclasses import dataclass
from typing import Any

import jinja2

from underhood.report.bundle import asset, policy, script, style
from underhood.report.charts import Chart, Figure, described, encoded, listed
from underhood.report.terminal import shown
from underhood.results.claims import SECTIONS, Section
from underhood.results.files import Entry, Found

# How a verdict looks where colour is not enough.
SIGNS = {"better": "▲", "reproduced": "✓", "differs": "≠", "refuted": "✗"}
HOLDS = ("better", "reproduced")
MARK = "<!-- underhood report -->"


@dataclass(frozen=True)
class Part:
    """A section of the page: a claim, and its result or the reason why there is none."""

    section: Section
    result: dict[str, Any] | None
    missing: str
    figure: Figure | None
    no_figure: str


def parts_of(found: Found, figures: dict[str, Figure], without: dict[str, str]) -> list[Part]:
    """The fifteen claims in their order, then whatever else lies in the folder."""
    by_name: dict[str, Entry] = {}
    for entry in found.entries:
        by_name.setdefault(entry.result["experiment"], entry)
    known = [section.name for section in SECTIONS]
    others = [Section(name, name, "") for name in by_name if name not in known]
    others += [
        Section(name, name, "")
        for name in found.unreadable
        if name not in known and name not in by_name
    ]
    parts = []
    for section in (*SECTIONS, *others):
        one = by_name.get(section.name)
        missing = ""
        if one is None:
            reason = found.unreadable.get(section.name)
            missing = f"Its file cannot be shown: {reason}." if reason else "It was not run."
        parts.append(
            Part(
                section,
                one.result if one else None,
                missing,
                figures.get(section.name),
                without.get(section.name, ""),
            )
        )
    return parts


def page(found: Found, figures: dict[str, Figure], without: dict[str, str]) -> str:
    """The page's text."""
    parts = parts_of(found, figures, without)
    charts: list[Chart] = []
    places: dict[str, range] = {}
    for part in parts:
        if part.figure:
            places[part.section.name] = range(len(charts), len(charts) + len(part.figure.charts))
            charts += part.figure.charts
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"shown": shown, "described": described}
    template = environment.from_string(asset("page.html"))
    return template.render(
        mark=jinja2.utils.markupsafe.Markup(MARK),
        policy=policy(),
        style=jinja2.utils.markupsafe.Markup(style()),
        script=jinja2.utils.markupsafe.Markup(script()),
        charts=jinja2.utils.markupsafe.Markup(as_json([encoded(chart) for chart in charts])),
        drawn=charts,
        places=places,
        parts=parts,
        signs=SIGNS,
        deciding=deciding,
        found=what_we_found,
        columns=columns,
        provenance=provenance,
        command=command,
        totals=totals(parts),
        scales=sorted({part.result["scale"] for part in parts if part.result}),
    )


def as_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def totals(parts: list[Part]) -> dict[str, int]:
    """How many claims have each verdict."""
    counts: dict[str, int] = {}
    for part in parts:
        verdict = part.result["verdict"] if part.result else "not run"
        counts[verdict] = counts.get(verdict, 0) + 1
    return counts


def deciding(result: dict[str, Any]) -> dict[str, Any] | None:
    """The number that a claim's verdict rests on: the first that has it, one of the paper's if
    there is such; or else the first of all."""
    numbers = result["numbers"]
    same = [one for one in numbers if one["verdict"] == result["verdict"]]
    of_paper = [one for one in same if one["paper"] is not None]
    return (of_paper or same or numbers or [None])[0]


def what_we_found(result: dict[str, Any]) -> str:
    """How many numbers hold, and which do not."""
    numbers = result["numbers"]
    judged = [one for one in numbers if one["verdict"] not in ("not judged", "not run")]
    if not judged:
        return "Nothing was judged: too few seeds or steps for a verdict."
    holding = [one for one in judged if one["verdict"] in HOLDS]
    told = f"{len(holding)} of {len(judged)} judged numbers hold"
    for verdict in ("differs", "refuted"):
        names = [one["name"] for one in judged if one["verdict"] == verdict]
        told += f"; {verdict}: {listed(names, 6)}" if names else ""
    left = len(numbers) - len(judged)
    return told + (f"; {left} not judged." if left else ".")


def columns(rows: list[dict[str, Any]]) -> list[str]:
    """The union of the rows' columns, in order of appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def provenance(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Where a result comes from, as pairs of words."""
    own = result["provenance"]
    versions = own.get("versions")
    told = [
        ("scale", result["scale"]),
        ("commit", own.get("commit")),
        ("device", own.get("device")),
        ("seconds", own.get("seconds")),
        ("seeds", len(own["seeds"]) if isinstance(own.get("seeds"), list) else None),
        ("updates", own.get("steps") or None),
        (
            "versions",
            ", ".join(f"{name} {version}" for name, version in versions.items())
            if isinstance(versions, dict)
            else None,
        ),
    ]
    training = own.get("training")
    for run in training if isinstance(training, list) else []:
        if isinstance(run, dict):
            words = [f"{run.get('students', '?')} students", run.get("device")]
            words += [f"{run['seconds']:.0f} s"] if isinstance(run.get("seconds"), float) else []
            words += [f"commit {run.get('commit')}"] if run.get("commit") else []
            told.append(("trained", ", ".join(str(word) for word in words if word)))
    return [(name, shown(value)) for name, value in told if value not in (None, "")]


def command(section: Section, result: dict[str, Any] | None) -> str:
    """What redoes it."""
    scale = result["scale"] if result else "quick"
    return f"underhood reproduce {section.name} --scale {scale}"
