"""Verifying results: every number computed again from the stored students, and compared.

Nothing is trained and nothing is written. Numbers agree if they are equal, if they differ by at
most a thousandth, or if both are below 1e-10, where they are rounding. So they agree on another
processor too. Words must be equal; numbers inside a sentence, such as a measured margin in a rule,
agree as numbers do. The rows of a result are compared in the same way as its numbers.
"""

import math
import re
import shlex
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from underhood.common.errors import BadInput, in_words, reason_of
from underhood.common.files import Json
from underhood.experiments.registry import EXPERIMENTS, SCALES
from underhood.experiments.running.display import ExperimentsDisplay
from underhood.experiments.running.outcomes import judge_outcome
from underhood.experiments.running.setting import Setting
from underhood.results.files import Cell, Results, number_text, parse_result, result_json
from underhood.sweeps.engines import Progress, Stored
from underhood.training.storage.settings import OtherSettings

RELATIVE, ROUNDING = 1e-3, 1e-10
AGREES, DIFFERENT, NOT_COMPUTED = "agrees", "differs", "cannot be recomputed"
COMPARED = ("value", "verdict", "rule", "whose", "paper", "seeds")
# Of many differences a line shows the first few.
SHOWN_DIFFERENCES = 4
# About how long it takes to look at the students of an experiment, on two cores.
LOOKING_SECONDS = {"smoke": 5, "quick": 20, "paper": 60}
NUMERAL = re.compile(r"(?<![\w.])[-−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?!\w)")


@dataclass(frozen=True)
class Difference:
    """What a result file says otherwise than the students.

    where  the name of a number, or the place of a row
    part   of the number or row, such as "value"
    then   what the file says
    now    what was computed now
    """

    where: str
    part: str
    then: Cell
    now: Cell

    def __str__(self) -> str:
        then, now = value_text(self.then), value_text(self.now)
        if then == now:
            # They differ in digits that are not shown.
            then, now = repr(self.then), repr(self.now)
        return f"{self.where}: {self.part} {then} then, {now} now"


@dataclass(frozen=True)
class Check:
    """What became of one result.

    numbers, rows  how many were compared
    differences    between what is stored and what was computed now
    from_losses    some students were not stored, and their stored losses were used
    problem        why it cannot be recomputed, in a sentence; "" if it was
    command        that trains what is missing; "" if no command helps
    """

    experiment: str
    scale: str
    numbers: int = 0
    rows: int = 0
    differences: tuple[Difference, ...] = ()
    from_losses: bool = False
    problem: str = ""
    command: str = ""

    @property
    def state(self) -> str:
        return NOT_COMPUTED if self.problem else DIFFERENT if self.differences else AGREES

    def __str__(self) -> str:
        title = f"{self.experiment} ({self.scale})" if self.scale else self.experiment
        if self.problem:
            train = f" To train it: {self.command}" if self.command else ""
            return f"{title}: {self.state}: {self.problem}{train}"
        by = ", from the stored losses (the students are not stored)" if self.from_losses else ""
        if not self.differences:
            return f"{title}: {self.state}: {self.numbers} numbers, {self.rows} rows{by}"
        more = len(self.differences) - SHOWN_DIFFERENCES
        listed = "; ".join(map(str, self.differences[:SHOWN_DIFFERENCES]))
        return f"{title}: {self.state}{by}: {listed}{f'; and {more} more' if more > 0 else ''}"

    def as_json(self) -> Json:
        differences = [vars(difference) for difference in self.differences]
        return {**vars(self), "state": self.state, "differences": differences}


def value_text(value: Cell) -> str:
    return "nothing" if value is None else number_text(value)


def compare_results(stored: Json, computed: Json) -> tuple[Difference, ...]:
    """Return where two results differ: in their verdict, their numbers and their rows.

    stored, computed  results as `read_result` and `parse_result` return them
    """
    return tuple(
        Difference(where, part, then.get(part), now.get(part))
        for where, then, now in paired(stored, computed)
        for part in dict.fromkeys((*then, *now))
        if not agree(then.get(part), now.get(part))
    )


def paired(stored: Json, computed: Json) -> Iterator[tuple[str, Json, Json]]:
    """Yield the name and both sides of everything that is compared."""
    yield "the result", {"verdict": stored["verdict"]}, {"verdict": computed["verdict"]}
    numbers, computed_numbers = (numbered(result["numbers"]) for result in (stored, computed))
    for name in dict.fromkeys((*numbers, *computed_numbers)):
        then, now = numbers.get(name), computed_numbers.get(name)
        if then is not None and now is not None:
            yield name, only_compared(then), only_compared(now)
        else:
            yield name, {"number": presence(then)}, {"number": presence(now)}
    rows, computed_rows = stored["rows"], computed["rows"]
    yield "the rows", {"count": len(rows)}, {"count": len(computed_rows)}
    for place, (row, computed_row) in enumerate(zip(rows, computed_rows, strict=False), start=1):
        yield f"row {place}", row, computed_row


