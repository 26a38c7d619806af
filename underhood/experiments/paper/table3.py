"""Table 3: how many layers implement a gated RNN (Eq. 2) and attention, paper and what holds.

Each pair is compiled for several random sources and run on fresh sequences of 32 and 256 tokens. A
network counts if its largest error over all sources stays below LIMIT: rounding for the exact ones,
the ε → 0 sense of the paper's LSTM and LRU for the others. LIMIT was fixed before the runs.
"""

from dataclasses import dataclass
from typing import Any

import jax

from underhood.constructions import Construction, ImpossibleConstruction, compile
from underhood.experiments.protocols.sources import random_gated_rnn, random_teacher
from underhood.experiments.running.outcomes import Outcome
from underhood.experiments.running.rules import DIFFERS, REFUTED, REPRODUCED, Number
from underhood.experiments.running.setting import Setting

LIMIT = 1e-9
LENGTHS = (32, 256)
NONE = "–"


@dataclass(frozen=True)
class Row:
    """A row of the table: the paper's two entries and how we compile it."""

    network: str
    paper: dict[str, str]
    target: str
    options: dict[str, dict[str, Any]]


RNN, ATTENTION = "gated RNN", "attention"


def entries(rnn: str, attention: str) -> dict[str, str]:
    return {RNN: rnn, ATTENTION: attention}


SAME: dict[str, dict[str, Any]] = {RNN: {}, ATTENTION: {}}

ROWS = (
    Row("LRU", entries("2", "2"), "lru", SAME),
    Row("LRU In-Out", entries("1", "1"), "lru_in_out", SAME),
    Row(
        "LRU In-Out (MLP, ReLU)",
        entries(NONE, NONE),
        "lru_in_out_mlp",
        {RNN: {"activation": "relu"}, ATTENTION: {"activation": "relu"}},
    ),
    Row(
        "LRU In-Out (MLP, GELU)",
        entries(NONE, NONE),
        "lru_in_out_mlp",
        {RNN: {"activation": "gelu"}, ATTENTION: {"activation": "gelu"}},
    ),
    Row("Mamba", entries("2", "1"), "mamba", SAME),
    Row("LSTM", entries("2", "1"), "lstm", SAME),
    Row("GRU", entries(NONE, NONE), "gru", {RNN: {}, ATTENTION: {"layers": 1}}),
    Row("GRU (two layers)", entries(NONE, NONE), "gru", SAME),
)

SIZES = {"smoke": (2, 2), "quick": (4, 20), "paper": (4, 100)}


def run(setting: Setting) -> Outcome:
    """Every row and both columns."""
    d, default_seeds = SIZES[setting.scale]
    count = setting.count(default_seeds)
    sources: dict[str, list[Any]] = {
        RNN: [random_gated_rnn(d, seed) for seed in range(count)],
        ATTENTION: [random_teacher(d, seed) for seed in range(count)],
    }
    numbers, rows, notes = [], [], []
    pairs = [(row, column) for row in ROWS for column in (RNN, ATTENTION)]
    for done, (row, column) in enumerate(pairs):
        setting.tick(done, len(pairs))
        try:
            built = [compile(one, row.target, **row.options[column]) for one in sources[column]]
        except ImpossibleConstruction as refusal:
            notes.append(f"{row.network}, {column}: {' '.join(refusal.reasons)}")
            rows.append(table_row(row, column, None, {}))
            numbers.append(verdict_on(row, column, NONE, count))
            continue
        errors = {length: largest_error(built, length) for length in LENGTHS}
        holds = max(errors.values()) <= LIMIT
        rows.append(table_row(row, column, built[0], errors))
        numbers.append(verdict_on(row, column, str(built[0].layers) if holds else NONE, count))
    setting.tick(len(pairs), len(pairs))
    notes.append(
        "GRU: with r = 1 and h̃ = tanh(u + h), h_t = (1 − z)h + z(u + h) = h + z·u, a sum of "
        "products; the paper's argument overlooks that h̃ can return what leaks through 1 − z."
    )
    return Outcome(tuple(numbers), tuple(rows), tuple(notes), tuple(range(count)))


def largest_error(built: list[Construction], length: int) -> float:
    """The worst of all networks, each on its own fresh sequences."""
    return max(
        one.error(key=jax.random.key(seed), length=length, sequences=8)
        for seed, one in enumerate(built)
    )


def table_row(
    row: Row, column: str, built: Construction | None, errors: dict[int, float]
) -> dict[str, Any]:
    """What people see of a pair."""
    seen: dict[str, Any] = {
        "network": row.network,
        "implements": column,
        "layers (paper)": row.paper[column],
    }
    if built is None:
        return {**seen, "layers (ours)": NONE, "exact": "impossible"}
    return {
        **seen,
        "layers (ours)": str(built.layers),
        "neurons": built.neurons,
        "gate outputs": built.gate_width,
        "parameters": built.parameters,
        "exact": "exact" if built.exact else f"order {built.order}",
        **{f"error, T={length}": error for length, error in errors.items()},
    }


def verdict_on(row: Row, column: str, ours: str, seeds: int) -> Number:
    """Ours beside the paper's entry: a network where the paper has none is a counter-example."""
    paper = row.paper[column]
    contradicts = REFUTED if paper == NONE else DIFFERS
    verdict = REPRODUCED if ours == paper else contradicts
    rule = f"layers with error ≤ {LIMIT:g}, T = 32 and 256"
    return Number(f"{row.network} / {column}", ours, paper, rule, verdict, seeds)
