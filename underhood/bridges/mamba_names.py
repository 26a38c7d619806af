"""State dicts of the MambaMixer of transformers, as a MambaBlock.

in_proj.weight  [2·inner, d]              W_in_u, then W_in_z
conv1d.weight   [inner, 1, width]         conv, transposed; conv1d.bias is b_conv
x_proj.weight   [rank + 2·state, inner]   W_x_dt, W_x_B, W_x_C
dt_proj.weight  [inner, rank]             W_dt; dt_proj.bias is b_dt
A_log [inner, state], D [inner]           the same
out_proj.weight [d, inner]                W_out

A stack has embed.weight …, these names behind rnn., and readout.weight …, as in `torch_names.py`.
A mixer has as many outputs as inputs. A stack whose block has not is padded with zeros.
In the model the names stand behind backbone.layers.0.mixer. and so on: give that as `prefix`.
The mixer casts to float32 even in a float64 model; `mamba_mixers.py` says what and how to avoid it.
"""

import dataclasses
import math
from typing import TypeGuard

import jax
import numpy as np

from underhood.bridges.entries import check_dimensions, check_names, check_shapes, in_memory_order
from underhood.bridges.weight_files import NamedArrays
from underhood.common.errors import BadInput
from underhood.layers import Affine, Mamba2, MambaBlock, Stack

ENTRIES = {
    "in_proj.weight": 2,
    "conv1d.weight": 3,
    "x_proj.weight": 2,
    "dt_proj.weight": 2,
    "dt_proj.bias": 1,
    "A_log": 2,
    "D": 1,
    "out_proj.weight": 2,
}
# use_bias=True gives these two, and the block has none.
LINEAR_BIASES = ("in_proj.bias", "out_proj.bias")


def refuse_model_names(arrays: NamedArrays, about: str) -> None:
    """Refuse the names of a whole model, in which each layer has a mixer."""
    if any(name.startswith("mixer.") or ".mixer." in name for name in arrays):
        first = next(name for name in arrays if "mixer." in name)
        prefix = first[: first.index("mixer.") + len("mixer.")]
        raise BadInput(f"{about}: these are the names of a model; choose a mixer by {prefix=}.")


def check_entries(arrays: NamedArrays, entries: dict[str, int], kind: str, about: str) -> None:
    """Refuse other names, biases that a layer here has not unless they are zero, and other axes.

    entries  the number of axes of each array that must be there
    """
    check_names(arrays, entries, ("conv1d.bias", *LINEAR_BIASES), about=about)
    biased = [name for name in LINEAR_BIASES if np.any(arrays.get(name, 0))]
    if biased:
        raise BadInput(
            f"{about}: {' and '.join(biased)} (use_bias=True) cannot be kept, since {kind} "
            "has no bias there; only zeros are read."
        )
    check_dimensions(arrays, entries, about=about)


def block_from_mixer(arrays: NamedArrays, about: str) -> MambaBlock:
    """Return the block with the weights of a mixer."""
    refuse_model_names(arrays, about)
    if "norm.weight" in arrays or "dt_bias" in arrays:
        raise BadInput(f"{about}: norm.weight or dt_bias is Mamba-2's; use kind='hf.Mamba2'.")
    check_entries(arrays, ENTRIES, "MambaBlock", about)
    inner, state = arrays["A_log"].shape
    width, rank, d = (
        arrays["conv1d.weight"].shape[2],
        min(arrays["dt_proj.weight"].shape),
        min(arrays["out_proj.weight"].shape)
        if inner == max(arrays["out_proj.weight"].shape)
        else max(arrays["out_proj.weight"].shape),
    )
    expected = {
        "in_proj.weight": (2 * inner, d),
        "conv1d.weight": (inner, 1, width),
        "x_proj.weight": (rank + 2 * state, inner),
        "dt_proj.weight": (inner, rank),
        "dt_proj.bias": (inner,),
        "D": (inner,),
        "out_proj.weight": (d, inner),
        "conv1d.bias": (inner,),
    }
    check_shapes(arrays, expected, about=about)
    nothing = np.zeros(inner, arrays["conv1d.weight"].dtype)
    fields = block_fields(arrays, rank, state) | {"b_conv": arrays.get("conv1d.bias", nothing)}
    return MambaBlock(**{name: in_memory_order(array) for name, array in fields.items()})


def block_fields(arrays: NamedArrays, rank: int, state: int) -> NamedArrays:
    """Return the weights that a mixer surely has, under the names of Mamba's and Jamba's block."""
    W_in_u, W_in_z = np.split(arrays["in_proj.weight"], 2)
    W_x_dt, W_x_B, W_x_C = np.split(arrays["x_proj.weight"], [rank, rank + state])
    return {
        **{"W_in_u": W_in_u, "W_in_z": W_in_z, "conv": arrays["conv1d.weight"][:, 0].T},
        **{"W_x_dt": W_x_dt, "W_x_B": W_x_B, "W_x_C": W_x_C},
        **{"W_dt": arrays["dt_proj.weight"], "b_dt": arrays["dt_proj.bias"]},
        **{"A_log": arrays["A_log"], "D": arrays["D"], "W_out": arrays["out_proj.weight"]},
    }


