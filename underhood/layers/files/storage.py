"""Layers on disk: one safetensors file, what is inside as JSON in its metadata, no code.

A tensor's name is its path, `layers.0.U_f`. The metadata holds

format    "underhood"      version  FORMAT_VERSION
layer     {"kind": "GatedRNN", "fields": {"W_in_m": "tensor", …}}, nested where layers are
roles     [["memory", "kv[0,1]"], …], one per neuron, or []
settings  how the network was made

A file without this metadata whose tensors are W_V, W_K and W_Q (and b_V, b_K, b_Q, decay if
wanted) is read as a LinearAttention.
"""

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np
import safetensors.numpy

from underhood.common.errors import BadInput
from underhood.common.files import Json, write_atomically
from underhood.common.tensors import UnreadableTensors, read_tensors
from underhood.layers.attention import LinearAttention, MultiHead
from underhood.layers.base.layer import Layer
from underhood.layers.gated_rnn import DenseGatedRNN, GatedRNN
from underhood.layers.gru import GRU
from underhood.layers.lru import LRU, LRUInOut, LRUInOutMLP
from underhood.layers.lstm import LSTM
from underhood.layers.mamba import Mamba
from underhood.layers.mamba_block import MambaBlock
from underhood.layers.side_gated_rnn import SideGatedRNN
from underhood.layers.stack import Affine, Stack

FORMAT_VERSION = 1
DEEPEST = 16

KINDS: dict[str, type] = {
    kind.__name__: kind
    for kinds in (
        (LinearAttention, MultiHead, GatedRNN, SideGatedRNN, DenseGatedRNN, LRU, LRUInOut),
        (LRUInOutMLP, Mamba, MambaBlock, LSTM, GRU, Stack, Affine),
    )
    for kind in kinds
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
        raise BadInput(f"save takes a layer or a construction, not a {type(what).__name__}.")
    tensors: TensorDict = {}
    parts = {
        "layer": take_apart(layer, "", tensors),
        "roles": [list(role) for role in getattr(what, "roles", ())],
        "settings": getattr(what, "settings", {}),
    }
    metadata = {"format": "underhood", "version": str(FORMAT_VERSION)}
    metadata |= {name: json.dumps(part) for name, part in parts.items()}
    write_atomically(Path(path), safetensors.numpy.save(tensors, metadata))


def load(path: str | os.PathLike[str]) -> Layer:
    """Return the layer in a file, its weights as NumPy arrays."""
    return read(path).layer


def read(path: str | os.PathLike[str]) -> Contents:
    """Return the layer in a file with its roles and settings; refuse a bad file in one line."""
    try:
        tensors, metadata = read_tensors(Path(path))
        if metadata.get("format") == "underhood":
            return contents_from(tensors, metadata)
        return Contents(attention_in(tensors), (), {})
    except OSError as error:
        raise BadInput(f"Cannot read {path}: {error.strerror or error}.") from None
    except UnreadableTensors as error:
        raise BadInput(f"{path} is not a readable safetensors file: {error}.") from None
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None


def attention_in(tensors: TensorDict) -> LinearAttention:
    """Make attention of tensors that somebody else wrote."""
    needed, optional = {"W_V", "W_K", "W_Q"}, {"b_V", "b_K", "b_Q", "decay"}
    if needed - tensors.keys() or tensors.keys() - needed - optional:
        names = ", ".join(sorted(tensors)[:8]) or "nothing"
        raise BadInput(
            "it was not written by underhood, and attention weights need the tensors W_V, W_K "
            f"and W_Q (optional b_V, b_K, b_Q, decay) and no others; it holds {names}."
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
            json.loads(metadata[name]) for name in ("layer", "roles", "settings")
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
        raise BadInput(f"it holds a {type(layer).__name__}, which is no layer.")
    if named and len(named) != layer.neurons:
        raise BadInput(f"it names {len(named)} roles for {layer.neurons} neurons.")
    return Contents(layer, named, settings)


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
    if set(spec["fields"]) != expected:
        raise BadInput(f"{spec['kind']} must have the fields {', '.join(sorted(expected))}.")
    # Fields as they are stored: ν, not the λ that the constructor takes.
    module: Any = object.__new__(kind)
    for name, part in spec["fields"].items():
        object.__setattr__(module, name, inner(part, name))
    if checked:
        module.__check_init__()
    return module


def child_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
