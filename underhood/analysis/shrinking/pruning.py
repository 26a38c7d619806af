"""Remove neurons and gate outputs that the function does not need.

By influence (`influences.py`): the least influential are removed, as many as leave the function
within `tolerance`: the size of the difference over the size of the function, exact on normal tokens
(`norms.py`).

By zeros, as the paper does it (Section 4.1): "prune neurons with input or output weights that are
entirely zeros". A weight counts as zero if it is small beside the largest of its matrix.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Generic

import equinox as eqx
import numpy as np

from underhood.analysis.arguments import Network, check_gated
from underhood.analysis.forms.lag_tables import ResponseForm, response_form
from underhood.analysis.forms.norms import TIME, relative_change, size
from underhood.analysis.forms.tables import table_form
from underhood.analysis.reading.influences import influence
from underhood.analysis.reading.neuron_roles import roles
from underhood.common.arrays import in_float64
from underhood.common.threads import one_thread
from underhood.constructions import Role
from underhood.layers import SideGatedRNN


@dataclass(frozen=True)
class Pruned(Generic[Network]):
    """What stayed of a network; `change` is relative to the function's size."""

    model: Network
    kept_neurons: np.ndarray
    kept_gates: np.ndarray
    removed_neurons: int
    removed_gates: int
    change: float
    neurons: tuple[Role, ...]

    def __str__(self) -> str:
        kinds = [role.kind for role in self.neurons]
        counts = ", ".join(
            f"{kinds.count(kind)} {kind}" for kind in ("memory", "query", "other") if kind in kinds
        )
        return (
            f"removed {self.removed_neurons} of {self.removed_neurons + len(kinds)} neurons and "
            f"{self.removed_gates} of {self.removed_gates + len(self.kept_gates)} gate outputs; "
            f"left: {counts or 'nothing'}; the function changed by {self.change:.2g}"
        )


@one_thread
def prune(
    model: Network, *, tolerance: float = 2e-3, time: int = TIME, zero: float | None = None
) -> Pruned[Network]:
    """Remove neurons and gate outputs that hardly change the function.

    tolerance  largest allowed change of the function, relative, on N(0, I) tokens
    time       sequence length at which the change is measured
    zero       if given, remove what has zero weights instead: those below this share of the largest
               weight of their matrix. The tolerance then plays no part
    """
    check_gated(model, "prune", tolerance=tolerance, zero=zero or 0.0, time=time)
    # λ comes from ν in float64, as in `select`: a decay rounded in float32 is another function.
    model = in_float64(model)
    if zero is not None:
        kept = with_weights(model, zero)
        return pruned(model, *kept, change_from(model, time)(select(model, *kept)))
    ranked = np.concatenate(influence(model, time))
    # Equal influences, above all zeros, keep their order.
    order = np.argsort(ranked, kind="stable")
    change_to = change_from(model, time)
    # Parts without any influence always go. Measuring them would only find rounding.
    idle = int(np.sum(ranked == 0))

    def kept_without(count: int) -> tuple[np.ndarray, np.ndarray]:
        stays = np.ones(len(ranked), bool)
        stays[order[:count]] = False
        # The gate outputs of a side-gated RNN are its neurons: counted once, they stand last too.
        return stays[: model.neurons], stays[len(stays) - model.gate_width :]

    @cache
    def change(count: int) -> float:
        if count <= idle:
            return 0.0
        return change_to(select(model, *kept_without(count)))

    low, high = idle, len(ranked)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if change(middle) <= tolerance else (low, middle - 1)
    return pruned(model, *kept_without(low), change(low))


def change_from(model: Network, time: int) -> Callable[[Network], float]:
    """Return how much a part of the network differs from it, relative to its size."""
    tables = table_form(model)

    @cache
    def form() -> ResponseForm:
        return response_form(model, time)

    whole = size(form() if tables is None else tables, time)

    def change(part: Network) -> float:
        # A part of a network with tables has tables too, unless they are many for its size.
        part_tables = None if tables is None else table_form(part)
        if tables is None or part_tables is None:
            return relative_change(form(), response_form(part, time), time, whole)
        return relative_change(tables, part_tables, time, whole)

    return change


def pruned(
    model: Network, neurons: np.ndarray, gates: np.ndarray, change: float
) -> Pruned[Network]:
    """Return what stays of a network: some neurons and gate outputs."""
    smaller = select(model, neurons, gates)
    kept = np.flatnonzero(neurons), np.flatnonzero(gates)
    removed = int(np.sum(~neurons)), int(np.sum(~gates))
    return Pruned(smaller, *kept, *removed, change, roles(smaller))


def with_weights(model: Network, zero: float) -> tuple[np.ndarray, np.ndarray]:
    """Tell which neurons and gate outputs have weights that are not zero, before and after them.

    A product is zero if one of its factors is. What reads only removed neurons goes too, and so on
    until nothing more goes.
    """

    def present(name: str) -> np.ndarray:
        W = np.abs(np.asarray(getattr(model, name), float))
        largest = np.max(W, initial=0.0)
        return np.greater(W, zero * largest)

    read = present("D")
    m, x = (present(name) for name in ("W_in_m", "W_in_x"))
    neurons = np.any(m, axis=1) & np.any(x, axis=1)
    if isinstance(model, SideGatedRNN):
        neurons = neurons & np.any(present("W_side"), axis=1) & np.any(read, axis=0)
        return neurons, neurons
    out_m, out_x = present("W_out_m"), present("W_out_x")
    gates = np.any(read, axis=0)
    while True:
        reads = [np.any(W[:, neurons], axis=1) for W in (out_m, out_x)]
        after = np.logical_and.reduce([gates, *reads])
        before = neurons & np.any((out_m | out_x)[after], axis=0)
        if np.array_equal(before, neurons) and np.array_equal(after, gates):
            return neurons, gates
        neurons, gates = before, after


def select(model: Network, neurons: np.ndarray, gates: np.ndarray) -> Network:
    """Return the network of some neurons and gate outputs, in float64."""
    model = in_float64(model)
    inner = {name: getattr(model, name)[neurons] for name in ("W_in_m", "W_in_x", "decay")}
    if isinstance(model, SideGatedRNN):
        outer = {"W_side": model.W_side[neurons], "D": model.D[:, neurons]}
    else:
        outer = {name: getattr(model, name)[gates][:, neurons] for name in ("W_out_m", "W_out_x")}
        outer["D"] = model.D[:, gates]
    # The decay is stored as ν; passing through λ would cost its last digits.
    return eqx.tree_at(lambda m: m.nu, type(model)(**inner, **outer), model.nu[neurons])
