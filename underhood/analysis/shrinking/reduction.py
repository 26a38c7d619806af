"""The smallest network with the same function, by linear algebra.

A gated RNN is a table of coefficients T_ab over the moments of each pair of its decays
(`polynomials.py`), and nothing else matters. So tables without influence are dropped, the neurons
of one decay are exchanged for a basis of what is read of that moment, and the kernels over the new
neurons are split into gate outputs. docs/inside.md says how many of each are left.

No step knows about attention. On a network that computes one head of it, the result has the size of
the minimal construction. Several heads may keep more gate outputs than they need.
"""

import itertools
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np
from numpy.random import Generator

from underhood.analysis.arguments import Network, check_gated
from underhood.analysis.forms.absolute import absolute_form
from underhood.analysis.forms.norms import TIME, between, relative_change, size
from underhood.analysis.forms.quadratic import (
    QuadraticForm,
    decay_groups,
    quadratic_form,
)
from underhood.analysis.forms.tables import TableForm, form_of
from underhood.analysis.reading.neuron_roles import roles
from underhood.analysis.shrinking.neuron_bases import neuron_basis
from underhood.analysis.shrinking.products import rank_one_basis
from underhood.analysis.shrinking.pruning import change_from, prune, select
from underhood.analysis.shrinking.side_reduction import reduce_side
from underhood.analysis.shrinking.table_reduction import LARGE_KERNELS, reduce_tables
from underhood.common.arrays import in_float64
from underhood.common.errors import BadInput
from underhood.common.linear_algebra import symmetric_part, symmetric_products as reads_of
from underhood.common.threads import one_thread
from underhood.constructions import Role
from underhood.layers import GatedRNN, SideGatedRNN
from underhood.training.second_order.gates import GateOutputs, eigen_gates, stack_gates

# With more decays nearly every neuron has one of its own. Then there is nothing to exchange, and
# the pairs of decays are too many to look at one by one: only parts without influence are removed.
MANY_DECAYS = 64

# One table [d_out, a, b] for each pair of groups of neurons.
Tables = dict[tuple[int, int], np.ndarray]


@dataclass(frozen=True)
class Reduced(Generic[Network]):
    """A smaller network; `change` is relative to the function's size."""

    model: Network
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
def reduce(
    model: Network, *, tolerance: float = 1e-8, time: int = TIME, seed: int = 0
) -> Reduced[Network]:
    """Make a network as small as linear algebra can.

    A trained network has no exact dependences: polish it first, or give a tolerance above its
    error. If the smaller network would differ by more, the model is returned as it was.

    tolerance  largest allowed change of the function, relative, on N(0, I) tokens
    time       sequence length at which the change is measured
    seed       of the random search for products
    """
    check_gated(model, "reduce", tolerance=tolerance, time=time)
    if tolerance == 0:
        raise BadInput(
            "reduce: tolerance is 0; give a share that rounding can meet, such as 1e-10."
        )
    network = in_float64(model)
    before = network.neurons, network.gate_width
    large = network.d_out * network.neurons**2 > LARGE_KERNELS
    form = form_of(network) if large else quadratic_form(network)
    whole = size(form, time)
    # Products that cancel leave rounding, which is no function.
    if whole <= 1e-14 * size(absolute_form(network), time):
        nothing = select(network, np.zeros(before[0], bool), np.zeros(before[1], bool))
        return Reduced(nothing, *before, 0.0, ())
    # Singular values below this share of the largest count as zero.
    accuracy = max(10 * tolerance, 1e-9)
    least = 0.1 * tolerance * whole
    smaller: Any = None
    if isinstance(network, SideGatedRNN):
        smaller = reduce_side(network, accuracy)
    elif isinstance(form, TableForm):
        smaller = reduce_tables(network, form, least, time, accuracy)
    elif len(decay_groups(form.decay)[0]) > MANY_DECAYS:
        smaller = prune(network, tolerance=0.1 * tolerance, time=time).model
    if smaller is None:
        form = form if isinstance(form, QuadraticForm) else quadratic_form(network)
        pairs = influential_tables(form, least, time)
        smaller = reduce_gated(network, form, pairs, accuracy, np.random.default_rng(seed))
    if isinstance(form, TableForm):
        change = change_from(network, time)(smaller)
    else:
        change = relative_change(form, quadratic_form(smaller), time, whole)
    # As many neurons and more gate outputs are no gain.
    if change > tolerance or (smaller.neurons, smaller.gate_width) > before:
        smaller, change = network, 0.0
    return Reduced(smaller, *before, change, roles(smaller))


