"""`from_state_dict` and `to_state_dict`: weights of other frameworks, without those frameworks.

docs/bridges.md has the names of each kind. A new kind is a file with two functions, and an entry in
KINDS_OF_DICTS.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from underhood.bridges import flax_names, mamba2_names, mamba_names, torch_names
from underhood.bridges.entries import in_memory_order
from underhood.bridges.mamba_names import MixerLayer
from underhood.bridges.packing import GRU_PACKING, LSTM_PACKING, Packing
from underhood.bridges.weight_files import NamedArrays, read_weights
from underhood.common.errors import BadInput, check_name, kind_of
from underhood.layers import Affine, Layer, Mamba2, MambaBlock

# What a state dict can be read as. An Affine is no layer: it has no state.
Imported = Layer | Affine


@dataclass(frozen=True)
class KindOfDict:
    """How a kind of state dict is read and written; both get the kind's name for errors."""

    read: Callable[[NamedArrays, str], Imported]
    write: Callable[[Imported, str], NamedArrays]


# Any: functions of one of the three layers each.
def packed(read: Callable[..., Any], write: Callable[..., Any], packing: Packing) -> KindOfDict:
    """Return a kind whose functions also take a packing."""
    return KindOfDict(
        lambda arrays, about: read(arrays, packing, about),
        lambda layer, about: write(layer, packing, about),
    )


def write_linear(layer: Imported, about: str) -> NamedArrays:
    if not isinstance(layer, Affine):
        raise BadInput(f"{about} takes an Affine, not {kind_of(layer)}.")
    return torch_names.linear_to_torch(layer)


def mixer_writer(kind: type[MixerLayer], target: str) -> Callable[[Imported, str], NamedArrays]:
    """Return the function that writes a mixer, alone or in a Stack of one."""

    def write(layer: Imported, about: str) -> NamedArrays:
        if mamba_names.is_mixer_stack(layer) and isinstance(mamba_names.mixer_of(layer), kind):
            stack = mamba_names.squared(layer)
            return torch_names.with_ends(mixer_entries(mamba_names.mixer_of(stack), about), stack)
        if not isinstance(layer, kind):
            raise BadInput(
                f"{about} takes a {kind.__name__} or a Stack of one, not "
                f"{kind_of(layer)}; compile attention with target={target!r}."
            )
        return mixer_entries(layer, about)

    return write


def mixer_entries(layer: MixerLayer, about: str) -> NamedArrays:
    """Return the entries of a mixer, of the first Mamba or of Mamba-2."""
    if isinstance(layer, Mamba2):
        return mamba2_names.mamba2_to_mixer(layer, about)
    return mamba_names.block_to_mixer(layer, about)


def read_mixer(arrays: NamedArrays, about: str) -> Imported:
    read = mamba_names.block_from_mixer
    return torch_names.stack_from(arrays, lambda part, where: [read(part, where)], about)


def read_groups(arrays: NamedArrays, about: str, groups: int | None = None) -> Imported:
    read = mamba2_names.read_mamba2
    return torch_names.stack_from(arrays, lambda part, where: [read(part, where, groups)], about)


def refuse_rnn(_: object, about: str) -> Any:  # Any: it never returns
    raise BadInput(
        f"{about}: h' = tanh(W x + V h + b) has no gate, so no product of two signals, and no "
        "layer here is such a network; train an nn.LSTM or an nn.GRU."
    )


KINDS_OF_DICTS = {
    "torch.LSTM": packed(torch_names.rnn_from_torch, torch_names.rnn_to_torch, LSTM_PACKING),
    "torch.GRU": packed(torch_names.rnn_from_torch, torch_names.rnn_to_torch, GRU_PACKING),
    "torch.RNN": KindOfDict(refuse_rnn, refuse_rnn),
    "torch.Linear": KindOfDict(torch_names.linear_from_torch, write_linear),
    "hf.Mamba": KindOfDict(read_mixer, mixer_writer(MambaBlock, "mamba_block")),
    "hf.Mamba2": KindOfDict(read_groups, mixer_writer(Mamba2, "mamba2")),
    "flax.LSTM": packed(flax_names.cell_from_linen, flax_names.cell_to_linen, LSTM_PACKING),
    "flax.GRU": packed(flax_names.cell_from_linen, flax_names.cell_to_linen, GRU_PACKING),
    "nnx.LSTM": packed(flax_names.cell_from_nnx, flax_names.cell_to_nnx, LSTM_PACKING),
    "nnx.GRU": packed(flax_names.cell_from_nnx, flax_names.cell_to_nnx, GRU_PACKING),
}


def from_state_dict(
    # Any: a dict of arrays of NumPy, JAX or torch, or of dicts of them.
    source: Mapping[str, Any] | str | os.PathLike[str],
    kind: str,
    *,
    prefix: str = "",
    groups: int | None = None,
) -> Imported:
    """Return the layer with the weights of another framework, as NumPy arrays.

    source  a dict of arrays, or a safetensors file, or the index of several (*.index.json)
    kind    torch.LSTM, torch.GRU, torch.Linear, hf.Mamba, hf.Mamba2, flax.LSTM, flax.GRU, nnx.LSTM
            or nnx.GRU
    prefix  read only names that begin with it: "encoder.rnn." for example
    groups  of hf.Mamba2 alone: how many groups of heads share B and C, n_groups of its
            configuration, which its weights do not tell; None: one

    Several layers, an embedding or a readout become a Stack; torch.Linear becomes an Affine.
    Weights keep their precision; float16 and bfloat16 become float32. What does not fit is refused
    with BadInput, which lists names and shapes. Pickles are never read.
    """
    check_name("kind", kind, KINDS_OF_DICTS)
    if groups is None:
        return KINDS_OF_DICTS[kind].read(read_weights(source, prefix), kind)
    if kind != "hf.Mamba2":
        raise BadInput(f"{kind} has no groups of heads; leave groups={groups!r} out.")
    return read_groups(read_weights(source, prefix), kind, groups)


def to_state_dict(layer: Any, kind: str) -> dict[str, np.ndarray]:  # Any: a layer, or has .layer
    """Return the weights of a layer or a construction under another framework's names.

    kind  as for `from_state_dict`, which returns the same layer for the result

    Weights keep their precision. Layers of different widths in a Stack are padded to one width with
    neurons of zero weights, because torch has one width only.
    """
    check_name("kind", kind, KINDS_OF_DICTS)
    layer = getattr(layer, "layer", layer)
    if not isinstance(layer, Imported):
        raise BadInput(f"to_state_dict takes a layer or a construction, not {kind_of(layer)}.")
    written = KINDS_OF_DICTS[kind].write(layer, kind)
    # safetensors writes the bytes of an array as they lie in memory.
    return {name: in_memory_order(array) for name, array in written.items()}
