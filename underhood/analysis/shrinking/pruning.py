"""Remove neurons and gate outputs that the function does not need.

They are ranked by influence (`influence.py`). As many of the least are taken away as leave the
function within `tolerance`: the size of the difference over the size of the function, exact on
normal tokens (`norms.py`).
"""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import numpy as np

from underhood.analysis.arguments import check_gated, check_share, check_time
from underhood.analysis.forms.norms import TIME, size
from underhood.analysis.forms.quadratic import quadratic_form
from underhood.analysis.reading.influences import influence
from underhood.analysis.reading.neuron_roles import roles
from underhood.common.float64 import in_float64
from underhood.common.threads import one_thread
from underhood.constructions import Role
from underhood.layers import SideGatedRNN

TOLERANCE = 2e-3


@dataclass(frozen=True)
class Pruned:
    """`kept_neurons` and `kept_gates` are places in the original; `change` is what was lost."""

    model: Any
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
def prune(model: Any, *, tolerance: float = TOLERANCE, time: int = TIME) -> Pruned:
    """The smallest network, by rank of influence, within `tolerance` of a gated RNN's function."""
    check_gated(model, "prune")
    check_share(tolerance, "prune")
    check_time(time, "prune")
    # λ from ν in float64, as `select` has it: a decay rounded in float32 is another function.
    model = in_float64(model)
    found = influence(model, time)
    neurons = model.neurons
    ranked = found.neurons if found.gates is None else np.concatenate([found.neurons, found.gates])
    # Equal influences, the zeros above all, keep their order.
    order = np.argsort(ranked, kind="stable")
    whole_form = quadratic_form(model)
    whole = size(whole_form, time)
    # What has no influence at all goes for nothing; only rounding would tell it apart.
    idle = int(np.sum(ranked == 0))

    def without(count: int) -> tuple[Any, np.ndarray, np.ndarray]:
        stays = np.ones(len(ranked), bool)
        stays[order[:count]] = False
        kept = stays[:neurons]
        gates = kept if found.gates is None else stays[neurons:]
        return select(model, kept, gates), np.flatnonzero(kept), np.flatnonzero(gates)

    def change(count: int) -> float:
        if whole == 0 or count <= idle:
            return 0.0
        return size(whole_form - quadratic_form(without(count)[0]), time) / whole

    low, high = idle, len(ranked)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if change(middle) <= tolerance else (low, middle - 1)
    smaller, kept_neurons, kept_gates = without(low)
    return Pruned(
        smaller,
        kept_neurons,
        kept_gates,
        neurons - len(kept_neurons),
        model.gate_width - len(kept_gates),
        change(low),
        roles(smaller),
    )


def select(model: Any, neurons: np.ndarray, gates: np.ndarray) -> Any:
    """The network of some neurons and gate outputs, in float64."""
    model = in_float64(model)
    inner = {"W_in_m": model.W_in_m[neurons], "W_in_x": model.W_in_x[neurons]}
    if isinstance(model, SideGatedRNN):
        outer = {"W_side": model.W_side[neurons], "D": model.D[:, neurons]}
    else:
        outer = {
            "W_out_m": model.W_out_m[gates][:, neurons],
            "W_out_x": model.W_out_x[gates][:, neurons],
            "D": model.D[:, gates],
        }
    smaller = type(model)(**inner, decay=model.decay[neurons], **outer)
    # The decay is stored as ν; passing through λ would cost its last digits.
    return eqx.tree_at(lambda one: one.nu, smaller, model.nu[neurons])