def influential_tables(form: QuadraticForm, least: float, time: int) -> Tables:
    """Return T_ab, a ≤ b, for pairs of decays whose part of the function is larger than `least`."""
    groups = enumerate(decay_groups(form.decay)[1])
    return {
        (a, b): form.table(first, second)
        for (a, first), (b, second) in itertools.combinations_with_replacement(groups, 2)
        if size(between(form, first, second), time) > least
    }


def reduce_gated(
    model: GatedRNN, form: QuadraticForm, tables: Tables, accuracy: float, rng: Generator
) -> GatedRNN:
    """Return a gated RNN with these tables; ranks ignore singular values below `accuracy`."""
    decays, groups = decay_groups(form.decay)
    W_in_m, W_in_x = np.asarray(model.W_in_m), np.asarray(model.W_in_x)
    spaces = (read_space(tables, place, accuracy) for place in range(len(groups)))
    bases = [
        neuron_basis(W_in_m[group], W_in_x[group], space, accuracy, rng)
        for group, space in zip(groups, spaces, strict=True)
    ]
    reads = [reads_of(*basis) for basis in bases]
    kernels = {
        (a, b): np.linalg.pinv(reads[a].T) @ table @ np.linalg.pinv(reads[b])
        for (a, b), table in tables.items()
    }
    widths = [len(read) for read in reads]
    D, W_m, W_x = split_kernels(kernels, widths, model.d_out, accuracy, rng)
    if D.shape[1] > model.gate_width:
        # The old gate outputs, reading the part of each neuron that the new neurons hold.
        D, inverses = np.asarray(model.D), [np.linalg.pinv(read) for read in reads]
        held = list(zip(groups, inverses, strict=True))
        W_m, W_x = (
            np.hstack([W[:, group] @ form.reads[group] @ inverse for group, inverse in held])
            for W in (model.W_out_m, model.W_out_x)
        )
    W_in_m, W_in_x = (np.vstack(rows) for rows in zip(*bases, strict=True))
    decay = np.repeat(decays, widths)
    return GatedRNN(W_in_m=W_in_m, W_in_x=W_in_x, decay=decay, W_out_m=W_m, W_out_x=W_x, D=D)


def read_space(tables: Tables, place: int, accuracy: float) -> np.ndarray:
    """Return a basis [rank, entries] of what is read of one moment."""
    seen = [
        np.moveaxis(table, 1 + side, -1).reshape(-1, table.shape[1 + side])
        for pair, table in tables.items()
        for side in (0, 1)
        if pair[side] == place
    ]
    if not seen:
        return np.zeros((0, 0))
    # Every table is scaled to size 1: a weak one is read as well as a strong one.
    stacked = np.vstack([table / np.linalg.norm(table) for table in seen])
    _, values, right = np.linalg.svd(stacked, full_matrices=False)
    return right[values > accuracy * values[0]]


def split_kernels(
    kernels: Tables, widths: list[int], d_out: int, accuracy: float, rng: Generator
) -> GateOutputs:
    """Return D, W_out_m, W_out_x for kernels between groups of neurons."""
    starts = np.append(0, np.cumsum(widths))
    n = int(starts[-1])
    rest = np.zeros((d_out, n, n))
    parts: list[GateOutputs] = []
    for (a, b), kernel in kernels.items():
        first, second = (slice(starts[place], starts[place + 1]) for place in (a, b))
        split = None if a == b else split_kernel(kernel, accuracy, rng)
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
        parts.append(eigen_gates(symmetric_part(rest)))
    return stack_gates(parts, d_out, n)


def split_kernel(kernel: np.ndarray, accuracy: float, rng: Generator) -> GateOutputs | None:
    """Return D, a, b with kernel[o,i,k] = Σ_j D[o,j] a[j,i] b[j,k]; None if no products span it."""
    d_out, width_a, width_b = kernel.shape
    if width_a < width_b:
        split = split_kernel(kernel.swapaxes(1, 2), accuracy, rng)
        return None if split is None else (split[0], split[2], split[1])
    # One matrix [outputs, b] for every neuron of a.
    flat = kernel.swapaxes(0, 1).reshape(width_a, d_out * width_b)
    if not np.any(flat):
        return np.zeros((d_out, 0)), np.zeros((0, width_a)), np.zeros((0, width_b))
    _, values, right = np.linalg.svd(flat, full_matrices=False)
    basis = rank_one_basis(right[values > accuracy * values[0]], d_out, accuracy, rng)
    if basis is None:
        return None
    u, x = basis
    products = np.einsum("jo,jb->job", u, x).reshape(len(u), -1)
    return u.T, (flat @ np.linalg.pinv(products)).T, x
