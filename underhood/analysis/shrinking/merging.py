"""Gate outputs that combine into fewer (Appendix C.2).

Gate outputs that reach the outputs along one direction u, D_j = c_j u, act together through one
kernel, Σ_j c_j sym(m_j x_jᵀ). A symmetric kernel with a positive and b negative eigenvalues is a
sum of max(a, b) products, often fewer than it was made of: the kernel of the paper's three rows is
one product. Merging changes a trained network's function a little; `polish` recovers the loss.
"""

from dataclasses import dataclass

import numpy as np

from underhood.analysis.arguments import check_numbers
from underhood.analysis.forms.norms import TIME, relative_change
from underhood.analysis.forms.quadratic import quadratic_form
from underhood.analysis.reading.influences import sample_states
from underhood.common.arrays import in_float64
from underhood.common.errors import BadInput, with_article
from underhood.common.linear_algebra import group_by_line, line_coordinates, symmetric_part
from underhood.layers import GatedRNN
from underhood.training.second_order.gates import eigen_gates, stack_gates


@dataclass(frozen=True)
class Group:
    """Gate outputs that share a direction, their common kernel, and how many replace them."""

    gates: tuple[int, ...]
    direction: np.ndarray
    kernel: np.ndarray
    products: int


@dataclass(frozen=True)
class Merged:
    """A network with fewer gate outputs; `change` is relative to the function's size."""

    model: GatedRNN
    groups: tuple[Group, ...]
    gates_before: int
    change: float

    def __str__(self) -> str:
        counts = ((len(group.gates), group.products) for group in self.groups)
        merged = ", ".join(f"{before} → {after}" for before, after in counts if after < before)
        return (
            f"{self.gates_before} → {self.model.gate_width} gate outputs "
            f"(merged: {merged or 'none'}); the function changed by {self.change:.2g}"
        )


def merge(
    model: GatedRNN, *, tolerance: float = 1e-2, angle: float = 0.05, time: int = TIME
) -> Merged:
    """Combine gate outputs that reach the outputs along one direction.

    tolerance  smaller eigenvalues are dropped, as a share of the kernel's largest entry; neurons
               are scaled to size 1 on normal tokens first, so this is a share of the function
    angle      largest distance of a readout column of length 1 from the line of its group
    time       sequence length at which neurons and the change are measured
    """
    if not isinstance(model, GatedRNN):
        kind = type(model).__name__
        raise BadInput(
            f"merge takes a GatedRNN, whose gate outputs combine, not {with_article(kind)}."
        )
    check_numbers("merge", tolerance=tolerance, angle=angle, time=time)
    network = in_float64(model)
    scale = np.sqrt(np.mean(sample_states(network, time)[1] ** 2, axis=0))
    scale = np.where(scale > 0, scale, 1.0)
    norms = np.linalg.norm(network.D, axis=0)
    read = np.flatnonzero(norms > 0)
    groups, parts = [], []
    for places in group_by_line(network.D.T[read], angle):
        gates = read[places]
        # The direction is that of the strongest gate output.
        strongest = gates[np.argmax(norms[gates])]
        direction = network.D[:, strongest]
        weight = line_coordinates(network.D.T[np.append(strongest, gates)])[1:]
        half = np.einsum("j,ja,jb->ab", weight, network.W_out_m[gates], network.W_out_x[gates])
        kernel = symmetric_part(half) * np.outer(scale, scale)
        _, rows_m, rows_x = eigen_gates(kernel[None], tolerance)
        products = min(len(rows_m), len(gates))
        groups.append(Group(tuple(gates.tolist()), direction, kernel, products))
        if products < len(gates):
            D = direction[:, None].repeat(products, axis=1)
            parts.append((D, rows_m / scale, rows_x / scale))
        else:
            parts.append((network.D[:, gates], network.W_out_m[gates], network.W_out_x[gates]))
    D, m, x = stack_gates(parts, network.d_out, network.neurons)
    inner = {name: getattr(network, name) for name in ("W_in_m", "W_in_x", "decay")}
    merged = GatedRNN(**inner, W_out_m=m, W_out_x=x, D=D)
    change = relative_change(quadratic_form(network), quadratic_form(merged), time)
    return Merged(merged, tuple(groups), network.gate_width, change)
