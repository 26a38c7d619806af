"""Functions that are linear in decayed moments and in the current token, as tables.

    y_o(t) = Σ_λ Σ_ec T_λ[o, e, c] A_e(t) z_c(t),    A(t) = Σ_{s≤t} λ^{t−s} v(z_s)

with v(z) as in `quadratic.py`. Attention is such a function, and so is every side-gated RNN. So is
a gated RNN if every product of its output gate has a factor that reads only the current token:
neurons with λ = 0 that hold z_c·1. Networks compiled from attention are built that way. Their
tables have d_out·d(d+1)/2·d numbers, as many as the network. The kernels over all pairs of neurons
have d times as many.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import singledispatch

import numpy as np
from scipy.sparse import csr_array

from underhood.analysis.forms.quadratic import (
    ExactLayer,
    QuadraticForm,
    attention_table,
    entry_degrees,
    finite_weights,
    input_reads,
    quadratic_form,
)
from underhood.common.linear_algebra import thin, upper
from underhood.layers import GatedRNN, LinearAttention, MultiHead, SideGatedRNN, parameter_count

# Tables may have this many times the numbers of the network; a network of many decays has more.
MOST_NUMBERS, FEW_NUMBERS = 16, 1_000_000

# A decay λ, gate outputs, and what each of them reads of the moment of λ [gates, entries].
MomentReads = tuple[float, np.ndarray, np.ndarray | csr_array]


@dataclass(frozen=True)
class TablePart:
    """The moment of one decay: which outputs read it, and their table [outputs, entries, d + 1]."""

    decay: float
    outputs: np.ndarray
    table: np.ndarray


@dataclass(frozen=True)
class TableForm:
    """A sum of parts with different decays, in their order."""

    d_in: int
    d_out: int
    parts: tuple[TablePart, ...]

    @property
    def decay(self) -> np.ndarray:
        """The decays of the parts."""
        return np.array([part.decay for part in self.parts])

    def __sub__(self, second: "TableForm") -> "TableForm":
        """Return the difference of the two functions."""
        minus = [replace(part, table=-part.table) for part in second.parts]
        return collected(self.d_in, self.d_out, [*self.parts, *minus])

    def of_output(self, output: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the decays [parts] and tables [parts, entries, d + 1] of one output."""
        rows = [
            (part.decay, part.table[place])
            for part in self.parts
            for place in np.flatnonzero(part.outputs == output)
        ]
        shape = (0, upper(self.d_in + 1)[0].size, self.d_in + 1)
        tables = np.array([table for _, table in rows]) if rows else np.zeros(shape)
        return np.array([decay for decay, _ in rows]), tables

    def at(self, decay: float, nearby: float) -> np.ndarray:
        """Return the table [d_out, entries, d + 1] of all decays within `nearby`."""
        total = np.zeros((self.d_out, upper(self.d_in + 1)[0].size, self.d_in + 1))
        for part in self.parts:
            if abs(part.decay - decay) <= nearby:
                total[part.outputs] += part.table
        return total

    def keep(self, chosen: Callable[[float], bool]) -> "TableForm":
        """Return the parts of some decays."""
        return replace(self, parts=tuple(part for part in self.parts if chosen(part.decay)))

    def by_degree(self) -> dict[int, "TableForm"]:
        """Return the parts of degree 0, 1, 2, 3 and 4 in all tokens together; degree 4 is zero."""
        moment, token = entry_degrees(self.d_in)[:, None], np.arange(self.d_in + 1) < self.d_in
        return {
            degree: collected(
                self.d_in,
                self.d_out,
                [
                    replace(part, table=np.where(moment + token == degree, part.table, 0.0))
                    for part in self.parts
                ],
            )
            for degree in range(5)
        }


def collected(d_in: int, d_out: int, parts: Iterable[TablePart]) -> TableForm:
    """Return the sum of parts: one part per decay, without outputs whose table is zero."""
    groups: dict[float, list[TablePart]] = {}
    for part in parts:
        groups.setdefault(part.decay, []).append(part)
    kept = []
    for decay in sorted(groups):
        members = groups[decay]
        outputs, table = members[0].outputs, members[0].table
        if len(members) > 1:
            outputs = np.unique(np.concatenate([part.outputs for part in members]))
            table = np.zeros((len(outputs), *table.shape[1:]))
            for part in members:
                table[np.searchsorted(outputs, part.outputs)] += part.table
        used = np.any(table, axis=(1, 2))
        if np.any(used):
            all_used = bool(np.all(used))
            table = table if all_used else table[used]
            kept.append(TablePart(decay, outputs if all_used else outputs[used], table))
    return TableForm(d_in, d_out, tuple(kept))


