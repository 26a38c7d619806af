"""underhood compile: attention weights, or a gated RNN, into a recurrent network."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from underhood.cli.arguments import Maybe
from underhood.common.errors import refuse


@dataclass(frozen=True)
class Compile:
    source: tyro.conf.Positional[Path]
    """A safetensors file with W_V, W_K, W_Q, or a network that underhood wrote."""
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """Where to write the network."""
    target: str = "gated_rnn"
    """gated_rnn, side_gated_rnn, lru, lru_in_out, lru_in_out_mlp, mamba, mamba_block, lstm, gru or
    decayed_attention."""
    form: Maybe[str] = None
    """full, compact, low_rank or minimal; by default minimal."""
    dtype: str = "float64"
    """float64 or float32."""
    order: Maybe[int] = None
    """Order of the linearisation, if the target needs one."""
    epsilon: Maybe[float] = None
    """Scale of the linearisation; by default chosen for the dtype."""
    layers: Maybe[int] = None
    """1 or 2, if the target allows both."""
    activation: Maybe[str] = None
    """For lru_in_out_mlp: gelu, silu, softplus, tanh or relu."""
    seed: int = 0
    """Seed of the sequences on which the error is measured."""
    force: bool = False
    """Replace the output file if it exists."""
    json: bool = False
    """Print the result as JSON."""

    def run(self) -> int:
        import jax

        from underhood.cli.printing import fact_rows, show
        from underhood.common.files import check_writable
        from underhood.common.numbers import whole_problems
        from underhood.constructions import compile
        from underhood.layers.files.storage import read, save

        refuse(whole_problems(least=0, most=2**32 - 1, **{"--seed": self.seed}), about="compile")
        check_writable(self.output, replace=self.force)
        source = read(self.source).layer
        built = compile(
            source,  # type: ignore[arg-type]
            self.target,
            self.form,
            self.dtype,
            order=self.order,
            epsilon=self.epsilon,
            layers=self.layers,
            activation=self.activation,
        )
        error = built.error(key=jax.random.key(self.seed))
        save(self.output, built)
        facts = {
            "source": type(source).__name__,
            **built.settings,
            "layers": built.layers,
            "neurons": built.neurons,
            "gate_outputs": built.gate_width,
            "parameters": built.parameters,
            "error": error,
            "output": str(self.output),
        }
        if self.json:
            print(json.dumps(facts))
        else:
            show(fact_rows(facts))
        return 0
