"""Where each number of reproduction.md comes from in the result files.

A number in a table belongs to one entry of a file: its row and its column name the judged number,
or the architecture, the depth, the width and the scale. A number in prose may be any that its
experiment holds, at the scale that its paragraph names, but not one of another architecture than
the sentence names. `untied` returns the numbers of a page for which there is no such entry.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
# The scales by their folders. The last two are kept because the page tells why rates are searched
# otherwise now, and what the search misses.
QUICK, PAPER = "quick", "paper"
FOLDERS = {
    QUICK: RESULTS / "reference/quick",
    PAPER: RESULTS / "paper",
    "first_rates": RESULTS / "reference/first_rates",
    "other_rates": RESULTS / "reference/other_rates",
}

# 0.0945, 4.97e-8, 1,000; but not the 2 of figure2, nor what stands in `code` or in a link.
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?(?![\w])")
# Smaller whole numbers count things in prose.
COUNTS = 20
HIDDEN = re.compile(r"`[^`]*`|\]\([^)]*\)")

# The judged number that a row of a table stands for, by the first cell of the row.
NUMBERS = {
    "table1": {
        "loss": "loss",
        "key-values, $1 - R^2$": "score_kv",
        "queries, $1 - R^2$": "score_q",
        "distance of the polynomials": "polynomial_distance",
    },
    "figure6": {
        "LRUs: rank correlation of the losses on the two tasks": (
            "closeness to attention and in-context loss, LRUs"
        ),
        "validation over training loss, teacher-student": "training = validation, teacher-student",
        "validation over training loss, regression, gated RNN": (
            "validation over training, gated RNN"
        ),
        "the same for LRUs of one size, mean over nine sizes": (
            "closeness to attention and in-context loss, LRUs of one size, mean over 9 sizes"
        ),
        "the same for LSTMs and GRUs": "closeness to attention and in-context loss, LSTMs and GRUs",
        "loss of LRU over LRU In+Out, one layer, teacher-student": (
            "LRU In+Out < LRU, 1 layer, teacher-student"
        ),
        "loss of LRU over LRU In+Out, two layers, teacher-student": (
            "LRU In+Out < LRU, 2 layers, teacher-student"
        ),
        "loss of LRU over LRU In+Out, best sizes, teacher-student": (
            "LRU In+Out < LRU, best sizes, teacher-student"
        ),
        "loss of In+Out MLP over LRU In+Out, best sizes, teacher-student": (
            "LRU In+Out < LRU In+Out MLP, best sizes, teacher-student"
        ),
        "loss of LRU over LRU In+Out, best sizes, regression": (
            "LRU In+Out < LRU, best sizes, regression"
        ),
        "loss of In+Out MLP over LRU In+Out, best sizes, regression": (
            "LRU In+Out < LRU In+Out MLP, best sizes, regression"
        ),
    },
    "table2": {
        "coefficient of $x_1^2 y_1$": "x1^2 y1",
        "coefficient of $x_2^2 y_1$": "x2^2 y1",
        "coefficient of $x_3^2 y_1$": "x3^2 y1",
        "norm of all others": "residual",
        "the same where the query's $y$ is zero": "residual_at_query",
        "training loss": "loss",
    },
    "recall_side": {
        r"correlation of $W^{\mathrm{in}}_x$ and $W^{\mathrm{side}}$": "W_x^in = W_side",
        r"correlation of $D$ and $B^\top$": "D = Bᵀ",
        r"$\sigma_2/\sigma_1$ of $M$": "rank 1 of M, σ₂/σ₁",
        "negative over positive peak": "negative over positive peak",
        "the same, untrained": "W_x^in = W_side, untrained",
        r"$D$ and $B^\top$, untrained": "D = Bᵀ, untrained",
        r"$\sigma_2/\sigma_1$ of $M$, untrained": "rank 1 of M, σ₂/σ₁, untrained",
        "negative over positive peak, untrained": "negative over positive peak, untrained",
    },
}
# In table3 a row is a network, and every second column is what it implements.
NETWORKS = {
    "LRU In-Out (MLP), ReLU": "LRU In-Out (MLP, ReLU)",
    "LRU In-Out (MLP), GELU": "LRU In-Out (MLP, GELU)",
}
# The column of a result's rows that the page's tables of architectures show.
MEASURES = {"figure4a": "loss", "figure4b": "validation"}

# Names of architectures as the page and the files write them, the longest first.
ARCHITECTURES = {
    "gated RNN, dense": r"gated RNNs?, dense|dense (?:gated RNNs?|one)",
    "LRU In+Out MLP": r"(?:LRU )?In\+Out MLP|MLP variant",
    "LRU In+Out": r"LRUs? In\+Out",
    "gated RNN": r"gated RNNs?|diagonal one",
    "LRU": r"LRUs?",
    "LSTM": r"LSTMs?",
    "GRU": r"GRUs?",
}
NAMED = re.compile("|".join(f"(?P<a{i}>{form})" for i, form in enumerate(ARCHITECTURES.values())))


@dataclass(frozen=True)
class Entry:
    """A number in a result file.

    scale  name of the folder
    words  what it stands under: the name of a judged number, the texts of a row, or a sentence
    part   value or paper of a judged number; the column of a row; empty for anything else
    row    the row that it stands in, or the judged number
    """

    value: float
    scale: str
    words: str
    part: str = ""
    row: dict[str, Any] = field(default_factory=dict)  # Any: as JSON has it


@cache
def entries_of(experiment: str) -> list[Entry]:
    """Return every number in an experiment's result files, those inside of sentences too."""
    entries: list[Entry] = []
    for scale, folder in FOLDERS.items():
        path = folder / experiment / "result.json"
        if not path.exists():
            continue
        result = json.loads(path.read_text(encoding="utf-8"))
        for number in result.pop("numbers"):
            for part, value in number.items():
                for held in numbers_in(value):
                    entries.append(Entry(held, scale, number["name"], part, number))
        for row in result.pop("rows"):
            texts = ", ".join(value for value in row.values() if isinstance(value, str))
            for column, value in row.items():
                for held in numbers_in(value):
                    entries.append(Entry(held, scale, texts, column, row))
        result["provenance"].pop("versions", None)
        for text, value in leaves(result):
            entries += [Entry(held, scale, text) for held in numbers_in(value)]
    return entries


