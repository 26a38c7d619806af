"""underhood decompile: the attention that a gated RNN computes, if there is one.

Exit status 0: attention; 3: not attention; 4: undecided.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from underhood.cli.arguments import Maybe, check_writable
from underhood.cli.commands import complain
from underhood.common.errors import check_name

BIASES = {"auto": None, "yes": True, "no": False}
# The exit status of each verdict; 1 and 2 are failures and bad input.
STATUSES = {"attention": 0, "not attention": 3, "undecided": 4}


@dataclass(frozen=True)
class Decompile:
    source: tyro.conf.Positional[Path]
    """A safetensors file with a GatedRNN, a SideGatedRNN or a DenseGatedRNN."""
    output: Annotated[Maybe[Path], tyro.conf.arg(aliases=["-o"])] = None
    """Where to write the attention; by default it is only printed."""
    tolerance: float = 1e-3
    """Largest residual of a network that counts as attention."""
    biases: str = "auto"
    """Whether the attention may have biases: auto (only if they explain more), yes or no."""
    max_heads: int = 4
    """A network that needs more heads than this is not attention."""
    radius: float = 2.0
    """Bound the difference for tokens up to this norm."""
    time: int = 32
    """Bound the difference up to this many tokens; the residual is always measured at 32."""
    pictures: bool = True
    """Draw the recovered matrices."""
    force: bool = False
    """Replace the output file if it exists."""
    json: bool = False
    """Print the result as JSON."""

    def run(self) -> int:
        from underhood.analysis import decompile
        from underhood.analysis.decompilation import description
        from underhood.cli.printing import show
        from underhood.layers.files import read, save

        check_name("choice for --biases", self.biases, BIASES)
        if self.output is not None:
            check_writable(self.output, replace=self.force)
        source = read(self.source).layer
        result = decompile(
            source,  # type: ignore[arg-type]  # decompile refuses other layers
            tolerance=self.tolerance,
            biases=BIASES[self.biases],
            max_heads=self.max_heads,
        )
        facts = description.decompilation_facts(result, self.radius, self.time)
        if self.output is not None and result.is_attention:
            save(self.output, result.attention)
            facts["output"] = str(self.output)
        if self.json:
            print(json.dumps(facts))
        else:
            matrices = description.matrices(result) if self.pictures else []
            show(*description.rows(facts), matrices=matrices)
        if not result.is_attention:
            complain(result.reason + ("" if self.output is None else "; nothing was written") + ".")
        return STATUSES[result.verdict]
