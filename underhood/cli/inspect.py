"""underhood inspect: what is in a file of weights."""

import json
from dataclasses import dataclass
from pathlib import Path

import tyro


@dataclass(frozen=True)
class Inspect:
    file: tyro.conf.Positional[Path]
    """A safetensors file with attention weights, or one that underhood wrote."""
    pictures: bool = True
    """Draw the matrices."""
    json: bool = False
    """Print the facts as JSON."""

    def run(self) -> int:
        from underhood.cli.printing import fact_rows, show
        from underhood.layers import files

        contents = files.read(self.file)
        layer, facts = contents.layer, files.layer_facts(contents)
        arrays = files.named_arrays(layer)
        if self.json:
            shapes = {name: list(array.shape) for name, array in arrays}
            print(json.dumps({**facts, "arrays": shapes, "roles": contents.roles}))
            return 0
        drawn = [(name, array) for name, array in arrays if array.ndim == 2 and array.size]
        tables = (files.array_rows(layer), files.role_rows(contents.roles))
        show(fact_rows(facts), *tables, matrices=drawn if self.pictures else [])
        return 0
