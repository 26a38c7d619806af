"""The smallest network with the same function, by linear algebra.

A gated RNN is a table of coefficients T_ab over the moments of each pair of its decays
(`moments.py`), and nothing else matters. So

    1. parts T_ab without influence on the function go: products of the current token with itself
       that cancel among query neurons, memory that meets memory for nothing;
    2. the neurons of one decay are exchanged for a basis of what is read of that moment: as many
       as the rank of its tables, their own where those span it, otherwise products found in the
       space (`products.py`);
    3. the kernels over the new neurons are split into gate outputs: where memory meets the current
       token, one for each dimension of the space of matrices [outputs, query neurons].

No step knows about attention; on a network that computes one head of it, the result has the size of
the minimal construction. Several heads may keep more gate outputs than they need.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from underhood.analysis.arguments import check_gated, check_share, check_time
from underhood.analysis.forms.norms import TIME, between, size
from underhood.analysis.forms.quadratic import (
    QuadraticForm,
    equal_decays,
    quadratic_form,
    symmetric,
    symmetric_products,
)
from underhood.analysis.reading.neuron_roles import roles
from underhood.analysis.shrinking.gates import eigen_gates
from underhood.analysis.shrinking.products import Pair, gate_basis, pick, rank_one_basis
from underhood.analysis.shrinking.pruning import select
from underhood.analysis.shrinking.side_reduction import reduce_side
from underhood.common.errors import BadInput
from underhood.common.float64 import in_float64
from underhood.common.threads import one_thread
from underhood.constructions import Role
from underhood.layers import GatedRNN, SideGatedRNN

TOLERANCE = 1e-8
# Of neurons less spread than this, better ones are looked for.
WELL_SPREAD = 0.05


@dataclass(frozen=True)
class Reduced:
    """`change` is the size of the difference over the size of the function, exact."""

    model: Any
    neurons_before: int
    gates_before: int
    change: float
    neurons: tuple[Role, ...]

    def __str__(self) -> str:
        return (
            f"{self.neurons_before} → {self.model.neurons} neurons, "
            f"{self.gates_before} → {self.model.gate_width} gate outputs; "
            f"the function changed by {self.change:.2g}"
        )


@one_thread
def reduce(model: Any, *, tolerance: float = TOLERANCE, time: int = TIME, seed: int = 0) -> Reduced:
    """A network as small as linear algebra makes it, within `tolerance` of the function.

    A trained network has no exact dependences: polish it first, or give a tolerance above its
    error. Where the smaller network would differ by more, the model is returned as it was.
    """
    check_gated(model, "reduce")
    check_share(tolerance, "reduce")
    if tolerance == 0:
        raise BadInput(
            "reduce: tolerance is 0; give a share that rounding can meet, such as 1e-10."
        )
    check_time(time, "reduce")
    own = in_float64(model)
    form = quadratic_form(own)
    whole = size(form, time)
    # Products that cancel leave rounding, which is no function.
    if whole <= 1e-14 * size(without_signs(own, form), time):
        nothing = select(own, np.zeros(own.neurons, bool), np.zeros(own.gate_width, bool))
        return Reduced(nothing, own.neurons, own.gate_width, 0.0, ())
    rng = np.random.default_rng(seed)
    smaller: Any
    if isinstance(own, SideGatedRNN):
        smaller = reduce_side(own, rank_tolerance(tolerance))
    else:
        smaller = reduce_gated(own, form, whole, tolerance, time, rng)
    change = 0.0 if whole == 0 else size(form - quadratic_form(smaller), time) / whole
    grew = smaller.neurons > own.neurons or smaller.gate_width > own.gate_width
    if change > tolerance or (grew and smaller.neurons >= own.neurons):
        smaller, change = own, 0.0
    return Reduced(smaller, own.neurons, own.gate_width, change, roles(smaller))


def without_signs(own: Any, form: QuadraticForm) -> QuadraticForm:
    """The form with nothing that cancels: the size of what is added up."""
    kernels = np.abs(form.kernels)
    if isinstance(own, GatedRNN):
        W_m, W_x, D = np.abs(own.W_out_m), np.abs(own.W_out_x), np.abs(own.D)
        kernels = symmetric(W_m.T @ (D[:, :, None] * W_x))
    return replace(form, reads=np.abs(form.reads), kernels=kernels)


def reduce_gated(
    own: Any,
    form: QuadraticForm,
    whole: float,
    tolerance: float,
    time: int,
    rng: np.random.Generator,
) -> GatedRNN:
    decays, places = equal_decays(form.decay)
    members = [places == place for place in range(len(decays))]
    tables = {}
    for a, first in enumerate(members):
        for b in range(a, len(decays)):
            if size(between(form, first, members[b]), time) > 0.1 * tolerance * whole:
                kernels = form.kernels[:, first][:, :, members[b]]
                tables[a, b] = form.reads[first].T @ kernels @ form.reads[members[b]]
    bases = [
        neuron_basis(own, member, read_space(tables, place, tolerance), tolerance, rng)
        for place, member in enumerate(members)
    ]
    reads = [symmetric_products(*basis) for basis in bases]
    between_groups = {
        (a, b): np.linalg.pinv(reads[a].T) @ table @ np.linalg.pinv(reads[b])
        for (a, b), table in tables.items()
    }
    D, W_m, W_x = split_kernels(
        between_groups, [len(one) for one in reads], own.d_out, tolerance, rng
    )
    if D.shape[1] > own.gate_width:
        # The network's own gate outputs, reading the part of each neuron that the new ones hold.
        D = own.D
        W_m, W_x = (
            np.hstack(
                [
                    W[:, member] @ form.reads[member] @ np.linalg.pinv(read)
                    for member, read in zip(members, reads, strict=True)
                ]
            )
            for W in (own.W_out_m, own.W_out_x)
        )
    return GatedRNN(
        W_in_m=np.vstack([m for m, _ in bases]),
        W_in_x=np.vstack([x for _, x in bases]),
        decay=np.repeat(decays, [len(one) for one in reads]),
        W_out_m=W_m,
        W_out_x=W_x,
        D=D,
    )


def read_space(
    tables: dict[tuple[int, int], np.ndarray], place: int, tolerance: float
) -> np.ndarray:
    """A basis [rank, entries] of what is read of one moment."""
    seen = [
        table.swapaxes(1, 2).reshape(-1, table.shape[1 + side])
        if side == 0
        else table.reshape(-1, table.shape[2])
        for pair, table in tables.items()
        for side in (0, 1)
        if pair[side] == place
    ]
    if not seen:
        return np.zeros((0, 0))
    # Each table counts with its own scale: a weak one is read as well as a strong one.
    stacked = np.vstack([one / np.linalg.norm(one) for one in seen])
    _, values, right = np.linalg.svd(stacked, full_matrices=False)
    return right[values > rank_tolerance(tolerance) * values[0]]


def rank_tolerance(tolerance: float) -> float:
    return max(10 * tolerance, 1e-9)


def neuron_basis(
    own: Any,
    member: np.ndarray,
    space: np.ndarray,
    tolerance: float,
    rng: np.random.Generator,
) -> Pair:
    """Input gates whose products span a space of reads: the network's own where they do."""
    W_m, W_x = own.W_in_m[member], own.W_in_x[member]
    if len(space) == 0:
        return W_m[:0], W_x[:0]
    reads = symmetric_products(W_m, W_x)
    inside = reads - (reads @ space.T) @ space
    sizes = np.linalg.norm(reads, axis=1)
    good = np.linalg.norm(inside, axis=1) < 1e-9 * np.where(sizes > 0, sizes, 1.0)
    good &= sizes > 0
    chosen = pick(reads[good] @ space.T, len(space)) if good.any() else None
    candidates = [] if chosen is None else [of_size_one(W_m[good][chosen], W_x[good][chosen])]
    # Neurons that nearly depend on each other need large kernels that cancel.
    if not candidates or spread(candidates[0]) < WELL_SPREAD:
        found = gate_basis(space, W_m.shape[1], rank_tolerance(tolerance), rng)
        candidates += [] if found is None else [of_size_one(*found)]
    if candidates:
        return max(candidates, key=spread)
    # No products span what is read: keep neurons that span all that is written.
    independent = pick_all(reads)
    return of_size_one(W_m[independent], W_x[independent])