def form_of(layer: ExactLayer) -> TableForm | QuadraticForm:
    """Return the exact function of a layer: its tables, or its quadratic form if it has none."""
    tables = table_form(layer)
    return quadratic_form(layer) if tables is None else tables


@singledispatch
def table_form(layer: ExactLayer) -> TableForm | None:
    """Return the function of a layer as tables; None if products of two memories may be in it."""
    return None


@table_form.register
def _(layer: GatedRNN) -> TableForm | None:
    W_m, W_x, D, decay = finite_weights(layer, "W_out_m", "W_out_x", "D", "decay")
    reads = input_reads(layer)
    linear = upper(layer.d_in + 1)[1] == layer.d_in
    now = (decay == 0) & ~np.any(reads[:, ~linear], axis=1)
    live = np.any(D, axis=0) & np.any(W_m, axis=1) & np.any(W_x, axis=1)
    # One factor of every product reads the current token alone, the other reads any neurons.
    x_now, m_now = (~np.any(W[:, ~now], axis=1) for W in (W_x, W_m))
    if np.any(live & ~x_now & ~m_now):
        return None
    queries = np.where(x_now[:, None], W_x[:, now], W_m[:, now])[live] @ reads[now][:, linear]
    carrier = np.where(x_now[:, None], W_m, W_x)[live]

    def written() -> Iterator[MomentReads]:
        for value in np.unique(decay).tolist():
            group = np.flatnonzero(decay == value)
            gates = np.flatnonzero(np.any(carrier[:, group], axis=1))
            yield value, gates, thin(carrier[np.ix_(gates, group)]) @ thin(reads[group])

    return from_products(layer, written(), D[:, live], queries)


@table_form.register
def _(layer: SideGatedRNN) -> TableForm | None:
    W_side, D, decay = finite_weights(layer, "W_side", "D", "decay")
    reads = input_reads(layer)
    groups = ((value, np.flatnonzero(decay == value)) for value in np.unique(decay).tolist())
    written = ((value, group, reads[group]) for value, group in groups)
    return from_products(layer, written, D, np.pad(W_side, ((0, 0), (0, 1))))


@table_form.register
def _(layer: LinearAttention) -> TableForm:
    finite_weights(layer, "W_V", "W_K", "W_Q")
    return collected(layer.d_in, layer.d_out, head_parts(layer))


@table_form.register
def _(layer: MultiHead) -> TableForm:
    W_O = None if layer.W_O is None else finite_weights(layer, "W_O")[0]
    parts, row = [], 0
    for head in layer.heads:
        finite_weights(head, "W_V", "W_K", "W_Q")
        for part in head_parts(head):
            if W_O is None:
                parts.append(replace(part, outputs=row + part.outputs))
            else:
                mixed = np.tensordot(W_O[:, row + part.outputs], part.table, axes=1)
                parts.append(TablePart(part.decay, np.arange(layer.d_out), mixed))
        row += head.d_out
    return collected(layer.d_in, layer.d_out, parts)


def head_parts(head: LinearAttention) -> Iterator[TablePart]:
    """Yield the rows of a head, those of one decay together."""
    V, K, Q = head.augmented()
    decays = np.asarray(head.decays, float)
    for value in np.unique(decays).tolist():
        outputs = np.flatnonzero(decays == value)
        yield TablePart(value, outputs, attention_table(V[outputs], K.T @ Q))


def from_products(
    layer: GatedRNN | SideGatedRNN,
    written: Iterable[MomentReads],
    D: np.ndarray,
    queries: np.ndarray,
) -> TableForm | None:
    """Return T_λ[o] = Σ_j D_oj written_j ⊗ query_j; None if there are too many decays for tables.

    queries  what each gate output reads of the current token [gates, d + 1]
    """
    entries, width = upper(layer.d_in + 1)[0].size, layer.d_in + 1
    most = max(FEW_NUMBERS, MOST_NUMBERS * parameter_count(layer)) // (entries * width)
    parts: list[TablePart] = []
    for decay, gates, rows in written:
        outputs = np.flatnonzero(np.any(D[:, gates], axis=1))
        most -= len(outputs)
        if most < 0:
            return None
        met = D[np.ix_(outputs, gates)].T[:, :, None] * queries[gates][:, None]
        flat = thin(rows).T @ met.reshape(len(gates), len(outputs) * width)
        table = np.ascontiguousarray(flat.reshape(entries, len(outputs), width).swapaxes(0, 1))
        parts.append(TablePart(decay, outputs, table))
    return collected(layer.d_in, layer.d_out, parts)