def block_to_mixer(block: MambaBlock, about: str) -> NamedArrays:
    """Return the entries of a mixer with the weights of a block."""
    if block.d_in != block.d_out:
        raise BadInput(
            f"{about} has as many outputs as inputs, and this block has {block.d_in} inputs and "
            f"{block.d_out} outputs; add zero rows to W_out or zero columns to W_in_u and W_in_z."
        )
    parts = jax.tree.map(np.asarray, block)
    arrays = {
        "in_proj.weight": np.concatenate([parts.W_in_u, parts.W_in_z]),
        "conv1d.weight": parts.conv.T[:, None],
        "conv1d.bias": parts.b_conv,
        "x_proj.weight": np.concatenate([parts.W_x_dt, parts.W_x_B, parts.W_x_C]),
        "dt_proj.weight": parts.W_dt,
        "dt_proj.bias": parts.b_dt,
        "A_log": parts.A_log,
        "D": parts.D,
        "out_proj.weight": parts.W_out,
    }
    return {name: in_memory_order(array) for name, array in arrays.items()}


# The layers that are mixers of transformers, and their fields that read tokens.
MixerLayer = MambaBlock | Mamba2
READS_TOKENS: dict[type, tuple[str, ...]] = {
    MambaBlock: ("W_in_u", "W_in_z"),
    Mamba2: ("W_z", "W_x", "W_B", "W_C", "W_dt"),
}


def is_mixer_stack(layer: object) -> TypeGuard[Stack]:
    """Tell whether a layer is a stack of one MambaBlock or one Mamba2."""
    return (
        isinstance(layer, Stack)
        and len(layer.layers) == 1
        and isinstance(layer.layers[0], MixerLayer)
    )


def mixer_of(stack: Stack) -> MixerLayer:
    """Return the mixer of a stack of one."""
    (mixer,) = stack.layers
    assert isinstance(mixer, MixerLayer)
    return mixer


def with_channels(layer: Mamba2, d_v: int) -> Mamba2:
    """Return the same function with more channels per head, all zero.

    A norm's mean is then over more numbers, so eps and the norm's weight shrink as the mean does.
    """
    more, share = d_v - layer.d_v, layer.d_v / d_v
    if not more:
        return layer
    fields = {field.name: getattr(layer, field.name) for field in dataclasses.fields(layer)}
    for name, axis in {"W_z": 1, "W_x": 1, "conv_x": 2, "b_x": 1, "norm": 1, "W_out": 2}.items():
        if fields[name] is not None:
            array = np.asarray(fields[name])
            fields[name] = np.pad(array, [(0, more * (i == axis)) for i in range(array.ndim)])
    if layer.norm is not None:
        fields["norm"] = fields["norm"] * np.asarray(math.sqrt(share), fields["norm"].dtype)
    return Mamba2(**fields | {"eps": layer.eps * share})


def squared(stack: Stack) -> Stack:
    """Return a stack of one mixer that has as many outputs as inputs, padded with zeros.

    The channels of a Mamba2Mixer are a whole multiple of its inputs, so it is padded to that.
    """
    mixer = mixer_of(stack)
    d_in, d_out, size = mixer.d_in, mixer.d_out, max(mixer.d_in, mixer.d_out)
    if isinstance(mixer, Mamba2):
        mixer = with_channels(mixer, max(mixer.d_v, -(-size // mixer.heads)))
        inner = mixer.heads * mixer.d_v
        size = next(more for more in range(size, inner + 1) if inner % more == 0)
    if d_in == d_out == size and mixer is mixer_of(stack):
        return stack
    fields = {field.name: getattr(mixer, field.name) for field in dataclasses.fields(mixer)}
    for name in READS_TOKENS[type(mixer)]:
        array = np.asarray(fields[name])
        fields[name] = np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, size - d_in)])
    W_out = np.asarray(fields["W_out"])
    fields["W_out"] = np.pad(W_out, [(0, size - d_out)] + [(0, 0)] * (W_out.ndim - 1))
    wider = type(mixer)(**fields)
    embed, readout = stack.embed, stack.readout
    if d_in < size:
        first = Affine(np.eye(size, d_in, dtype=W_out.dtype))
        embed = (
            first
            if embed is None
            else Affine(first.W @ embed.W, None if embed.b is None else first.W @ embed.b)
        )
    if d_out < size:
        last = np.eye(d_out, size, dtype=W_out.dtype)
        readout = Affine(
            last if readout is None else readout.W @ last, readout.b if readout else None
        )
    return Stack(embed, [wider], readout, needs_x64=stack.needs_x64)
