"""Results in a few words: what decides a claim, what holds, and what is ours."""

from collections import Counter
from collections.abc import Iterable

from underhood.common.files import Json
from underhood.report.charts import shortened
from underhood.results.files import OURS, PAPERS, SHOWN, select_numbers
from underhood.results.verdicts import FAILS, HOLDS, NOT_JUDGED, NOT_RUN


def deciding(result: Json) -> Json | None:
    """Return the number that a claim's verdict rests on; None if there is none.

    The first of the paper's numbers with that verdict, if possible one with a value of the
    paper's; else the first of them. Of an experiment of our own, a number of ours.
    """
    numbers = select_numbers(result, PAPERS) or select_numbers(result, OURS)
    same = [number for number in numbers if number["verdict"] == result["verdict"]]
    with_value = [number for number in same if number["paper"] is not None]
    return next(iter(with_value or same or numbers), None)


def judged_among(numbers: Iterable[Json]) -> list[Json]:
    return [number for number in numbers if number["verdict"] not in (NOT_JUDGED, NOT_RUN)]


def what_we_found(result: Json) -> str:
    """Say how many of the paper's numbers hold, and how many of ours."""
    papers, ours = select_numbers(result, PAPERS), select_numbers(result, OURS)
    if ours and not papers:
        return tally_of_ours(ours)
    judged = judged_among(papers)
    if not judged:
        text = "Nothing was judged: too few seeds or steps for a verdict."
    else:
        holding = sum(number["verdict"] in HOLDS for number in judged)
        text = f"{holding} of {len(judged)} judged numbers of the paper hold"
        for verdict in FAILS:
            names = [number["name"] for number in judged if number["verdict"] == verdict]
            text += f"; {verdict}: {shortened(names, 6)}" if names else ""
        left = len(papers) - len(judged)
        text += f"; {left} not judged." if left else "."
    return f"{text} {tally_of_ours(ours)}" if ours else text


def tally_of_ours(numbers: Iterable[Json]) -> str:
    """Return the numbers of ours in words, as in: Ours: 3 hold, 2 do not hold, 1 not judged."""
    counts: Counter[str] = Counter()
    for number in numbers:
        verdict = number["verdict"]
        if number.get("rule") == SHOWN:
            counts["shown without a verdict"] += 1
        elif verdict in HOLDS:
            counts["hold"] += 1
        elif verdict in FAILS:
            counts["do not hold"] += 1
        else:
            counts["not judged"] += 1
    order = ("hold", "do not hold", "not judged", "shown without a verdict")
    return f"Ours: {', '.join(f'{counts[kind]} {kind}' for kind in order if counts[kind])}."
