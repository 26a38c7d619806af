"""Measure the errors of the layers of today, into modern.md: python docs/modern_table.py.

An entry is the largest error over two sources with random weights N(0, 1)/2 of width 4, on four
sequences of N(0, 1) tokens. The network is compiled for the length at which it runs. It takes about
a minute.
"""

import re
from pathlib import Path

import jax
import numpy as np

import underhood as uh

PAGE = Path(__file__).resolve().parent / "modern.md"
BEGIN = "<!-- python docs/modern_table.py writes this table -->\n"
END = "<!-- the table of errors ends here -->\n"
LENGTHS, PRECISIONS = (32, 256), ("float64", "float32")
PLACES = [(length, dtype) for dtype in PRECISIONS for length in LENGTHS]
TARGETS = (
    *("falcon_h1", "mamba2", "jamba", "gated_deltanet", "deltanet", "kda", "gla", "retnet"),
    *("lightning", "rwkv6", "rwkv7", "mlstm", "rg_lru", "hgrn2"),
)


def source(seed: int) -> uh.LinearAttention:
    return uh.LinearAttention(*np.random.default_rng(seed).normal(size=(3, 4, 4)) / 2)


def measured(target: str, length: int, dtype: str, seeds: int = 2) -> tuple[uh.Construction, float]:
    """Return a network for the length, and the largest error over the sources."""
    # An exact network has no length to be built for.
    networks = [
        uh.compile(source(seed), target, dtype=dtype, length=length) for seed in range(seeds)
    ]
    errors = [
        network.error(key=jax.random.key(100 + seed), length=length, sequences=4)
        for seed, network in enumerate(networks)
    ]
    return networks[0], max(errors)


def row(target: str) -> str:
    """Return a line of the table."""
    cells, kinds, neurons = [], [], []
    for length, dtype in PLACES:
        network, error = measured(target, length, dtype)
        cells.append(shown_error(error))
        kinds.append("exact" if network.exact else f"limit, order {network.order}")
        neurons.append(str(network.neurons))
    # The order, and with it the size, may depend on the precision.
    kind, size = (" or ".join(dict.fromkeys(words)) for words in (kinds, neurons))
    line = f"| `{target}` | {kind} | {size} | {' | '.join(cells)} |"
    print(line, flush=True)
    return line


def shown_error(error: float) -> str:
    return re.sub("e-0", "e-", f"{error:.1e}")


def table() -> str:
    header = " | ".join(f"{length} tokens, {dtype}" for length, dtype in PLACES)
    lines = [f"| target | kind | neurons | {header} |", "|---" * 7 + "|", *map(row, TARGETS)]
    return "\n".join(lines) + "\n"


def written_errors(text: str) -> dict[str, list[float]]:
    """Return the errors in the page, by target."""
    rows = re.findall(
        r"^\| `(\w+)` \| [^|]+ \| [^|]+ \| (.*) \|$", text.split(BEGIN)[1], re.MULTILINE
    )
    return {target: [float(cell) for cell in cells.split(" | ")] for target, cells in rows}


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
