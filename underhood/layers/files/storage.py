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
from underhood.common.files import write_atomically
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
    for kind in (
        LinearAttention,
        MultiHead,
        GatedRNN,
        SideGatedRNN,
        DenseGatedRNN,
        LRU,
        LRUInOut,
        LRUInOutMLP,
        Mamba,
        MambaBlock,
        LSTM,
        GRU,
        Stack,
        Affine,
    )
}


@dataclass(frozen=True)
class Contents:
    """Everything that a file says."""

    layer: Layer
    roles: tuple[tuple[str, str], ...]
    settings: dict[str, Any]


def save(path: str | os.PathLike[str], what: Any) -> None:
    """Write a layer, or a construction with its roles and settings; whole or not at all."""
    layer = getattr(what, "layer", what)
    if not isinstance(layer, Layer) or type(layer).__name__ not in KINDS:
        raise BadInput(f"save takes a layer or a construction, not a {type(what).__name__}.")
    tensors: dict[str, np.ndarray] = {}
    structure = take_apart(layer, "", tensors)
    metadata = {
        "format": "underhood",
        "version": str(FORMAT_VERSION),
        "layer": json.dumps(structure),
        "roles": json.dumps([list(role) for role in getattr(what, "roles", ())]),
        "settings": json.dumps(getattr(what, "settings", {})),
    }
    write_atomically(Path(path), safetensors.numpy.save(tensors, metadata))


def load(path: str | os.PathLike[str]) -> Layer:
    """The layer in a file, its weights as NumPy arrays."""
    return read(path).layer


def read(path: str | os.PathLike[str]) -> Contents:
    """The layer in a file with its roles and settings; anything wrong with it is one line."""
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise BadInput(f"Cannot read {path}: {error.strerror or error}.") from None
    try:
        tensors = safetensors.numpy.load(raw)
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        metadata = header.get("__metadata__") or {}
    except Exception as error:
        # Whatever a damaged header makes the parser raise, the file is what is wrong.
        detail = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise BadInput(f"{path} is not a readable safetensors file: {detail}.") from None
    try:
        if metadata.get("format") != "underhood":
            return Contents(read_foreign(tensors), (), {})
        return read_own(tensors, metadata)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None


def read_foreign(tensors: dict[str, np.ndarray]) -> LinearAttention:
    """Attention weights written by somebody else."""
    needed, optional = {"W_V", "W_K", "W_Q"}, {"b_V", "b_K", "b_Q", "decay"}
    missing, extra = needed - tensors.keys(), tensors.keys() - needed - optional
    if missing or extra:
        found = ", ".join(sorted(tensors)[:8]) or "nothing"
        raise BadInput(
            "it was not written by underhood, and attention weights need the tensors W_V, W_K "
            f"and W_Q (optional b_V, b_K, b_Q, decay) and no others; it holds {found}."
        )
    return LinearAttention(**tensors)


def read_own(tensors: dict[str, np.ndarray], metadata: dict[str, str]) -> Contents:
    """A file of ours, checked as if somebody had edited it."""
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


def take_apart(value: Any, path: str, tensors: dict[str, np.ndarray]) -> Any:
    """A value as JSON, its arrays collected under their paths."""
    if eqx.is_array(value):
        tensors[path] = np.asarray(value, order="C")
        return "tensor"
    if isinstance(value, eqx.Module):
        inner = {
            field.name: take_apart(getattr(value, field.name), join(path, field.name), tensors)
            for field in dataclasses.fields(value)
        }
        return {"kind": type(value).__name__, "fields": inner}
    if isinstance(value, tuple):
        return [take_apart(one, join(path, str(i)), tensors) for i, one in enumerate(value)]
    return {"value": value}


def put_together(
    spec: Any, path: str, tensors: dict[str, np.ndarray], depth: int, *, checked: bool = True
) -> Any:
    """The inverse of `take_apart`; uses up the tensors."""

    def inner(one: Any, name: str) -> Any:
        return put_together(one, join(path, name), tensors, depth + 1, checked=checked)

    if depth > DEEPEST:
        raise BadInput(f"its layers are nested more than {DEEPEST} deep.")
    if spec == "tensor":
        if path not in tensors:
            raise BadInput(f"the tensor {path} is missing.")
        return tensors.pop(path)
    if isinstance(spec, list):
        return tuple(inner(one, str(i)) for i, one in enumerate(spec))
    if "value" in spec:
        return spec["value"]
    if spec["kind"] not in KINDS:
        raise BadInput(f"it holds a layer of unknown kind {str(spec['kind'])[:40]!r}.")
    kind = KINDS[spec["kind"]]
    expected = {field.name for field in dataclasses.fields(kind)}
    if set(spec["fields"]) != expected:
        raise BadInput(f"{spec['kind']} must have the fields {', '.join(sorted(expected))}.")
    fields = {name: inner(one, name) for name, one in spec["fields"].items()}
    return restore(kind, fields, checked=checked)


def restore(kind: type, fields: dict[str, Any], *, checked: bool) -> Any:
    """A module from its fields as they are stored (ν, not λ), with all of its checks."""
    module: Any = object.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(module, name, value)
    for ancestor in reversed(kind.__mro__) if checked else ():
        if "__check_init__" in vars(ancestor):
            vars(ancestor)["__check_init__"](module)
    return module


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
