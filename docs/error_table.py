"""Measure the error of every target and write it into errors.md: python docs/error_table.py.

Two tables: networks compiled for the length and size at which they run, and networks compiled for
the default, 32 tokens of size one, that run elsewhere. An entry is the largest error over three
sources. It takes about three minutes. An entry above what `compile` promises is bold.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

import jax
import numpy as np

import underhood as uh
from underhood.constructions.compiling import PROMISED

PAGE = Path(__file__).resolve().parent / "errors.md"
LENGTHS, SIZES = (32, 1024, 4096), (1.0, 10.0)
PLACES = [(length, size) for length in LENGTHS for size in SIZES]
SOURCES, SEQUENCES, D = 3, 4, 4

BEGIN = "<!-- python docs/error_table.py writes the table {name} -->\n"
END = "<!-- the table {name} ends here -->\n"
NAMES = ("built for the place", "built for the default")


@dataclass(frozen=True)
class Network:
    """What is compiled.

    source   "attention" or "gated RNN"
    options  of compile, besides dtype, length and size
    """

    source: str
    target: str
    options: dict[str, int | str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        said = [f"{name}={value!r}" for name, value in self.options.items()]
        return ", ".join([f"`{self.target}`", *(f"`{option}`" for option in said)])


# The errors of the layers of today are on their own page, modern.md.
ELSEWHERE = {
    *("falcon_h1", "mamba2", "gated_deltanet", "deltanet", "kda", "lightning", "gla"),
    *("retnet", "rwkv6", "rwkv7", "mlstm", "min_gru", "jamba", "rg_lru", "hgrn2"),
}
NETWORKS = (
    Network("attention", "gated_rnn"),
    Network("attention", "side_gated_rnn"),
    Network("attention", "mamba"),
    Network("attention", "mamba_block"),
    Network("attention", "decayed_attention"),
    Network("attention", "lru"),
    Network("attention", "lru_in_out"),
    Network("attention", "lru_in_out_mlp"),
    Network("attention", "lru_in_out_mlp", {"activation": "tanh"}),
    Network("attention", "lstm"),
    Network("attention", "lstm", {"layers": 2}),
    Network("attention", "gru"),
    Network("attention", "gru", {"layers": 1}),
    Network("gated RNN", "mamba"),
    Network("gated RNN", "decayed_attention"),
    Network("gated RNN", "lru_in_out"),
    Network("gated RNN", "lru_in_out_mlp"),
    Network("gated RNN", "lstm"),
    Network("gated RNN", "gru"),
)


def source(kind: str, seed: int) -> uh.LinearAttention | uh.GatedRNN:
    """Return a source with weights N(0, 1/fan-in); λ of a gated RNN is 0, 1, and between."""
    rng = np.random.default_rng([17, seed])

    def weights(rows: int, columns: int) -> np.ndarray:
        return rng.normal(size=(rows, columns)) / np.sqrt(columns)

    if kind == "attention":
        return uh.LinearAttention(*(weights(D, D) for _ in range(3)))
    return uh.GatedRNN(
        W_in_m=weights(8, D + 1),
        W_in_x=weights(8, D + 1),
        decay=np.concatenate([[0.0, 0.0, 1.0, 1.0], rng.uniform(size=4)]),
        W_out_m=weights(8, 8),
        W_out_x=weights(8, 8),
        D=weights(D, 8),
    )


def error(network: Network, dtype: str, place: tuple[int, float], *, asked: bool) -> float | None:
    """Return the largest error over the sources; None where compile refuses one of them.

    asked  compile for this place, not for the default
    """
    length, size = place
    for_place = {"length": length, "size": size} if asked else {}
    errors = []
    for seed in range(SOURCES):
        try:
            built = uh.compile(
                source(network.source, seed),
                network.target,
                dtype=dtype,
                **network.options,  # type: ignore[arg-type]
                **for_place,  # type: ignore[arg-type]
            )
        except uh.BadInput:
            return None
        key = jax.random.key(100 + seed)
        errors.append(built.error(key=key, length=length, size=size, sequences=SEQUENCES))
    return max(errors)


def shown(value: float | None, dtype: str) -> str:
    if value is None:
        return "refused"
    digits = re.sub(r"e-0", "e-", f"{value:.0e}") if value < 0.1 else f"{value:.1f}"
    return digits if value <= PROMISED[dtype] else f"**{digits}**"


def table(*, asked: bool) -> str:
    """Return the rows of all networks in both precisions."""
    header = [f"{length:,} tokens, size {size:g}" for length, size in PLACES]
    lines = [f"| source | network | precision | {' | '.join(header)} |", "|---" * 9 + "|"]
    for network in NETWORKS:
        for dtype in PROMISED:
            cells = [shown(error(network, dtype, place, asked=asked), dtype) for place in PLACES]
            lines.append(f"| {network.source} | {network.name} | {dtype} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


def parts(name: str) -> tuple[str, str, re.Pattern[str]]:
    """Return the comments around a table, and what matches them with all between."""
    begin, end = BEGIN.format(name=name), END.format(name=name)
    return begin, end, re.compile(f"{re.escape(begin)}(.*?){re.escape(end)}", re.DOTALL)


def written_rows(text: str, name: str) -> dict[tuple[str, str, str], list[str]]:
    """Return the cells of a table in the page, by source, network and precision."""
    matched = parts(name)[2].search(text)
    if matched is None:
        raise ValueError(f"The page has no table {name}.")
    rows = [line.strip("| ").split(" | ") for line in matched[1].splitlines() if line][2:]
    return {(row[0], row[1], row[2]): row[3:] for row in rows}


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name, asked in zip(NAMES, (True, False), strict=True):
        print(f"Networks {name}:")
        begin, end, pattern = parts(name)
        measured = f"{begin}\n{table(asked=asked)}\n{end}"
        text = pattern.sub(lambda _, measured=measured: measured, text)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
