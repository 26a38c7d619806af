"""Layers in files, and what a file holds in rows for people.

A file is one safetensors file, with what is inside as JSON in its metadata, and no code. A tensor's
name is its path, `layers.0.U_f`. The metadata holds `format`, `version`, `layer` (nested where
layers are), `roles` (one per neuron, or none) and `settings` (how the network was made). A file
without this metadata whose tensors are W_V, W_K and W_Q (and b_V, b_K, b_Q, decay if wanted) is
read as a LinearAttention. docs/files.md is the reference of the format.
"""

import dataclasses
import json
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import equinox as eqx
import numpy as np
import safetensors.numpy

from underhood.common.decay import decay_from_nu
from underhood.common.errors import BadInput, kind_of
from underhood.common.files import Json, write_atomically
from underhood.common.tensors import UnreadableTensors, read_tensors
from underhood.layers.attention import LinearAttention, MultiHead
from underhood.layers.base.layer import Layer, parameter_count
from underhood.layers.gated_rnn import DenseGatedRNN, GatedRNN, SideGatedRNN
from underhood.layers.gru import GRU
from underhood.layers.lru import LRU, LRUInOut, LRUInOutMLP
from underhood.layers.lstm import LSTM
from underhood.layers.mamba import Mamba, MambaBlock
from underhood.layers.modern.gated_deltanet import KDA, DeltaNet, GatedDeltaNet
from underhood.layers.modern.gla import GLA, HGRN2, Lightning, RetNet
from underhood.layers.modern.jamba import JambaBlock
from underhood.layers.modern.mamba2 import Mamba2
from underhood.layers.modern.min_gru import MinGRU
from underhood.layers.modern.mlstm import MLSTM
from underhood.layers.modern.rg_lru import RGLRU
from underhood.layers.modern.rwkv6 import RWKV6
from underhood.layers.modern.rwkv7 import RWKV7
from underhood.layers.stack import Affine, Stack

FORMAT_VERSION = 1
DEEPEST = 16

KINDS: dict[str, type] = {
    kind.__name__: kind
    for kinds in (
        (LinearAttention, MultiHead, GatedRNN, SideGatedRNN, DenseGatedRNN, LRU, LRUInOut),
        (LRUInOutMLP, Mamba, MambaBlock, LSTM, GRU, Stack, Affine),
        (Mamba2, DeltaNet, GatedDeltaNet, KDA, GLA, RetNet, Lightning, HGRN2),
        (RWKV6, RWKV7, MLSTM, RGLRU, MinGRU, JambaBlock),
    )
    for kind in kinds
}

# Fields that files written before these existed do not have, and what they then are.
ADDED_LATER: dict[str, Json] = {
    "GRU": {"c_h": {"value": None}, "reset": {"value": "before"}},
    "Mamba2": {"norm_groups": {"value": 1}},
}

TensorDict = dict[str, np.ndarray]


@dataclass(frozen=True)
class Contents:
    """Everything that a file says."""

    layer: Layer
    roles: tuple[tuple[str, str], ...]
    settings: Json


def save(path: str | os.PathLike[str], what: Any) -> None:  # Any: a layer, or what has a .layer
    """Write a layer, or a construction with its roles and settings; whole or not at all."""
    layer = getattr(what, "layer", what)
    if not isinstance(layer, Layer) or type(layer).__name__ not in KINDS:
        raise BadInput(f"save takes a layer or a construction, not {kind_of(what)}.")
    tensors: TensorDict = {}
    parts = {
        "layer": take_apart(layer, "", tensors),
        "roles": [list(role) for role in getattr(what, "roles", ())],
        "settings": getattr(what, "settings", {}),
    }
    metadata = {"format": "underhood", "version": str(FORMAT_VERSION)}
    metadata |= {name: json.dumps(part) for name, part in parts.items()}
    write_atomically(path_of(path), safetensors.numpy.save(tensors, metadata))


def load(path: str | os.PathLike[str]) -> Layer:
    """Return the layer in a file, its weights as NumPy arrays."""
    return read(path).layer


def read(path: str | os.PathLike[str]) -> Contents:
    """Return the layer in a file with its roles and settings; refuse a bad file in one line."""
    place = path_of(path)
    try:
        tensors, metadata = read_tensors(place)
        if metadata.get("format") == "underhood":
            return contents_from(tensors, metadata)
        return Contents(attention_in(tensors), (), {})
    except OSError as error:
        raise BadInput(f"Cannot read {path}: {error.strerror or error}.") from None
    except UnreadableTensors as error:
        raise BadInput(f"{path} is not a readable safetensors file: {error}.") from None
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None


