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
        from underhood.layers.files.description import (
            array_rows,
            layer_facts,
            named_arrays,
            role_rows,
        )
        from underhood.layers.files.storage import read

        contents = read(self.file)
        facts, arrays = layer_facts(contents), named_arrays(contents.layer)
        if self.json:
            shapes = {name: list(array.shape) for name, array in arrays}
            print(json.dumps({**facts, "arrays": shapes, "roles": contents.roles}))
            return 0
        drawn = [(name, array) for name, array in arrays if array.ndim == 2 and array.size]
        tables = fact_rows(facts), array_rows(contents.layer), role_rows(contents.roles)
        show(*tables, matrices=drawn if self.pictures else [])
        return 0
