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
from typing import TypeGuard

import jax
import numpy as np

from underhood.bridges.entries import check_dimensions, check_names, check_shapes, in_memory_order
from underhood.bridges.weight_files import NamedArrays
from underhood.common.errors import BadInput
from underhood.layers import Affine, MambaBlock, Stack

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


def block_from_mixer(arrays: NamedArrays, about: str) -> MambaBlock:
    """Return the block with the weights of a mixer."""
    if any(name.startswith("mixer.") or ".mixer." in name for name in arrays):
        first = next(name for name in arrays if "mixer." in name)
        prefix = first[: first.index("mixer.") + len("mixer.")]
        raise BadInput(f"{about}: these are the names of a model; choose a mixer by {prefix=}.")
    if "norm.weight" in arrays or "dt_bias" in arrays:
        raise BadInput(f"{about}: norm.weight or dt_bias is Mamba-2's; only Mamba is read.")
    check_names(arrays, ENTRIES, ("conv1d.bias", *LINEAR_BIASES), about=about)
    biased = [name for name in LINEAR_BIASES if np.any(arrays.get(name, 0))]
    if biased:
        raise BadInput(
            f"{about}: {' and '.join(biased)} (use_bias=True) cannot be kept, since MambaBlock "
            "has no bias there; only zeros are read."
        )
    check_dimensions(arrays, ENTRIES, about=about)
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
    }
    if "conv1d.bias" in arrays:
        expected["conv1d.bias"] = (inner,)
    check_shapes(arrays, expected, about=about)
    W_in_u, W_in_z = np.split(arrays["in_proj.weight"], 2)
    W_x_dt, W_x_B, W_x_C = np.split(arrays["x_proj.weight"], [rank, rank + state])
    nothing = np.zeros(inner, arrays["conv1d.weight"].dtype)
    fields = {
        "W_in_u": W_in_u,
        "W_in_z": W_in_z,
        "conv": arrays["conv1d.weight"][:, 0].T,
        "b_conv": arrays.get("conv1d.bias", nothing),
        "W_x_dt": W_x_dt,
        "W_x_B": W_x_B,
        "W_x_C": W_x_C,
        "W_dt": arrays["dt_proj.weight"],
        "b_dt": arrays["dt_proj.bias"],
        "A_log": arrays["A_log"],
        "D": arrays["D"],
        "W_out": arrays["out_proj.weight"],
    }
    return MambaBlock(**{name: in_memory_order(array) for name, array in fields.items()})


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


def is_block_stack(layer: object) -> TypeGuard[Stack]:
    """Tell whether a layer is a stack of one MambaBlock."""
    return (
        isinstance(layer, Stack)
        and len(layer.layers) == 1
        and isinstance(layer.layers[0], MambaBlock)
    )


def block_of(stack: Stack) -> MambaBlock:
    """Return the block of a stack of one."""
    (block,) = stack.layers
    assert isinstance(block, MambaBlock)
    return block


def squared(stack: Stack) -> Stack:
    """Return a stack of one block that has as many outputs as inputs, padded with zeros."""
    block = block_of(stack)
    d_in, d_out, size = block.d_in, block.d_out, max(block.d_in, block.d_out)
    if d_in == d_out:
        return stack
    block = jax.tree.map(np.asarray, block)
    columns, rows = [(0, 0), (0, size - d_in)], [(0, size - d_out), (0, 0)]
    padded_fields = {
        "W_in_u": np.pad(block.W_in_u, columns),
        "W_in_z": np.pad(block.W_in_z, columns),
        "W_out": np.pad(block.W_out, rows),
    }
    names = [field.name for field in dataclasses.fields(block)]
    wider = MambaBlock(**{name: getattr(block, name) for name in names} | padded_fields)
    dtype = block.W_out.dtype
    embed, readout = stack.embed, stack.readout
    if d_in < size:
        first = Affine(np.eye(size, d_in, dtype=dtype))
        embed = (
            first
            if embed is None
            else Affine(first.W @ embed.W, None if embed.b is None else first.W @ embed.b)
        )
    if d_out < size:
        last = np.eye(d_out, size, dtype=dtype)
        readout = Affine(
            last if readout is None else readout.W @ last, readout.b if readout else None
        )
    return Stack(embed, [wider], readout, needs_x64=stack.needs_x64)