def path_of(path: Any) -> Path:  # Any: whatever the caller gave
    """Return a path, or refuse what is none."""
    if not isinstance(path, str | os.PathLike):
        raise BadInput(f"A path is a string or a pathlib.Path, not {kind_of(path)}.")
    return Path(path)


def attention_in(tensors: TensorDict) -> LinearAttention:
    """Make attention of tensors that somebody else wrote."""
    needed, optional = {"W_V", "W_K", "W_Q"}, {"b_V", "b_K", "b_Q", "decay"}
    if needed - tensors.keys() or tensors.keys() - needed - optional:
        names = ", ".join(sorted(tensors)[:8]) or "nothing"
        foreign = (
            ""
            if needed & tensors.keys()
            else (
                " Weights of another framework are read by uh.from_state_dict, and shown by "
                "underhood inspect."
            )
        )
        raise BadInput(
            "it is no network that uh.save wrote, and attention weights need the tensors W_V, W_K "
            f"and W_Q (optional b_V, b_K, b_Q, decay) and no others; it holds {names}.{foreign}"
        )
    return LinearAttention(**tensors)


def contents_from(tensors: TensorDict, metadata: dict[str, str]) -> Contents:
    """Make the layer of a file of ours, checked as if somebody had edited the file."""
    version = str(metadata.get("version", "missing"))
    if version != str(FORMAT_VERSION):
        raise BadInput(
            f"its format version is {version[:20]}, and this underhood reads {FORMAT_VERSION}; "
            "update underhood or write the file again."
        )
    try:
        structure, roles, settings = (
            json.loads(metadata[name], parse_constant=refuse_constant)
            for name in ("layer", "roles", "settings")
        )
        layer = put_together(structure, "", tensors, 0)
        named = tuple((str(kind), str(label)) for kind, label in roles)
        settings = dict(settings)
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"its metadata is damaged ({type(error).__name__}).") from None
    if tensors:
        raise BadInput(f"it holds tensors that no field names: {', '.join(sorted(tensors)[:5])}.")
    if not isinstance(layer, Layer):
        raise BadInput(f"it holds {kind_of(layer)}, which is no layer.")
    if named and len(named) != layer.neurons:
        raise BadInput(f"it names {len(named)} roles for {layer.neurons} neurons.")
    return Contents(layer, named, settings)


def refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and infinity, which are no JSON."""
    raise BadInput(f"its metadata holds {name}, which is no number.")


# Any: JSON on the way out and in, and on the other side whatever a layer's field holds.
def take_apart(value: Any, path: str, tensors: TensorDict) -> Any:  # Any: see above
    """Return a value as JSON; its arrays are collected in `tensors` under their paths."""
    if eqx.is_array(value):
        tensors[path] = np.asarray(value, order="C")
        return "tensor"
    if isinstance(value, eqx.Module):
        names = [field.name for field in dataclasses.fields(value)]
        inner = {n: take_apart(getattr(value, n), child_path(path, n), tensors) for n in names}
        return {"kind": type(value).__name__, "fields": inner}
    if isinstance(value, tuple):
        return [take_apart(v, child_path(path, str(i)), tensors) for i, v in enumerate(value)]
    return {"value": value}


def put_together(
    spec: Any,  # Any: see above
    path: str,
    tensors: TensorDict,
    depth: int,
    *,
    checked: bool = True,
) -> Any:  # Any: see above
    """Undo `take_apart`; used tensors are removed from `tensors`.

    checked  run the checks of the layers
    """

    def inner(part: Any, name: str) -> Any:
        return put_together(part, child_path(path, name), tensors, depth + 1, checked=checked)

    if depth > DEEPEST:
        raise BadInput(f"its layers are nested more than {DEEPEST} deep.")
    if spec == "tensor":
        if path not in tensors:
            raise BadInput(f"the tensor {path} is missing.")
        return tensors.pop(path)
    if isinstance(spec, list):
        return tuple(inner(part, str(i)) for i, part in enumerate(spec))
    if "value" in spec:
        return spec["value"]
    if spec["kind"] not in KINDS:
        raise BadInput(f"it holds a layer of unknown kind {str(spec['kind'])[:40]!r}.")
    kind = KINDS[spec["kind"]]
    expected = {field.name for field in dataclasses.fields(kind)}
    fields = ADDED_LATER.get(spec["kind"], {}) | spec["fields"]
    if set(fields) != expected:
        raise BadInput(f"{spec['kind']} must have the fields {', '.join(sorted(expected))}.")
    # Fields as they are stored: ν, not the λ that the constructor takes.
    module: Any = object.__new__(kind)
    for name, part in fields.items():
        object.__setattr__(module, name, inner(part, name))
    if checked:
        module.__check_init__()
    return module


def child_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


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
