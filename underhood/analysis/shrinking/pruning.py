"""Remove neurons and gate outputs that the function does not need.

They are ranked by influence (`influences.py`). The least influential are removed, as many as leave
the function within `tolerance`: the size of the difference over the size of the function, exact on
normal tokens (`norms.py`).
"""

from dataclasses import dataclass
from typing import Generic

import equinox as eqx
import numpy as np

from underhood.analysis.arguments import Network, check_gated
from underhood.analysis.forms.norms import TIME, relative_change, size
from underhood.analysis.forms.quadratic import quadratic_form
from underhood.analysis.reading.influences import influence
from underhood.analysis.reading.neuron_roles import roles
from underhood.common.float64 import in_float64
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
def prune(model: Network, *, tolerance: float = 2e-3, time: int = TIME) -> Pruned[Network]:
    """Remove neurons and gate outputs that hardly change the function.

    tolerance  largest allowed change of the function, relative, on N(0, I) tokens
    time       sequence length at which the change is measured
    """
    check_gated(model, "prune", tolerance=tolerance, time=time)
    # λ comes from ν in float64, as in `select`: a decay rounded in float32 is another function.
    model = in_float64(model)
    ranked = np.concatenate(influence(model, time))
    # Equal influences, above all zeros, keep their order.
    order = np.argsort(ranked, kind="stable")
    form = quadratic_form(model)
    whole = size(form, time)
    # Parts without any influence always go. Measuring them would only find rounding.
    idle = int(np.sum(ranked == 0))

    def kept_without(count: int) -> tuple[np.ndarray, np.ndarray]:
        stays = np.ones(len(ranked), bool)
        stays[order[:count]] = False
        # The gate outputs of a side-gated RNN are its neurons: counted once, they stand last too.
        return stays[: model.neurons], stays[len(stays) - model.gate_width :]

    def change(count: int) -> float:
        if count <= idle:
            return 0.0
        smaller = quadratic_form(select(model, *kept_without(count)))
        return relative_change(form, smaller, time, whole)

    low, high = idle, len(ranked)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if change(middle) <= tolerance else (low, middle - 1)
    neurons, gates = kept_without(low)
    smaller = select(model, neurons, gates)
    kept = np.flatnonzero(neurons), np.flatnonzero(gates)
    removed = int(np.sum(~neurons)), int(np.sum(~gates))
    return Pruned(smaller, *kept, *removed, change(low), roles(smaller))


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
