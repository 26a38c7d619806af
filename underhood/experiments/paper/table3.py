"""Table 3: how many layers implement a gated RNN (Eq. 2) and attention, paper and what holds.

A network counts if its largest error over all random sources and LENGTHS is at most ERROR_LIMIT:
rounding for the exact ones, the ε → 0 sense of the paper's LSTM and LRU for the others. The limit
was fixed before the runs. So the table says how many layers suffice. Whether fewer do is a question
of its own; the column "fewer layers" says what is known.
"""

from dataclasses import dataclass

import numpy as np

from underhood.common.files import Json
from underhood.constructions import ImpossibleConstruction, compile
from underhood.experiments.protocols.sources import largest_error, random_sources
from underhood.experiments.running import Outcome, Setting
from underhood.experiments.running.rules import judged, shown
from underhood.layers import LinearAttention
from underhood.results.files import Number
from underhood.results.verdicts import REFUTED

ERROR_LIMIT = 1e-9
LENGTHS = (32, 256)
RULE = f"layers with error ≤ {ERROR_LIMIT:g}, T = {' and '.join(map(str, LENGTHS))}"
IMPOSSIBLE = "–"
TABLE3_COLUMNS = ("gated RNN", "attention")
# Sizes between which parameters are seen to grow.
GROWTH = (16, 32)


@dataclass(frozen=True)
class TableRow:
    """A row of the table.

    paper       the paper's two entries, in the order of TABLE3_COLUMNS
    target      what it is compiled into
    activation  asked of `compile`
    layers      asked of `compile` for attention
    fewer       what is known of fewer layers, in the order of TABLE3_COLUMNS
    """

    network: str
    paper: tuple[str, str]
    target: str
    activation: str | None = None
    layers: int | None = None
    fewer: tuple[str, str] = ("", "")


# One LRU layer reads its output from a state that is linear in the tokens. If the past has more
# numbers than the state, two pasts differ by some δ and leave the same state. Sums of products of a
# token's parts, which attention and Eq. 2 need, differ between the two unless δ is zero.
NO_PRODUCTS = "impossible on long sequences: the state is linear in the tokens"
NOT_KNOWN = "open"
NEITHER = (IMPOSSIBLE, IMPOSSIBLE)
TABLE3 = (
    TableRow("LRU", ("2", "2"), "lru", fewer=(NO_PRODUCTS, NO_PRODUCTS)),
    TableRow("LRU In-Out", ("1", "1"), "lru_in_out"),
    TableRow("LRU In-Out (MLP, ReLU)", NEITHER, "lru_in_out_mlp", "relu"),
    TableRow("LRU In-Out (MLP, GELU)", NEITHER, "lru_in_out_mlp", "gelu"),
    TableRow("Mamba", ("2", "1"), "mamba", fewer=(NOT_KNOWN, "")),
    TableRow("LSTM", ("2", "1"), "lstm", fewer=(NOT_KNOWN, "")),
    TableRow("GRU", NEITHER, "gru", layers=1),
    TableRow("GRU (two layers)", NEITHER, "gru"),
)


def reproduce_table3(setting: Setting) -> Outcome:
    sources = random_sources(setting)
    count = len(sources[0])
    numbers, rows, notes = [], [], []
    for row, column in setting.over([(row, column) for row in TABLE3 for column in (0, 1)]):
        implements, paper, ours = TABLE3_COLUMNS[column], row.paper[column], IMPOSSIBLE
        try:
            layers, activation = row.layers if column else None, row.activation
            built = [
                compile(source, row.target, layers=layers, activation=activation)
                for source in sources[column]
            ]
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
        rows.append(seen | results | {"fewer layers": row.fewer[column]})
        # A network where the paper has none is a counter-example.
        holds: bool | str = REFUTED if paper == IMPOSSIBLE != ours else ours == paper
        name = f"{row.network} / {implements}"
        numbers.append(judged(name, ours, RULE, holds, paper=paper, seeds=count, least=1))
    notes.append(
        "GRU: with r = 1 and h̃ = tanh(u + h), h_t = (1 − z)h + z(u + h) = h + z·u, a sum of "
        "products; the paper's argument overlooks that h̃ can return what leaks through 1 − z."
    )
    numbers += growth_of_parameters()
    return Outcome(numbers=numbers, rows=rows, notes=notes, seeds=range(count))


def growth_of_parameters() -> list[Number]:
    """Show how the parameters of gated RNNs that are attention grow from d = 16 to d = 32.

    They are those of the paper's own construction, with d² + d neurons, so they are counted and
    not judged.
    """

    def parameters(d: int, target: str) -> int:
        W = np.random.default_rng(d).normal(size=(3, d, d)) / np.sqrt(d)
        return compile(LinearAttention(*W), target, form="full").parameters

    least, most = GROWTH
    numbers = [shown(f"parameters, attention, d = {most}", 3 * most**2, seeds=1, paper="3d²")]
    for name, target, power in (
        ("gated RNN", "gated_rnn", 4),
        ("side-gated RNN", "side_gated_rnn", 3),
    ):
        value = float(np.log2(parameters(most, target) / parameters(least, target)))
        title = f"exponent of parameters, {name}, d = {least} to {most}"
        numbers.append(shown(title, value, paper=f"order d^{power}", seeds=1))
    return numbers
