"""The command: write a folder of planted networks, with a key for each."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from underhood.cli.arguments import Maybe


@dataclass(frozen=True)
class Plant:
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])]
    """A new or empty folder for networks, model cards and keys."""
    target: str = "gated_rnn"
    """torch.LSTM, torch.GRU, gated_rnn, side_gated_rnn, lru or lru_in_out."""
    count: int = 20
    """How many networks."""
    d: int = 3
    """Numbers per token."""
    rank: Maybe[int] = None
    """Rank of W_V and M; by default d."""
    heads: int = 1
    """Heads of the attention."""
    decay: float = 1.0
    """Decay of the memory per token; 1 forgets nothing."""
    decoys: Maybe[float] = None
    """Share of networks that hold no attention; by default a quarter, and for side_gated_rnn 0."""
    twins: int = 2
    """Neurons and gate outputs per layer that are there twice."""
    dead: int = 4
    """Neurons and gate outputs per layer that nothing reads, except in decoys."""
    seed: int = 0
    """Seed of all random numbers; the same options write the same networks."""
    force: bool = False
    """Replace planted networks that are already in the folder."""
    json: bool = False
    """Print the result as JSON."""

    def run(self) -> int:
        from underhood.cli.printing import fact_rows, show
        from underhood.planting import Planting, plant_folder

        names = ("target", "d", "rank", "heads", "decay", "twins", "dead", "seed")
        planting = Planting(**{name: getattr(self, name) for name in names})
        networks = plant_folder(
            planting, self.output, count=self.count, decoys=self.decoys, force=self.force
        )
        errors = [planted.error for planted in networks if planted.error is not None]
        facts = {
            "target": self.target,
            "networks": len(networks),
            "decoys": len(networks) - len(errors),
            "neurons": networks[0].layer.neurons,
            "largest error": max(errors, default=None),
            "output": str(self.output),
        }
        if self.json:
            print(json.dumps(facts))
        else:
            show(fact_rows(facts))
        return 0
