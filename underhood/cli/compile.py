"""underhood compile: attention weights, or a gated RNN, into a recurrent network."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from underhood.cli.arguments import Maybe, check_writable
from underhood.cli.commands import complain
from underhood.common.errors import BadInput, refuse
from underhood.common.files import Json
from underhood.common.numbers import finite_or_none, whole_problems

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray

    from underhood.constructions import Construction

# Where the error is measured besides the length and size asked for, and tokens times parameters
# that take a few seconds.
TABLE_LENGTHS, TABLE_SIZES, MOST_WORK = (32, 1024, 4096), (1.0, 10.0), 5e9


@dataclass(frozen=True)
class Compile:
    source: tyro.conf.Positional[Path]
    """A safetensors file with W_V, W_K, W_Q, or a network that underhood wrote."""
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """Where to write the network."""
    target: str = "gated_rnn"
    """gated_rnn, side_gated_rnn, lru, lru_in_out, lru_in_out_mlp, mamba, mamba_block, lstm, gru,
    decayed_attention, falcon_h1, mamba2, gated_deltanet, deltanet, kda, lightning, gla, retnet,
    rwkv6, rwkv7, mlstm, jamba, rg_lru or hgrn2."""
    form: Maybe[str] = None
    """full, compact, low_rank or minimal; by default minimal."""
    dtype: str = "float64"
    """float64 or float32."""
    order: Maybe[int] = None
    """Order of the linearisation, if the target has a choice."""
    epsilon: Maybe[float] = None
    """Scale of the linearisation; by default the best for dtype, order, length and size. If it is
    given, any error is accepted."""
    layers: Maybe[int] = None
    """1 or 2, if the target allows both."""
    activation: Maybe[str] = None
    """For lru_in_out_mlp: gelu, silu, softplus, tanh or relu."""
    reset: Maybe[str] = None
    """For gru: before the product, or after it as in PyTorch; by default before."""
    length: int = 32
    """Longest sequence that the network must serve, if it is linearised."""
    size: float = 1.0
    """Size of the tokens that the network must serve, if it is linearised: the largest standard
    deviation of their entries."""
    seed: int = 0
    """Seed of the sequences on which the error is measured."""
    force: bool = False
    """Replace the output file if it exists."""
    json: bool = False
    """Print the result as JSON."""

    def run(self) -> int:
        import jax

        from underhood.cli.printing import fact_rows, show
        from underhood.constructions import compile
        from underhood.constructions.compiling import PROMISED, check_promise
        from underhood.layers.files import read, save

        refuse(whole_problems(least=0, most=2**32 - 1, **{"--seed": self.seed}), about="compile")
        check_writable(self.output, replace=self.force)
        source = read(self.source).layer
        choices = ("target", "form", "dtype", "order", "epsilon", "layers", "activation", "reset")
        chosen = {name: getattr(self, name) for name in (*choices, "length", "size")}
        built = compile(source, **chosen)  # type: ignore[arg-type]
        key, sequences = jax.random.key(self.seed), 16 if self.length <= 1024 else 4
        errors = built.errors(key=key, length=self.length, size=self.size, sequences=sequences)
        if self.epsilon is None and not built.exact:
            check_promise(built, errors, self.size)
        save(self.output, built)
        facts = {
            "source": type(source).__name__,
            **built.settings,
            "layers": built.layers,
            "neurons": built.neurons,
            "gate_outputs": built.gate_width,
            "parameters": built.parameters,
            "error": float(errors[-1]),
            "output": str(self.output),
        }
        table = error_table(built, key, length=self.length, size=self.size)
        limit = PROMISED[str(built.dtype)]
        if self.json:
            print(json.dumps({**facts, "promised": limit, "errors": table}, allow_nan=False))
        else:
            show(fact_rows(facts))
            print("Error by length and size of tokens, relative to the largest output:")
            show(error_rows(table))
        above = [row for row in table if row["error"] is None or row["error"] > limit]
        if above:
            places = ", ".join(f"{row['length']} tokens of size {row['size']:g}" for row in above)
            advice = "" if built.exact else "; add --length and --size to build a network for them"
            complain(f"the error is above {limit:g} on {places}{advice}.")
        return 0


def error_table(
    built: "Construction", key: "PRNGKeyArray", *, length: int, size: float
) -> list[Json]:
    """Measure the error at several lengths and sizes of tokens, those asked for among them.

    An error is None where outputs leave the range of the precision. Lengths that would take long
    for this network are left out.
    """
    within = [time for time in TABLE_LENGTHS if time * built.parameters <= MOST_WORK]
    lengths, table = sorted({*within, length}), []
    for each in sorted({*TABLE_SIZES, float(size)}):
        try:
            errors = built.errors(key=key, length=lengths[-1], size=each, sequences=2)
            measured = [finite_or_none(errors[time - 1]) for time in lengths]
        except BadInput:
            measured = [None] * len(lengths)
        table += [
            {"length": time, "size": each, "error": error}
            for time, error in zip(lengths, measured, strict=True)
        ]
    return table


def error_rows(table: list[Json]) -> list[Json]:
    """Return a row per length and a column per size."""
    rows: dict[int, Json] = {}
    for cell in table:
        row = rows.setdefault(cell["length"], {"tokens": cell["length"]})
        row[f"size {cell['size']:g}"] = cell["error"]
    return list(rows.values())