def spread(pair: Pair) -> float:
    """The smallest singular value of reads of size one: 1 for an orthonormal basis."""
    return float(np.linalg.svd(symmetric_products(*pair), compute_uv=False)[-1])


def of_size_one(W_m: np.ndarray, W_x: np.ndarray) -> Pair:
    """The same neurons scaled, so that their kernels compare."""
    scale = np.sqrt(np.linalg.norm(symmetric_products(W_m, W_x), axis=1))[:, None]
    return W_m / scale, W_x / scale


def pick_all(reads: np.ndarray) -> np.ndarray:
    """Rows that span the row space."""
    values = np.linalg.svd(reads, compute_uv=False)
    rank = int(np.sum(values > 1e-10 * np.max(values, initial=0.0)))
    for count in range(rank, 0, -1):
        chosen = pick(reads, count)
        if chosen is not None:
            return chosen
    return np.zeros(0, int)


def split_kernels(
    kernels: dict[tuple[int, int], np.ndarray],
    widths: list[int],
    d_out: int,
    tolerance: float,
    rng: np.random.Generator,
) -> tuple[np.ndarray, ...]:
    """D, W_out_m, W_out_x for kernels between groups of neurons."""
    starts = np.concatenate([[0], np.cumsum(widths)])
    n = int(starts[-1])
    rest = np.zeros((d_out, n, n))
    parts: list[tuple[np.ndarray, ...]] = []
    for (a, b), kernel in kernels.items():
        first, second = (slice(starts[one], starts[one + 1]) for one in (a, b))
        split = None if a == b else slices(kernel, tolerance, rng)
        if split is None:
            rest[:, first, second] += kernel
            if a != b:
                rest[:, second, first] += kernel.swapaxes(1, 2)
            continue
        D, read_a, read_b = split
        m, x = np.zeros((D.shape[1], n)), np.zeros((D.shape[1], n))
        # K_ab and its transpose both count in hᵀKh.
        m[:, first], x[:, second] = 2 * read_a, read_b
        parts.append((D, m, x))
    if np.any(rest):
        parts.append(eigen_gates((rest + rest.swapaxes(1, 2)) / 2))
    if not parts:
        return np.zeros((d_out, 0)), np.zeros((0, n)), np.zeros((0, n))
    return (
        np.hstack([one[0] for one in parts]),
        np.vstack([one[1] for one in parts]),
        np.vstack([one[2] for one in parts]),
    )


