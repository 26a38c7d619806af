"""Table 3: how many layers implement a gated RNN (Eq. 2) and attention, paper and what holds.

Each pair is compiled for several random sources and run on fresh sequences of 32 and 256 tokens. A
network counts if its largest error over all sources is at most ERROR_LIMIT: rounding for the exact
ones, the ε → 0 sense of the paper's LSTM and LRU for the others. The limit was fixed before the
runs.
"""

from dataclasses import dataclass

from underhood.common.files import Json
from underhood.constructions import Construction, ImpossibleConstruction, compile
from underhood.experiments.protocols.sources import largest_error, random_gated_rnn, random_teacher
from underhood.experiments.running import Outcome, Setting
from underhood.experiments.running.rules import judged
from underhood.results.verdicts import REFUTED

ERROR_LIMIT = 1e-9
LENGTHS = (32, 256)
RULE = f"layers with error ≤ {ERROR_LIMIT:g}, T = 32 and 256"
IMPOSSIBLE = "–"
COLUMNS = ("gated RNN", "attention")


@dataclass(frozen=True)
class TableRow:
    """A row of the table.

    paper       the paper's two entries, in the order of COLUMNS
    target      what it is compiled into
    activation  asked of `compile`
    layers      asked of `compile` for attention
    """

    network: str
    paper: tuple[str, str]
    target: str
    activation: str | None = None
    layers: int | None = None


NEITHER = (IMPOSSIBLE, IMPOSSIBLE)
TABLE3 = (
    TableRow("LRU", ("2", "2"), "lru"),
    TableRow("LRU In-Out", ("1", "1"), "lru_in_out"),
    TableRow("LRU In-Out (MLP, ReLU)", NEITHER, "lru_in_out_mlp", "relu"),
    TableRow("LRU In-Out (MLP, GELU)", NEITHER, "lru_in_out_mlp", "gelu"),
    TableRow("Mamba", ("2", "1"), "mamba"),
    TableRow("LSTM", ("2", "1"), "lstm"),
    TableRow("GRU", NEITHER, "gru", layers=1),
    TableRow("GRU (two layers)", NEITHER, "gru"),
)

# d, and how many sources.
SOURCES = {"smoke": (2, 2), "quick": (4, 20), "paper": (4, 100)}


def reproduce_table3(setting: Setting) -> Outcome:
    d, default_seeds = SOURCES[setting.scale]
    count = setting.count(default_seeds)
    numbers, rows, notes = [], [], []
    for row, column in setting.over([(row, column) for row in TABLE3 for column in (0, 1)]):
        implements, paper, ours = COLUMNS[column], row.paper[column], IMPOSSIBLE
        try:
            built = [build_pair(row, column, d, seed) for seed in range(count)]
        except ImpossibleConstruction as refusal:
            notes.append(f"{row.network}, {implements}: {' '.join(refusal.reasons)}")
            results: Json = {"layers (ours)": IMPOSSIBLE, "exact": "impossible"}
        else:
            first, errors = built[0], {length: largest_error(built, length) for length in LENGTHS}
            ours = str(first.layers) if max(errors.values()) <= ERROR_LIMIT else IMPOSSIBLE
            results = {
                "layers (ours)": str(first.layers),
                "neurons": first.neurons,
                "gate outputs": first.gate_width,
                "parameters": first.parameters,
                "exact": "exact" if first.exact else f"order {first.order}",
                **{f"error, T={length}": error for length, error in errors.items()},
            }
        seen = {"network": row.network, "implements": implements, "layers (paper)": paper}
        rows.append(seen | results)
        # A network where the paper has none is a counter-example.
        holds: bool | str = REFUTED if paper == IMPOSSIBLE != ours else ours == paper
        name = f"{row.network} / {implements}"
        numbers.append(judged(name, ours, RULE, holds, paper=paper, seeds=count, least=1))
    notes.append(
        "GRU: with r = 1 and h̃ = tanh(u + h), h_t = (1 − z)h + z(u + h) = h + z·u, a sum of "
        "products; the paper's argument overlooks that h̃ can return what leaks through 1 − z."
    )
    return Outcome(numbers=numbers, rows=rows, notes=notes, seeds=range(count))


def build_pair(row: TableRow, column: int, d: int, seed: int) -> Construction:
    if column:
        source, layers = random_teacher(d, seed), row.layers
        return compile(source, row.target, layers=layers, activation=row.activation)
    return compile(random_gated_rnn(d, seed), row.target, activation=row.activation)