def leaves(data: Any) -> Iterator[tuple[str, Any]]:  # Any: nested lists and dicts, as JSON has them
    """Yield what is neither a list nor a dict, with its own text; and the keys of dicts."""
    if isinstance(data, dict | list):
        for part in [*data, *data.values()] if isinstance(data, dict) else data:
            yield from leaves(part)
    else:
        yield str(data), data


def numbers_in(value: Any) -> list[float]:  # Any: a cell of a file
    """Return a number, or the numbers of a text."""
    if isinstance(value, str):
        return [float(match.group().replace(",", "")) for match in NUMBER.finditer(value)]
    return [float(value)] if isinstance(value, int | float) and not isinstance(value, bool) else []


def agrees(word: str, value: float) -> bool:
    """Tell whether a value, rounded to as many digits, is what the page says."""
    digits = len(word.split("e")[0].lstrip("-").replace(".", "").lstrip("0")) or 1
    if float(word) == 0:
        return value == 0
    return f"{value:.{digits - 1}e}" == f"{float(word):.{digits - 1}e}"


def written(text: str) -> list[re.Match[str]]:
    """Return the numbers of a text that must be in a file."""
    plain = HIDDEN.sub(lambda hidden: " " * len(hidden.group()), text)
    return [match for match in NUMBER.finditer(plain) if must_be_held(bare(match))]


def bare(match: re.Match[str]) -> str:
    return match.group().replace(",", "")


def must_be_held(word: str) -> bool:
    return "." in word or "e" in word or abs(int(word)) > COUNTS


def architectures_in(text: str) -> list[tuple[str, int]]:
    """Return the architectures that a text names, and where each name ends."""
    names = tuple(ARCHITECTURES)
    matches = NAMED.finditer(text)
    return [(names[int(str(match.lastgroup)[1:])], match.end()) for match in matches]


def scales_in(text: str) -> set[str]:
    """Return the scales that a text names."""
    named = {scale for scale in (QUICK, PAPER) if re.search(rf"\b{scale} scale\b", text, re.I)}
    return named | {name for name in FOLDERS if f"reference/{name}" in text}


