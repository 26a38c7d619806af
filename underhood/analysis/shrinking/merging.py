"""Gate outputs that combine into fewer (Appendix C.2).

Gate outputs that reach the outputs along one direction u, D_j = c_j u, act together through one
kernel, Σ_j c_j sym(m_j x_jᵀ). A symmetric kernel with a positive and b negative eigenvalues is a
sum of max(a, b) products, often fewer than gave rise to it: the paper's three rows have a kernel of
one product. Merging changes a trained network's function a little; `polish` recovers the loss.
"""

from dataclasses import dataclass

import numpy as np

from underhood.analysis.arguments import check_share, check_time
from underhood.analysis.forms.norms import TIME, size
from underhood.analysis.forms.quadratic import quadratic_form
from underhood.analysis.reading.influences import states_of
from underhood.analysis.shrinking.gates import eigen_gates
from underhood.analysis.shrinking.side_reduction import alike, along
from underhood.common.errors import BadInput
from underhood.common.float64 import in_float64
from underhood.layers import GatedRNN


@dataclass(frozen=True)
class Group:
    """Gate outputs that share a direction, their common kernel, and how many replace them."""

    gates: tuple[int, ...]
    direction: np.ndarray
    kernel: np.ndarray
    products: int


@dataclass(frozen=True)
class Merged:
    """`change` is the size of the difference over the size of the function."""

    model: GatedRNN
    groups: tuple[Group, ...]
    gates_before: int
    change: float

    def __str__(self) -> str:
        merged = [one for one in self.groups if one.products < len(one.gates)]
        told = ", ".join(f"{len(one.gates)} → {one.products}" for one in merged) or "none"
        return (
            f"{self.gates_before} → {self.model.gate_width} gate outputs (merged: {told}); "
            f"the function changed by {self.change:.2g}"
        )


def merge(
    model: GatedRNN, *, tolerance: float = 1e-2, angle: float = 0.05, time: int = TIME
) -> Merged:
    """Combine gate outputs whose readout columns lie within `angle` of one line.

    tolerance: eigenvalues below this share of a kernel's largest entry are dropped. Neurons are
    scaled to their size on normal tokens first, so that a share of a kernel is one of the function.
    """
    if not isinstance(model, GatedRNN):
        kind = type(model).__name__
        raise BadInput(f"merge takes a GatedRNN, whose gate outputs combine, not a {kind}.")
    check_share(tolerance, "merge")
    check_share(angle, "merge", "angle")
    check_time(time, "merge")
    own = in_float64(model)
    scale = np.sqrt(np.mean(states_of(own, time)[1] ** 2, axis=0))
    scale = np.where(scale > 0, scale, 1.0)
    norms = np.linalg.norm(own.D, axis=0)
    read = np.flatnonzero(norms > 0)
    groups, D, m, x = [], [], [], []
    for places in alike(own.D.T[read], angle) if len(read) else []:
        gates = read[places]
        # The direction that the strongest of them has.
        strongest = gates[np.argmax(norms[gates])]
        direction = own.D[:, strongest]
        weight = along(own.D.T[np.concatenate([[strongest], gates])])[1:]
        half = np.einsum("j,ja,jb->ab", weight, own.W_out_m[gates], own.W_out_x[gates])
        kernel = (half + half.T) / 2 * np.outer(scale, scale)
        _, rows_m, rows_x = eigen_gates(kernel[None], tolerance)
        if len(rows_m) >= len(gates):
            groups.append(Group(tuple(gates.tolist()), direction, kernel, len(gates)))
            D += list(own.D.T[gates])
            m += list(own.W_out_m[gates])
            x += list(own.W_out_x[gates])
        else:
            groups.append(Group(tuple(gates.tolist()), direction, kernel, len(rows_m)))
            D += [direction] * len(rows_m)
            m += list(rows_m / scale)
            x += list(rows_x / scale)
    merged = GatedRNN(
        W_in_m=own.W_in_m,
        W_in_x=own.W_in_x,
        decay=own.decay,
        W_out_m=np.reshape(m, (len(m), own.neurons)),
        W_out_x=np.reshape(x, (len(x), own.neurons)),
        D=np.reshape(D, (len(D), own.d_out)).T,
    )
    form = quadratic_form(own)
    whole = size(form, time)
    change = 0.0 if whole == 0 else size(form - quadratic_form(merged), time) / whole
    return Merged(merged, tuple(groups), own.gate_width, change)
