"""attention_score of known layers: compiled, without memory, random, and trained.

    python benchmarks/scores.py          print the table
    python benchmarks/scores.py --write  and store it: in the package and in docs/scores.md

The trained students are those of figure4a at quick scale with one layer: the same task, widths,
steps and batch, one seed, each at the learning rate that the stored result chose for it.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp

import underhood as uh
from underhood.analysis.scoring.baselines import STORED, baseline_layers
from underhood.experiments.paper.figure4 import plan_figure4a
from underhood.experiments.protocols.architectures import ARCHITECTURES

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "scores.md"
FIGURE4A = ROOT / "results" / "reference" / "quick" / "figure4a" / "result.json"
D, HIDDEN, KEY = 3, 16, jax.random.key(18)
TARGETS = ("gated_rnn", "side_gated_rnn", "mamba", "lru_in_out", "lstm", "gru")
WITHOUT_MEMORY: dict[str, Callable[[jax.Array], jax.Array]] = {
    "y = x": lambda xs: xs,
    "y = x³": lambda xs: xs**3,
    "y = x|x|²": lambda xs: xs * jnp.sum(xs**2, axis=1, keepdims=True),
    "y = t·x": lambda xs: xs * (1 + jnp.arange(len(xs)))[:, None],
}

Row = dict[str, str | float]


def random_layers() -> dict[str, uh.Layer]:
    keys = jax.random.split(jax.random.key(1), 5)
    sizes = {"d_in": D, "hidden": HIDDEN}
    return {
        "gated RNN": uh.GatedRNN.init(**sizes, gated=HIDDEN, d_out=D, key=keys[0]),
        "gated RNN, dense": uh.DenseGatedRNN.init(**sizes, gated=HIDDEN, d_out=D, key=keys[1]),
        "LRU In+Out": uh.LRUInOut.init(**sizes, d_out=D, key=keys[2]),
        "LSTM": uh.LSTM.init(**sizes, key=keys[3]),
        "GRU": uh.GRU.init(**sizes, key=keys[4]),
    }


def known_layers() -> Iterator[tuple[str, str, object, int]]:
    """Yield kind, name, layer and sequence length of all layers that need no training."""
    attention = uh.LinearAttention.init(d_in=D, key=jax.random.key(0))
    yield "compiled", "attention itself", attention, 32
    for target in TARGETS:
        yield "compiled", target, uh.compile(attention, target).layer, 32
    for name, layer in WITHOUT_MEMORY.items():
        yield "no memory", name, layer, 32
    yield "no memory", "y = t·x", WITHOUT_MEMORY["y = t·x"], 512
    for name, layer in random_layers().items():
        yield "random", name, layer, 32
    yield "mixed", "running sum of x", lambda xs: jnp.cumsum(xs, axis=0), 32
    yield "mixed", "attention + 10 x", lambda xs: attention(xs) + 10 * xs, 32


def rates() -> dict[str, float]:
    """Return the learning rates that figure4a chose for one layer."""
    rows = json.loads(FIGURE4A.read_text())["rows"]
    return {row["architecture"]: row["rate"] for row in rows if row["layers"] == 1}


def trained_rows() -> Iterator[Row]:
    plan = plan_figure4a("quick")
    for architecture in ARCHITECTURES:
        recipe = replace(plan.recipe, learning_rate=rates()[architecture.name])
        student = architecture.make(plan.task, 1)
        key = jax.random.key(2)
        run = uh.train(student, plan.task, recipe, widths=HIDDEN, key=key, progress=False)
        row = score_row("trained", architecture.name, run.best(), plan.task.time)
        yield row | {"loss": float(run.rows[0]["normalised_loss"])}


def score_row(kind: str, name: str, layer: object, time: int) -> Row:
    result = uh.attention_score(layer, key=KEY, d_in=D, time=time)
    numbers = {"score": result.score, "error": result.errors.score}
    numbers |= {"form": result.form, "whole": result.whole, "memory": result.memory}
    return {"kind": kind, "layer": name, "time": time, **numbers}


def line(row: Row) -> str:
    error = f"{row['error']:.0e}" if row["error"] else "0"
    loss = f"{row['loss']:8.1e}" if "loss" in row else ""
    numbers = "  ".join(f"{row[name]:6.4f}" for name in ("form", "whole", "memory"))
    start = f"{row['kind']:<10} {row['layer']:<18} {row['time']:>4}"
    return f"{start}  {row['score']:8.6f} ± {error:<6}  {numbers}  {loss}".rstrip()


HEADER = f"{'':<10} {'layer':<18} {'time':>4}  {'score':<17}  form    whole   memory     loss"


def table(rows: list[Row]) -> str:
    return "\n".join([HEADER, *map(line, rows)]) + "\n"


def main() -> None:
    rows = []
    print(HEADER)
    for case in known_layers():
        rows.append(score_row(*case))
        print(line(rows[-1]), flush=True)
    for row in trained_rows():
        rows.append(row)
        print(line(row), flush=True)
    if "--write" in sys.argv[1:]:
        layer = uh.LSTM.init(d_in=D, hidden=HIDDEN, key=jax.random.key(3))
        known = baseline_layers(layer, d_in=D, d_out=D, key=jax.random.key(4))
        scores = {name: score_row("", name, each, 32)["score"] for name, each in known.items()}
        stored = {"command": "python benchmarks/scores.py --write", "baselines": scores}
        STORED.write_text(json.dumps(stored | {"rows": rows}, indent=1, ensure_ascii=False) + "\n")
        page = PAGE.read_text()
        block = f"<!-- scores -->\n```text\n{table(rows)}```"
        PAGE.write_text(re.sub(r"<!-- scores -->\n```text\n.*?```", block, page, flags=re.DOTALL))


if __name__ == "__main__":
    main()