def slices(
    kernel: np.ndarray, tolerance: float, rng: np.random.Generator
) -> tuple[np.ndarray, ...] | None:
    """kernel [o, a, b] = Σ_j D[o, j] read_a[j, a] read_b[j, b], j over the larger of a and b."""
    d_out, width_a, width_b = kernel.shape
    if width_a < width_b:
        found = slices(kernel.swapaxes(1, 2), tolerance, rng)
        return None if found is None else (found[0], found[2], found[1])
    # One matrix [outputs, b] for every neuron of a.
    flat = kernel.swapaxes(0, 1).reshape(width_a, d_out * width_b)
    values = np.linalg.svd(flat, compute_uv=False)
    if len(values) == 0 or values[0] == 0:
        return np.zeros((d_out, 0)), np.zeros((0, width_a)), np.zeros((0, width_b))
    rank = int(np.sum(values > rank_tolerance(tolerance) * values[0]))
    space = np.linalg.svd(flat, full_matrices=False)[2][:rank]
    found = rank_one_basis(space, d_out, rank_tolerance(tolerance), rng)
    if found is None:
        return None
    u, x = found
    products = np.einsum("jo,jb->job", u, x).reshape(len(u), -1)
    read_a = flat @ np.linalg.pinv(products)
    return u.T, read_a.T, x