def sections(page: str) -> dict[str, str]:
    """Return the text below each `## name`: experiments, and the history."""
    parts = re.split(r"^## `?(\w+)`?$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def untied(section: str, *experiments: str) -> list[str]:
    """Return the numbers of a section that are not those of the entries they stand for."""
    entries = [entry for experiment in experiments for entry in entries_of(experiment)]
    problems: list[str] = []
    for block in re.split(r"\n\s*\n|\n(?=[->] )|\n>\n", section):
        if block.startswith("!["):
            continue
        if block.startswith("|"):
            problems += untied_cells(block, experiments[0], entries)
        else:
            problems += untied_prose(block, block, entries)
    return problems


def untied_prose(text: str, around: str, entries: list[Entry]) -> list[str]:
    """Return the numbers of sentences without an entry; `around` names the scale."""
    scales = scales_in(around)
    problems = []
    for sentence in re.split(r"(?<=[.:;])\s+(?=[^a-z\d])", text):
        named = architectures_in(sentence)
        for match in written(sentence):
            before = [name for name, end in named if end <= match.start()]
            # The last name before the number, or else any name in the sentence.
            subjects = tuple(before[-1:] or [name for name, _ in named])
            allowed = [
                entry.value
                for entry in entries
                if (not scales or entry.scale in scales or entry.part == "paper")
                and fits(entry.words, subjects)
            ]
            if not any(agrees(bare(match), value) for value in allowed):
                problems.append(f"{match.group()} in: {sentence.strip()}")
    return problems


# Thousands of entries stand under a few hundred words, and every number of a page asks for all.
@cache
def fits(words: str, subjects: tuple[str, ...]) -> bool:
    """Tell whether words can be about one of these architectures; a family counts as one."""
    names = [name for name, _ in architectures_in(words)]
    if not subjects or not names:
        return True
    return any(
        name.startswith(subject) or subject in name for name in names for subject in subjects
    )


def untied_cells(table: str, experiment: str, entries: list[Entry]) -> list[str]:
    """Return the numbers of a table that are not those of their rows and columns."""
    lines = [line.strip().strip("|").split("|") for line in table.strip().splitlines()]
    header, rows = [cell.strip() for cell in lines[0]], lines[2:]
    problems = []
    for label, *cells in ([cell.strip() for cell in row] for row in rows):
        for place, cell in enumerate(cells, start=1):
            word = cell.strip("*").replace(",", "")
            above = header[place]
            if header[0] == "network":
                implements = " ".join(header[place - 1 : place + 1])
                wrong = not holds_layers(word, label, above, implements, entries)
            elif not NUMBER.fullmatch(word):
                problems += untied_prose(cell, above, entries)
                continue
            elif header[0] == "number":
                wrong = not holds_number(word, label, above, experiment, entries)
            elif header[0] in ("architecture", "size"):
                wrong = not holds_row(word, label, above, experiment, entries)
            else:
                problems += untied_prose(cell, above, entries)
                continue
            problems += [f"{cell} in the row {label!r}, column {above!r}"] if wrong else []
    return problems


def holds_number(word: str, label: str, above: str, experiment: str, entries: list[Entry]) -> bool:
    """Tell whether a cell is the judged number of its row, at the scale of its column."""
    name = NUMBERS.get(experiment, {}).get(label)
    if above == "the paper":
        of = [entry for entry in entries if entry.part == "paper"]
    else:
        scales = scales_in(above)
        of = [entry for entry in entries if entry.part == "value" and entry.scale in scales]
    values = [entry.value for entry in of if entry.row.get("name") == name]
    return bool(values) and all(agrees(word, value) for value in values)


def holds_row(word: str, label: str, above: str, experiment: str, entries: list[Entry]) -> bool:
    """Tell whether a cell is the loss of the students that its row and its column name."""
    wanted: dict[str, float | str] = {}
    named = architectures_in(label)
    if len(named) == 1:
        wanted["architecture"] = named[0][0]
    place = f"{label} {above}"
    if size := re.search(r"(\d) layers? of (\d+)", place):
        wanted |= {"layers": int(size[1]), "width": int(size[2])}
    if rate := re.search(r"at (?:its rate )?(0\.\d+)", above):
        wanted["rate"] = float(rate[1])
    # "quick, 1 layer of 16" is at quick scale; a column of rates may be of any run.
    scales = scales_in(above) | {scale for scale in (QUICK, PAPER) if above.startswith(scale)}
    values = [
        entry.value
        for entry in entries
        if entry.part == MEASURES[experiment]
        and (entry.scale in scales or "rate" in wanted)
        and all(entry.row.get(name) == value for name, value in wanted.items())
    ]
    if "best size" in above and values:
        values = [min(values)]
    return len(named) == 1 and len(values) == 1 and agrees(word, values[0])


def holds_layers(word: str, label: str, above: str, implements: str, entries: list[Entry]) -> bool:
    """Tell whether a cell of table3 is the number of layers, the paper's or ours at both scales.

    implements  the heads of this column and of the one before it; one of them names the source
    """
    source = "attention" if "attention" in implements.split(":")[0] else "gated RNN"
    name = f"{NETWORKS.get(label, label)} / {source}"
    part = "paper" if "the paper" in above else "value"
    held = {
        str(entry.row[part])
        for entry in entries
        if entry.row.get("name") == name and entry.scale in (QUICK, PAPER)
    }
    return held == {"–" if word == "impossible" else word}