def only_compared(number: Json) -> Json:
    return {part: number[part] for part in COMPARED}


def presence(number: Json | None) -> str:
    return "missing" if number is None else "there"


def numbered(numbers: Iterable[Json]) -> dict[str, Json]:
    """Return numbers by name; of equal names the later ones are counted."""
    seen: Counter[str] = Counter()
    by_name = {}
    for number in numbers:
        seen[number["name"]] += 1
        count = seen[number["name"]]
        by_name[number["name"] if count == 1 else f"{number['name']} ({count})"] = number
    return by_name


def agree(then: Cell, now: Cell) -> bool:
    """Tell whether two cells are the same up to rounding."""
    if isinstance(then, str) and isinstance(now, str):
        words = [NUMERAL.split(text) for text in (then, now)]
        values = [[numeral(match) for match in NUMERAL.findall(text)] for text in (then, now)]
        return words[0] == words[1] and all(map(agree, *values))
    kinds = {type(then), type(now)}
    # A count is a count, however large. True is neither an int nor a float here.
    if float not in kinds or not kinds <= {int, float}:
        return type(then) is type(now) and then == now
    assert isinstance(then, int | float) and isinstance(now, int | float)
    rounding = abs(then) < ROUNDING and abs(now) < ROUNDING
    return rounding or math.isclose(then, now, rel_tol=RELATIVE)


def numeral(text: str) -> int | float:
    plain = text.replace(",", "").replace("−", "-")
    return float(plain) if re.search("[.e]", plain) else int(plain)


def verify(results: Results, folder: Path, names: Iterable[str] | None = None) -> list[Check]:
    """Compute results again from what is stored beside them, and compare; show the progress.

    results  of the folder
    names    of results to look at; None: all
    """
    entries = {path.name: result for path, result in results.entries.items()}
    ordered = [name for name in EXPERIMENTS if name in entries or name in results.unreadable]
    known = [*ordered, *(name for name in (*entries, *results.unreadable) if name not in ordered)]
    chosen = known if names is None else [name for name in known if name in set(names)]
    scales = {name: entries[name]["scale"] if name in entries else "" for name in chosen}
    checks = []
    with ExperimentsDisplay({n: LOOKING_SECONDS.get(scales[n], 1) for n in chosen}) as display:
        for name in chosen:
            tick = display.start(name)
            if name in entries:
                check = check_result(name, entries[name], folder, tick)
            else:
                check = Check(name, "", problem=f"result.json: {results.unreadable[name]}.")
            display.finish(name, check.state)
            checks.append(check)
    return checks


def check_result(name: str, stored: Json, folder: Path, tick: Progress) -> Check:
    """Compute one result again and compare.

    name    of its folder
    stored  the result as `read_result` returns it
    folder  of all results and of the runs
    tick    called with what is done so far, of how much
    """
    scale, asked = stored["scale"], stored["provenance"].get("asked")
    check = Check(name, scale)
    if problem := unknown_problem(name, stored):
        return replace(check, problem=problem)
    command = f"underhood reproduce {name} --scale {scale} --out {shlex.quote(str(folder))}"
    command += "" if asked is None else f" --seeds {asked}"
    # No result is read for another: students come first, and losses where students are missing.
    setting = Setting(scale, asked, folder, tick, Stored(), frozenset(EXPERIMENTS))
    began = time.monotonic()
    try:
        outcome = EXPERIMENTS[name].run(setting)
    except OtherSettings as error:
        # No command helps in this folder.
        return replace(check, problem=str(error))
    except (BadInput, OSError) as error:
        return replace(check, problem=in_words(error), command=command)
    except Exception as error:
        print(f"{name} failed:\n{traceback.format_exc()}", file=sys.stderr)
        return replace(check, problem=f"It failed: {reason_of(error)}.")
    result = judge_outcome(name, scale, outcome, time.monotonic() - began, asked=asked)
    computed = parse_result(result_json(result))
    return replace(
        check,
        numbers=len(computed["numbers"]),
        rows=len(computed["rows"]),
        differences=compare_results(stored, computed),
        from_losses=bool(outcome.earlier),
    )


def unknown_problem(name: str, stored: Json) -> str:
    """Return why this version cannot run a result's experiment; "" if it can."""
    asked = stored["provenance"].get("asked")
    if stored["experiment"] != name:
        return f"The folder {name} holds a result of {stored['experiment']}."
    if name not in EXPERIMENTS:
        return "This version has no experiment of this name."
    if stored["scale"] not in SCALES:
        return f"This version has no scale {stored['scale']}."
    if asked is not None and (not isinstance(asked, int) or isinstance(asked, bool) or asked < 1):
        return f"Its number of seeds is {asked!r}."
    return ""
