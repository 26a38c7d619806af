"""Parameters of Flax's LSTM and GRU cells, in linen and in nnx.

A kernel is [in, out], the transpose of ours. What multiplies x is named i…, what multiplies h h….

flax.LSTM  linen LSTMCell and OptimizedLSTMCell: ii, if, ig, io (kernel), hi, hf, hg, ho (kernel,
           bias); nnx LSTMCell writes if_ for if
flax.GRU   linen GRUCell: ir, iz, in (kernel, bias), hr, hz (kernel), hn (kernel, bias)
nnx.LSTM   nnx OptimizedLSTMCell: dense_i (kernel), dense_h (kernel, bias), all gates packed
nnx.GRU    nnx GRUCell: dense_i (kernel, bias), dense_h (kernel); it has no c_h

Nested dicts are read as they are; names of a flat dict are joined by a dot. A cell has one layer.
"""

import numpy as np

from underhood.bridges.entries import (
    Shape,
    check_dimensions,
    check_names,
    check_shapes,
    in_memory_order,
)
from underhood.bridges.packing import PackedCell, Packing, pack, unpack
from underhood.bridges.weight_files import NamedArrays
from underhood.common.errors import BadInput, kind_of
from underhood.layers import GRU, LSTM, Layer

# Flax's letters in the order in which the gates are packed.
LETTERS = {LSTM: "ifgo", GRU: "rzn"}


def without_root(arrays: NamedArrays) -> NamedArrays:
    """Return the arrays without the name `params` that linen puts before all others."""
    rooted = all(name.startswith("params.") for name in arrays)
    return {name.removeprefix("params."): a for name, a in arrays.items()} if rooted else arrays


def biased_names(packing: Packing) -> list[str]:
    """Return the names of linen's biases: of the LSTM those of h, of the GRU those of x and hn."""
    letters = LETTERS[packing.layer]
    if packing.layer is LSTM:
        return [f"h{letter}.bias" for letter in letters]
    return [*(f"i{letter}.bias" for letter in letters), "hn.bias"]


def cell_from_linen(arrays: NamedArrays, packing: Packing, about: str) -> Layer:
    """Return the layer with the parameters of a cell that names each gate."""
    arrays = {name.replace("if_.", "if."): a for name, a in without_root(arrays).items()}
    if any(name.startswith(("dense_i.", "dense_h.")) for name in arrays):
        other = about.replace("flax", "nnx")
        raise BadInput(f"{about}: dense_i and dense_h are packed gates; use kind={other!r}.")
    letters = LETTERS[packing.layer]
    kernels = [f"{side}{letter}.kernel" for side in "ih" for letter in letters]
    biases = biased_names(packing)
    check_names(arrays, kernels + biases, about=about)
    check_dimensions(arrays, dict.fromkeys(kernels, 2), about=about)
    hidden = arrays[f"h{letters[0]}.kernel"].shape[0]
    shape = arrays[f"i{letters[0]}.kernel"].shape
    d_in = shape[1] if shape[0] == hidden != shape[1] else shape[0]
    sizes = {"i": (d_in, hidden), "h": (hidden, hidden)}
    expected: dict[str, Shape] = {name: sizes[name[0]] for name in kernels}
    expected |= dict.fromkeys(biases, (hidden,))
    check_shapes(arrays, expected, about=about)
    W_x, W_h = (
        np.concatenate([arrays[f"{side}{letter}.kernel"].T for letter in letters]) for side in "ih"
    )
    nothing = np.zeros(hidden, W_x.dtype)
    b_x, b_h = (
        np.concatenate([arrays.get(f"{side}{letter}.bias", nothing) for letter in letters])
        for side in "ih"
    )
    return unpack(PackedCell(W_x, W_h, b_x, b_h), packing)


def cell_from_nnx(arrays: NamedArrays, packing: Packing, about: str) -> Layer:
    """Return the layer with the parameters of a cell that packs its gates."""
    side = "h" if packing.layer is LSTM else "i"
    bias = f"dense_{side}.bias"
    if any(name.startswith(("ii.", "ir.")) for name in arrays):
        other = about.replace("nnx", "flax")
        raise BadInput(f"{about}: each gate has its own kernel; use kind={other!r}.")
    check_names(arrays, ["dense_i.kernel", "dense_h.kernel", bias], about=about)
    check_dimensions(arrays, {"dense_i.kernel": 2, "dense_h.kernel": 2}, about=about)
    hidden = min(arrays["dense_h.kernel"].shape)
    rows, shape = packing.count * hidden, arrays["dense_i.kernel"].shape
    d_in = shape[1] if shape[0] == rows != shape[1] else shape[0]
    expected = {"dense_i.kernel": (d_in, rows), "dense_h.kernel": (hidden, rows), bias: (rows,)}
    check_shapes(arrays, expected, about=about)
    cell = PackedCell(arrays["dense_i.kernel"].T, arrays["dense_h.kernel"].T, arrays[bias])
    return unpack(cell, packing)


def packed_cell(layer: Layer, packing: Packing, about: str) -> PackedCell:
    """Return the weights of one layer, or refuse another kind."""
    if not isinstance(layer, packing.layer):
        raise BadInput(
            f"{about} takes one {packing.layer.__name__}, not {kind_of(layer)}; of a Stack "
            "give the layers one by one."
        )
    return pack(layer, packing, about=about)


def cell_to_linen(layer: Layer, packing: Packing, about: str) -> NamedArrays:
    """Return the parameters of a cell that names each gate, under flat names."""
    cell, letters = packed_cell(layer, packing, about), LETTERS[packing.layer]
    assert cell.b_x is not None and cell.b_h is not None
    arrays: NamedArrays = {}
    biases = biased_names(packing)
    rows = zip(
        letters,
        *(np.split(part, len(letters)) for part in (cell.W_x, cell.W_h, cell.b_x, cell.b_h)),
        strict=True,
    )
    for letter, W_x, W_h, b_x, b_h in rows:
        arrays[f"i{letter}.kernel"], arrays[f"h{letter}.kernel"] = W_x.T, W_h.T
        if packing.layer is LSTM:
            arrays[f"h{letter}.bias"] = b_x + b_h
        else:
            arrays[f"i{letter}.bias"] = b_x
            if f"h{letter}.bias" in biases:
                arrays[f"h{letter}.bias"] = b_h
    return {name: in_memory_order(array) for name, array in arrays.items()}


def cell_to_nnx(layer: Layer, packing: Packing, about: str) -> NamedArrays:
    """Return the parameters of a cell that packs its gates, under flat names."""
    cell = packed_cell(layer, packing, about)
    assert cell.b_x is not None and cell.b_h is not None
    if np.any(cell.b_h):
        raise BadInput(f"{about} has no bias c_h, and this GRU has one that is not zero.")
    side = "h" if packing.layer is LSTM else "i"
    arrays = {"dense_i.kernel": cell.W_x.T, "dense_h.kernel": cell.W_h.T}
    arrays[f"dense_{side}.bias"] = cell.b_x
    return {name: in_memory_order(array) for name, array in arrays.items()}
