"""What is in a file, as rows for people: facts, arrays and roles."""

from collections import Counter

import numpy as np

from underhood.common.decay import decay_from_nu
from underhood.common.files import Json
from underhood.layers.base.layer import Layer, parameter_count
from underhood.layers.files.storage import Contents, take_apart


def layer_facts(contents: Contents) -> Json:
    """Return kind and sizes of the layer, and how it was made."""
    layer = contents.layer
    facts = {"kind": type(layer).__name__, "d_in": layer.d_in, "d_out": layer.d_out}
    facts |= {"neurons": layer.neurons, "gate_outputs": layer.gate_width}
    settings = {name: value for name, value in contents.settings.items() if value is not None}
    return {**facts, "parameters": parameter_count(layer), **settings}


def named_arrays(layer: Layer) -> list[tuple[str, np.ndarray]]:
    """Return every array of a layer under its path, λ in place of ν."""
    arrays: dict[str, np.ndarray] = {}
    take_apart(layer, "", arrays)
    return [
        (f"{name[: -len('nu')]}decay", np.asarray(decay_from_nu(array)))
        if name.split(".")[-1] == "nu"
        else (name, array)
        for name, array in arrays.items()
    ]


def array_rows(layer: Layer) -> list[Json]:
    return [
        {
            "array": name,
            "shape": "×".join(map(str, array.shape)) or "scalar",
            "type": str(array.dtype),
            "nonzero": int(np.count_nonzero(array)),
            "smallest": float(array.min()) if array.size else None,
            "largest": float(array.max()) if array.size else None,
        }
        for name, array in named_arrays(layer)
    ]


def role_rows(roles: tuple[tuple[str, str], ...]) -> list[Json]:
    """Return a row per kind of role: how many neurons, and the first of them."""
    first = dict(reversed(roles))
    counts = Counter(kind for kind, _ in roles)
    return [
        {"role": kind, "neurons": count, "for example": first[kind]}
        for kind, count in counts.items()
    ]
