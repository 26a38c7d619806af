"""LSTM and GRU cells as other frameworks pack them: all gates in one matrix, two biases.

LSTM  input, forget, candidate, output   our g, f, c, o
GRU   reset, update, candidate           our r, z, h; their update gate is 1 − z, so the weights of
                                         z change sign, which rounds nothing

W_x [gates·hidden, d_in] and W_h [gates·hidden, hidden] multiply x and h; b_x and b_h belong to
them. The two biases of a gate add up, but for the GRU's candidate: there the second is our c_h,
which is reset with V_h h.
"""

from dataclasses import dataclass

import jax
import numpy as np

from underhood.bridges.entries import in_memory_order
from underhood.common.errors import BadInput
from underhood.layers import GRU, LSTM

# σ(40) is 1 to the last bit in float64.
ALWAYS_OPEN = 40.0


@dataclass(frozen=True)
class PackedCell:
    """The weights of one cell."""

    W_x: np.ndarray
    W_h: np.ndarray
    b_x: np.ndarray | None = None
    b_h: np.ndarray | None = None


@dataclass(frozen=True)
class Packing:
    """Which of our layers a packed cell is, with its gates in order; {gate: sign}."""

    layer: type[LSTM] | type[GRU]
    gates: dict[str, int]

    @property
    def count(self) -> int:
        return len(self.gates)


LSTM_PACKING = Packing(LSTM, {"g": 1, "f": 1, "c": 1, "o": 1})
GRU_PACKING = Packing(GRU, {"r": 1, "z": -1, "h": 1})


def unpack(cell: PackedCell, packing: Packing) -> LSTM | GRU:
    """Return the layer with these weights."""
    hidden = cell.W_h.shape[1]
    nothing = np.zeros(len(cell.W_x), cell.W_x.dtype)
    b_x = nothing if cell.b_x is None else cell.b_x
    b_h = nothing if cell.b_h is None else cell.b_h
    fields: dict[str, np.ndarray] = {}
    for number, (gate, sign) in enumerate(packing.gates.items()):
        rows = slice(number * hidden, (number + 1) * hidden)
        fields[f"U_{gate}"] = in_memory_order(sign * cell.W_x[rows])
        fields[f"V_{gate}"] = in_memory_order(sign * cell.W_h[rows])
        separate = packing.layer is GRU and gate == "h"
        fields[f"b_{gate}"] = sign * (b_x[rows] if separate else b_x[rows] + b_h[rows])
        if separate:
            fields["c_h"] = in_memory_order(b_h[rows])
    return GRU(**fields, reset="after") if packing.layer is GRU else LSTM(**fields)


def pack(layer: LSTM | GRU, packing: Packing, *, about: str) -> PackedCell:
    """Return the weights of a layer; its biases stand in b_x, but for c_h."""
    if isinstance(layer, GRU):
        check_reset(layer, about)
    arrays = jax.tree.map(np.asarray, layer)
    gates = packing.gates.items()
    W_x, W_h, b_x = (
        np.concatenate([sign * getattr(arrays, f"{letter}_{gate}") for gate, sign in gates])
        for letter in "UVb"
    )
    b_h = np.zeros_like(b_x)
    if isinstance(layer, GRU) and layer.c_h is not None:
        b_h[-layer.neurons :] = arrays.c_h
    return PackedCell(W_x, W_h, b_x, b_h)


def check_reset(layer: GRU, about: str) -> None:
    """Refuse a GRU that resets before the product, unless it never resets."""
    never = np.all(np.asarray(layer.b_r) >= ALWAYS_OPEN) and not (
        np.any(layer.U_r) or np.any(layer.V_r)
    )
    if layer.reset == "before" and not never:
        raise BadInput(
            f"{about} resets after the product, r⊙(V_h h), and this GRU before it; make it with "
            "reset='after', uh.compile(..., 'gru', reset='after') for example."
        )


def padded(layer: LSTM | GRU, hidden: int, d_in: int) -> LSTM | GRU:
    """Return the same layer with neurons of zero weights, which stay zero, and zero inputs."""
    shapes = {"U": (hidden, d_in), "V": (hidden, hidden), "b": (hidden,), "c": (hidden,)}

    def pad(name: str) -> np.ndarray:
        array, shape = np.asarray(getattr(layer, name)), shapes[name[0]]
        return np.pad(array, [(0, n - given) for n, given in zip(shape, array.shape, strict=True)])

    gates = "rhz" if isinstance(layer, GRU) else "fcgo"
    fields = {f"{letter}_{gate}": pad(f"{letter}_{gate}") for gate in gates for letter in "UVb"}
    if not isinstance(layer, GRU):
        return LSTM(**fields)
    # A layer that never resets must not begin to.
    fields["b_r"][layer.neurons :] = 2 * ALWAYS_OPEN
    return GRU(**fields, c_h=None if layer.c_h is None else pad("c_h"), reset=layer.reset)
