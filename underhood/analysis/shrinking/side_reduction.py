"""Side-gated RNNs with fewer neurons.

A neuron of decay λ adds D_i (s_i·x)(q_i·S_λ) to the output, a product of three vectors. Neurons
combine where the sum of their products is a shorter sum of products; each rule below is such a sum.
The gate outputs are the neurons, so what is read cannot be given just any basis of products, unlike
in a gated RNN. Where no rule applies, networks stay larger than the minimal construction.
"""

from collections.abc import Callable

import numpy as np

from underhood.analysis.forms.quadratic import decay_groups
from underhood.analysis.shrinking.products import entry_weights, spanning_rows
from underhood.common.linear_algebra import (
    group_by_line,
    line_coordinates,
    symmetric_part,
    symmetric_products,
)
from underhood.layers import SideGatedRNN
from underhood.training.second_order.gates import eigen_gates

# W_in_m, W_in_x, W_side, Dᵀ: one row per neuron.
NeuronRows = tuple[np.ndarray, ...]
SIDE, OUT = 2, 3
# From neurons of one group, and their coordinates on the line of its keys, to as many or fewer.
NeuronRule = Callable[[NeuronRows, np.ndarray], NeuronRows]


def reduce_side(model: SideGatedRNN, tolerance: float) -> SideGatedRNN:
    """Combine neurons of equal decay until no rule applies."""
    weights = [np.asarray(W) for W in (model.W_in_m, model.W_in_x, model.W_side, model.D.T)]
    parts: list[NeuronRows] = []
    for decay, group in zip(*decay_groups(np.asarray(model.decay)), strict=True):
        neurons = live_neurons(tuple(W[group] for W in weights))
        before = len(neurons[0]) + 1
        while len(neurons[0]) < before:
            before = len(neurons[0])
            for rule in (combine_reads, combine_products, drop_dependent):
                neurons = live_neurons(rule(neurons, tolerance))
        parts.append((*neurons, np.full(len(neurons[0]), decay)))
    W_m, W_x, side, D, all_decays = (np.concatenate(rows) for rows in zip(*parts, strict=True))
    return SideGatedRNN(W_in_m=W_m, W_in_x=W_x, W_side=side, D=D.T, decay=all_decays)


def live_neurons(neurons: NeuronRows) -> NeuronRows:
    """Return the neurons without a vanishing factor, their four factors scaled to one size."""
    sizes = np.array([np.linalg.norm(rows, axis=1) for rows in neurons])
    product = np.prod(sizes, axis=0)
    kept = product > 1e-15 * np.max(product, initial=0.0)
    common = product[kept] ** 0.25
    return tuple(
        rows[kept] * (common / size[kept])[:, None]
        for rows, size in zip(neurons, sizes, strict=True)
    )


def combine_groups(
    neurons: NeuronRows, keys: np.ndarray, tolerance: float, rule: NeuronRule
) -> NeuronRows:
    """Apply a rule to every group of neurons whose keys lie on one line."""
    parts = [
        rule(tuple(rows[group] for rows in neurons), line_coordinates(keys[group]))
        for group in group_by_line(keys, tolerance)
    ]
    return tuple(np.vstack(rows) for rows in zip(*parts, strict=True)) if parts else neurons


def combine_reads(neurons: NeuronRows, tolerance: float) -> NeuronRows:
    """Combine neurons of equal s and D: Σ q_i is one matrix, max(+, − eigenvalues) products."""

    def rule(members: NeuronRows, weight: np.ndarray) -> NeuronRows:
        W_m, W_x, s, D = members
        reads = symmetric_part(np.einsum("i,ia,ib->ab", weight, W_m, W_x))
        _, m, x = eigen_gates(reads[None], tolerance)
        first = np.zeros(len(m), int)
        return (m, x, s[first], D[first]) if len(m) < len(weight) else members

    s, D = neurons[SIDE], neurons[OUT]
    outer = np.einsum("ia,ib->iab", s, D).reshape(len(s), s.shape[1] * D.shape[1])
    return combine_groups(neurons, outer, tolerance, rule)


def combine_products(neurons: NeuronRows, tolerance: float) -> NeuronRows:
    """Combine neurons of equal q: Σ D_i s_iᵀ is one matrix, as many products as its rank."""

    def rule(members: NeuronRows, weight: np.ndarray) -> NeuronRows:
        W_m, W_x, s, D = members
        matrix = np.einsum("i,io,ic->oc", weight, D, s)
        left, values, right = np.linalg.svd(matrix, full_matrices=False)
        rank = int(np.sum(values > tolerance * values[0])) if values[0] > 0 else 0
        first = np.zeros(rank, int)
        combined = (W_m[first], W_x[first], right[:rank], (left[:, :rank] * values[:rank]).T)
        return combined if rank < len(weight) else members

    return combine_groups(neurons, weighted_reads(neurons), tolerance, rule)


def drop_dependent(neurons: NeuronRows, tolerance: float) -> NeuronRows:
    """Drop neurons of equal s, or equal D, whose reads depend on the others' reads."""
    for shared, third in ((SIDE, OUT), (OUT, SIDE)):

        def rule(
            members: NeuronRows, weight: np.ndarray, shared: int = shared, third: int = third
        ) -> NeuronRows:
            reads = weighted_reads(members)
            values = np.linalg.svd(reads, compute_uv=False)
            rank = int(np.sum(values > tolerance * values[0]))
            chosen = spanning_rows(reads, rank)
            if chosen is None or rank == len(weight):
                return members
            mixing = reads @ np.linalg.pinv(reads[chosen])
            parts = [rows[chosen] for rows in members]
            parts[shared] = members[shared][np.zeros(rank, int)]
            parts[third] = mixing.T @ (weight[:, None] * members[third])
            return tuple(parts)

        neurons = live_neurons(combine_groups(neurons, neurons[shared], tolerance, rule))
    return neurons


def weighted_reads(neurons: NeuronRows) -> np.ndarray:
    """Return products w_m wₓᵀ as vectors with the inner product of symmetric matrices."""
    W_m, W_x = neurons[:2]
    return symmetric_products(W_m, W_x) * entry_weights(W_m.shape[1])
