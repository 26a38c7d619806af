"""State dicts of torch.nn.LSTM, torch.nn.GRU and torch.nn.Linear, alone or as a stack.

weight_ih_l0 [gates·hidden, d_in]     bias_ih_l0 [gates·hidden]     of the first layer, then _l1 …
weight_hh_l0 [gates·hidden, hidden]   bias_hh_l0 [gates·hidden]
weight [d_out, d_in], bias [d_out]    of a Linear

A stack has embed.weight, embed.bias, rnn.weight_ih_l0 …, readout.weight, readout.bias. If it has
neither an embedding nor a readout, its names are those of the nn.LSTM itself. torch gives all
layers of an nn.LSTM one width. Layers of different widths are padded with neurons of zero weights,
which stay zero.
"""

import re
from collections.abc import Callable, Sequence

import numpy as np

from underhood.bridges.entries import check_dimensions, check_names, check_shapes, in_memory_order
from underhood.bridges.packing import PackedCell, Packing, pack, padded, unpack
from underhood.bridges.weight_files import NamedArrays
from underhood.common.errors import BadInput, kind_of, with_article
from underhood.layers import GRU, LSTM, Affine, Layer, Stack

ENDS = ("embed", "readout")
GATES = {1: "torch.RNN", 3: "torch.GRU", 4: "torch.LSTM"}


def rnn_from_torch(arrays: NamedArrays, packing: Packing, about: str) -> Layer:
    """Return the layer, or a Stack where there are several or an embedding or a readout."""
    return stack_from(arrays, lambda part, where: cells_from_torch(part, packing, where), about)


def stack_from(
    arrays: NamedArrays, read: Callable[[NamedArrays, str], Sequence[Layer]], about: str
) -> Layer:
    """Return the layers that `read` returns; a Stack if there are several, or ends around them."""
    if not any(name.split(".")[0] in ("rnn", *ENDS) for name in arrays):
        layers = read(arrays, about)
        return layers[0] if len(layers) == 1 else Stack(None, layers, None)
    parts: dict[str, NamedArrays] = {"rnn": {}, "embed": {}, "readout": {}}
    for name, array in arrays.items():
        first, _, rest = name.partition(".")
        if first not in parts:
            raise BadInput(f"{about}: {name} not known; a stack has embed., rnn. and readout.")
        parts[first][rest] = array
    ends = [linear_from_torch(parts[end], f"{about} {end}") if parts[end] else None for end in ENDS]
    return Stack(ends[0], read(parts["rnn"], f"{about} rnn"), ends[1])


def cells_from_torch(arrays: NamedArrays, packing: Packing, about: str) -> list[LSTM | GRU]:
    """Return the layers, lowest first."""
    refuse_variants(arrays, about)
    numbers = [int(m[1]) for name in arrays if (m := re.fullmatch(r"weight_ih_l(\d{1,4})", name))]
    depth = max(numbers, default=0) + 1
    biased = any(name.startswith("bias_") for name in arrays)
    symbols = ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if biased else ()))
    names = [[f"{symbol}_l{number}" for symbol in symbols] for number in range(depth)]
    check_names(arrays, [name for layer in names for name in layer], about=about)
    hidden, d_in = sizes_of(arrays, packing, about)
    rows, layers = packing.count * hidden, []
    for number, named in enumerate(names):
        shapes = [(rows, hidden if number else d_in), (rows, hidden), (rows,), (rows,)]
        check_shapes(arrays, dict(zip(named, shapes, strict=False)), about=about)
        layers.append(unpack(PackedCell(*(arrays[name] for name in named)), packing))
    return layers


def refuse_variants(arrays: NamedArrays, about: str) -> None:
    """Refuse what torch can do and no layer here can."""
    if any(name.endswith("_reverse") for name in arrays):
        raise BadInput(
            f"{about}: it is bidirectional, so it reads the sequence backwards too and has no "
            "state that streams; use an RNN with bidirectional=False."
        )
    if any(name.startswith("weight_hr_") for name in arrays):
        raise BadInput(
            f"{about}: it has proj_size (weight_hr_l0), a matrix between h and the next step that "
            "our LSTM lacks; use an RNN with proj_size=0."
        )


