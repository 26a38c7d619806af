"""underhood inspect: what is in a file of weights, and how its layer mixes tokens."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tyro

from underhood.cli.arguments import Maybe, check_writable
from underhood.common.errors import BadInput, refuse
from underhood.common.numbers import whole_problems

if TYPE_CHECKING:
    from underhood.analysis import AttentionMap
    from underhood.layers import Layer
    from underhood.layers.files import Contents

# More maps than this are not printed in the terminal.
PRINTED_MAPS = 8


@dataclass(frozen=True)
class Inspect:
    file: tyro.conf.Positional[Path]
    """A safetensors file with attention weights, one that underhood wrote, or one with weights of
    an LSTM, a GRU or a Mamba of PyTorch, transformers or Flax."""
    pictures: bool = True
    """Draw the matrices."""
    json: bool = False
    """Print the facts as JSON."""
    map: bool = False
    """Show the attention maps of the layer on one sequence instead; of a stack, of one layer."""
    tokens: Maybe[Path] = None
    """With --map: a text file with the sequence, a token per line, numbers parted by spaces.
    Random tokens if left out."""
    length: int = 16
    """With --map: how many random tokens."""
    seed: int = 0
    """With --map: seed of the random tokens."""
    layer: int = 0
    """With --map: which layer of a stack, from 0."""
    output: Maybe[Path] = None
    """With --map: write a picture, as .png, .svg or .pdf, instead of printing."""
    force: bool = False
    """Replace the output if it exists."""

    def run(self) -> int:
        from underhood.cli.printing import fact_rows, show
        from underhood.layers import files

        self.check()
        contents = read_weights_of_any_kind(self.file)
        layer, facts = contents.layer, files.layer_facts(contents)
        if self.map:
            return self.show_map(layer)
        arrays = files.named_arrays(layer)
        if self.json:
            shapes = {name: list(array.shape) for name, array in arrays}
            print(json.dumps({**facts, "arrays": shapes, "roles": contents.roles}))
            return 0
        drawn = [(name, array) for name, array in arrays if array.ndim == 2 and array.size]
        tables = (files.array_rows(layer), files.role_rows(contents.roles))
        show(fact_rows(facts), *tables, matrices=drawn if self.pictures else [])
        return 0

    def check(self) -> None:
        """Refuse options that do not go together, and numbers out of range."""
        of_maps = ("tokens", "length", "seed", "layer", "output")
        given = [f"--{name}" for name in of_maps if getattr(self, name) != getattr(Inspect, name)]
        if given and not self.map:
            belong = "belongs" if len(given) == 1 else "belong"
            raise BadInput(f"{' and '.join(given)} {belong} to --map; add it.")
        if self.tokens is not None:
            drawn = [name for name in ("length", "seed") if f"--{name}" in given]
            if drawn:
                words = " and ".join(f"--{name}" for name in drawn)
                raise BadInput(
                    f"{words} of random tokens and --tokens do not go together; leave one out."
                )
        if self.json and self.output:
            raise BadInput(
                "--json prints the maps, and --output draws them; leave one of them out."
            )
        problems = whole_problems(most=1024, **{"--length": self.length})
        problems += whole_problems(least=0, most=2**32 - 1, **{"--seed": self.seed})
        refuse(problems, about="inspect")

    def show_map(self, layer: "Layer") -> int:
        """Print the maps, or write a picture of them."""
        from underhood.cli.printing import fact_rows, show

        if self.output is not None:
            check_writable(self.output, replace=self.force)
        mapped, kind = mapped_layer(layer, self.sequence(layer.d_in), self.layer)
        facts = {
            "layer": kind,
            "maps": len(mapped.maps),
            "tokens": mapped.maps.shape[1],
            "outside the maps": ", ".join(mapped.outside) or "nothing",
        }
        if self.json:
            print(json.dumps({**facts, "values": mapped.maps.tolist()}))
            return 0
        if self.output is None:
            if len(mapped.maps) > PRINTED_MAPS:
                facts["maps"] = f"{len(mapped.maps)}, the first {PRINTED_MAPS} below"
            named = [(f"map {place}", A) for place, A in enumerate(mapped.maps[:PRINTED_MAPS])]
            show(fact_rows(facts), matrices=named)
            return 0
        from underhood.report.drawing import draw_maps

        draw_maps(self.output, mapped.maps, f"{kind}, {len(mapped.maps)} attention maps")
        print(f"wrote {self.output}: maps {len(mapped.maps)}, tokens {mapped.maps.shape[1]}")
        return 0

    def sequence(self, d_in: int) -> np.ndarray:
        """Return the tokens of the file, or random ones."""
        if self.tokens is None:
            return np.random.default_rng(self.seed).normal(size=(self.length, d_in))
        wanted = f"{d_in} number{'s' * (d_in != 1)} a line, parted by spaces"
        try:
            lines = self.tokens.read_text(encoding="utf-8").splitlines()
            rows = {
                number: [float(word) for word in line.split()]
                for number, line in enumerate(lines, 1)
                if line.strip()
            }
        except UnicodeDecodeError:
            raise BadInput(f"{self.tokens} is no text file; give {wanted}.") from None
        except ValueError as error:
            raise BadInput(
                f"{self.tokens} holds no rows of numbers: {error}; give {wanted}."
            ) from None
        if not rows:
            raise BadInput(f"{self.tokens} holds no tokens; give {wanted}.")
        for number, row in rows.items():
            if len(row) != d_in:
                plural = "s" * (len(row) != 1)
                raise BadInput(
                    f"{self.tokens} has {len(row)} number{plural} in line {number}; give {wanted}."
                )
        return np.array(list(rows.values()))


def read_weights_of_any_kind(path: Path) -> "Contents":
    """Read a file of ours, attention weights, or a state dict of another framework."""
    from underhood.bridges.state_dicts import KINDS_OF_DICTS, from_state_dict
    from underhood.layers import Layer, files

    try:
        return files.read(path)
    except BadInput as error:
        refusal = error
    for kind in KINDS_OF_DICTS:
        try:
            layer = from_state_dict(path, kind)
        except BadInput:
            continue
        if isinstance(layer, Layer):
            return files.Contents(layer, (), {"read as": kind})
    raise refusal


def mapped_layer(layer: "Layer", xs: np.ndarray, place: int) -> tuple["AttentionMap", str]:
    """Return the maps of a layer, or of one layer of a stack, and the name of its kind."""
    import jax

    from underhood.analysis import attention_map
    from underhood.layers import Stack

    if isinstance(layer, Stack):
        if not 0 <= place < len(layer.layers):
            raise BadInput(
                f"--layer is {place}; this stack has the layers 0 to {len(layer.layers) - 1}."
            )
        with jax.enable_x64(True):
            below = jax.tree.map(lambda leaf: jax.numpy.asarray(leaf, float), layer)
            xs = xs if below.embed is None else below.embed(xs)
            for part in below.layers[:place]:
                xs = part(xs)
        layer = layer.layers[place]
    elif place:
        raise BadInput(f"--layer is {place}, and this {type(layer).__name__} is no stack.")
    return attention_map(layer, np.asarray(xs)), type(layer).__name__
