"""The table of all claims in README.md and reproduction.md: python docs/claims.py writes it.

Every value and every verdict is read from the result files. What is chosen here is which number
stands for a claim. It must have the verdict of its experiment at both scales, so that the row
never looks better than the whole.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
QUICK, PAPER = ROOT / "results/reference/quick", ROOT / "results/paper"
# A page, and what its links to the sections begin with.
PAGES = {"README.md": "docs/reproduction.md", "docs/reproduction.md": ""}

BEGIN, END = "<!-- python docs/claims.py writes this table -->\n", "<!-- the table ends here -->\n"
TABLE = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)

Cell = float | str | None


@dataclass(frozen=True)
class Row:
    """A claim and the number that stands for it.

    experiment  name of the result's folder
    claim       the claim in a few words
    number      the name that the number has in both result files
    meaning     what the number is
    around      words before the paper's number, where a file has the bare number
    """

    experiment: str
    claim: str
    number: str
    meaning: str
    around: str = ""


ROWS = (
    Row("table1", "A trained RNN computes its attention teacher", "loss", "loss"),
    Row("figure2", "Pruning leaves the construction's neurons", "neurons", "neurons left of 100"),
    Row(
        "figure3a",
        "Learning needs around twice as many neurons as the construction",
        "median, neurons",
        "smallest size whose median student computes it",
        around="around twice",
    ),
    Row(
        "figure3b",
        "Low-rank teachers need fewer neurons",
        "fall, neurons",
        "size at which the loss falls most",
    ),
    Row(
        "figure3c",
        "In-context regression needs about the construction's size",
        "fall, neurons",
        "size at which the loss falls most",
    ),
    Row(
        "figure4a",
        "Imitating attention: input gates make an LRU better",
        "LRU In+Out < LRU, 2 layers",
        "loss of LRU over LRU In+Out, two layers",
    ),
    Row(
        "figure4b",
        "Nonlinear RNNs beat one gradient step",
        "GRU < gradient step",
        "median loss of GRUs of the best size",
    ),
    Row(
        "figure6",
        "An input gate helps LRUs of one layer and of several",
        "LRU In+Out < LRU, 2 layers, teacher-student",
        "loss of LRU over LRU In+Out, two layers",
    ),
    Row(
        "table2",
        "The regression RNN is one gradient step",
        "x1^2 y1",
        "coefficient of $x_1^2 y_1$ (one step: 0.0676)",
    ),
    Row(
        "table3",
        "Layers that each network needs",
        "GRU / attention",
        "GRU layers for attention (–: impossible)",
    ),
    Row(
        "lstm_weights",
        "LSTM weights that compute a gated RNN",
        "two layers = gated RNN, slope at order 1",
        "power of ε by which the error vanishes",
    ),
    Row("reverse", "Attention can compute a gated RNN", "gated RNN, two layers", "largest error"),
    Row("optimal_step", "The best gradient step has a formula", "Monte Carlo", "step size"),
    Row("recall_gated", "Recall takes one neuron per answer", "memory", "memory neurons"),
    Row(
        "recall_side",
        "Side gating stores pairs of rank 1",
        "rank 1 of M, σ₂/σ₁",
        "σ₂/σ₁ of what a pair stores",
    ),
)


@dataclass(frozen=True)
class Judged:
    """A number of a result file: its value, the paper's, its rule and its verdict."""

    value: Cell
    paper: Cell
    rule: str
    verdict: str


def read(folder: Path, row: Row) -> Judged:
    """Read the number that stands for a claim; refuse ours, and one that hides the verdict."""
    path = folder / row.experiment / "result.json"
    result = json.loads(path.read_text(encoding="utf-8"))
    number = next(number for number in result["numbers"] if number["name"] == row.number)
    if number.get("whose", "paper") != "paper":
        raise ValueError(f"{path}: {row.number!r} is ours. Choose a number of the paper.")
    if number["verdict"] != result["verdict"]:
        raise ValueError(
            f"{path}: {row.number!r} is {number['verdict']}, but {row.experiment} is "
            f"{result['verdict']}. Choose a number with that verdict."
        )
    return Judged(number["value"], number["paper"], number["rule"], number["verdict"])


def shown(value: Cell) -> str:
    """Three digits of a number, as 1.70e-8; words up to the first comma."""
    if isinstance(value, str) or value is None:
        return (value or "").split(",")[0]
    if value == int(value):
        return f"{int(value)}"
    return re.sub(r"e([+-])0*(\d)", r"e\1\2", f"{value:#.3g}").replace("e+", "e")


def papers(judged: Judged, around: str = "") -> str:
    """What the paper says; where it says only that something is lower, the rule's condition."""
    if judged.paper != "below":
        words = "" if isinstance(judged.paper, str) or not around else f"{around} "
        return words + shown(judged.paper)
    condition = re.search(r"[<>] [\d.]+", judged.rule)
    if condition is None:
        raise ValueError(f"The rule {judged.rule!r} has no condition such as > 1.")
    return condition.group()


def table(link: str, quick: Path = QUICK, paper: Path = PAPER) -> str:
    """Return the table; `link` is the page that holds the sections."""
    lines = [
        "| claim | judged by | the paper | quick scale | verdict | paper scale | verdict |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in ROWS:
        small, large = read(quick, row), read(paper, row)
        says, small_says = papers(large, row.around), papers(small, row.around)
        if small_says != says:
            says += f" (quick: {small_says})"
        cells = [f"[{row.claim}]({link}#{row.experiment})", row.meaning, says]
        for judged in (small, large):
            holds = judged.verdict in ("better", "reproduced")
            cells += [shown(judged.value), judged.verdict if holds else f"**{judged.verdict}**"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def with_table(text: str, page: str) -> str:
    """Return the page's text with the table as the result files have it now."""
    if page not in PAGES:
        return text
    if len(TABLE.findall(text)) != 1:
        raise ValueError(f"{page}: the two comments around the table of claims are not there once.")
    return TABLE.sub(lambda _: f"{BEGIN}\n{table(PAGES[page])}\n{END}", text)


if __name__ == "__main__":
    for page in PAGES:
        path = ROOT / page
        path.write_text(with_table(path.read_text(encoding="utf-8"), page), encoding="utf-8")