def sizes_of(arrays: NamedArrays, packing: Packing, about: str) -> tuple[int, int]:
    """Return hidden and d_in of the first layer, also if a matrix is transposed."""
    check_dimensions(arrays, {"weight_ih_l0": 2, "weight_hh_l0": 2}, about=about)
    shape = arrays["weight_hh_l0"].shape
    hidden, gates = min(shape), max(shape) / min(shape)
    if gates != packing.count and gates in GATES:
        kind = GATES[int(gates)]
        advice = "has no gates" if kind == "torch.RNN" else f"is read by kind={kind!r}"
        raise BadInput(
            f"{about}: weight_hh_l0 has shape {shape}, which is that of a {kind}; it {advice}."
        )
    shape = arrays["weight_ih_l0"].shape
    rows = packing.count * hidden
    return hidden, shape[0] if shape[1] == rows != shape[0] else shape[1]


def linear_from_torch(arrays: NamedArrays, about: str) -> Affine:
    """Return W x + b."""
    check_names(arrays, ["weight"], ["bias"], about=about)
    check_dimensions(arrays, {"weight": 2}, about=about)
    W, b = arrays["weight"], arrays.get("bias")
    if b is not None and b.shape != W.shape[:1]:
        transposed = ", or weight is transposed" if b.shape == W.shape[1:] else ""
        raise BadInput(f"{about}: bias has shape {b.shape} but must be {W.shape[:1]}{transposed}.")
    return Affine(in_memory_order(W), b)


def linear_to_torch(affine: Affine) -> NamedArrays:
    arrays = {"weight": in_memory_order(np.asarray(affine.W))}
    return arrays if affine.b is None else arrays | {"bias": np.array(affine.b)}


def cells_to_torch(cells: Sequence[LSTM | GRU], packing: Packing, about: str) -> NamedArrays:
    """Return the entries of layers of one width."""
    arrays: NamedArrays = {}
    for number, layer in enumerate(cells):
        cell = pack(layer, packing, about=about)
        assert cell.b_x is not None and cell.b_h is not None
        arrays |= {f"weight_ih_l{number}": cell.W_x, f"weight_hh_l{number}": cell.W_h}
        arrays |= {f"bias_ih_l{number}": cell.b_x, f"bias_hh_l{number}": cell.b_h}
    return arrays


def rnn_to_torch(layer: Layer, packing: Packing, about: str) -> NamedArrays:
    """Return the entries of a layer, or of a stack of such layers."""
    kind, cells = packing.layer.__name__, []
    for cell in layer.layers if isinstance(layer, Stack) else (layer,):
        if not isinstance(cell, packing.layer):
            inside = "a Stack with " if isinstance(layer, Stack) else ""
            raise BadInput(
                f"{about} takes {with_article(kind)} or a Stack of them, "
                f"not {inside}{kind_of(cell)}."
            )
        cells.append(cell)
    if not isinstance(layer, Stack):
        return cells_to_torch(cells, packing, about)
    hidden, d_in = max(cell.neurons for cell in cells), cells[0].d_in
    widths = {cell.neurons for cell in cells}
    if cells[-1].neurons < hidden and layer.readout is None:
        raise BadInput(
            f"{about} gives all layers one width, and this stack has {sorted(widths)}; give it a "
            "readout."
        )
    if len(widths) > 1:
        sizes = [d_in] + [hidden] * (len(cells) - 1)
        cells = [padded(cell, hidden, n) for cell, n in zip(cells, sizes, strict=True)]
    arrays = with_ends(cells_to_torch(cells, packing, about), layer)
    if layer.readout is not None:
        W = arrays["readout.weight"]
        arrays["readout.weight"] = np.pad(W, [(0, 0), (0, hidden - W.shape[1])])
    return arrays


def with_ends(arrays: NamedArrays, stack: Stack) -> NamedArrays:
    """Return the entries of a stack, given those of its layers."""
    if stack.embed is None and stack.readout is None:
        return arrays
    arrays = {f"rnn.{name}": array for name, array in arrays.items()}
    for end in ENDS:
        affine = getattr(stack, end)
        if affine is not None:
            arrays |= {f"{end}.{n}": a for n, a in linear_to_torch(affine).items()}
    return arrays
