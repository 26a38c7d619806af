"""Side-gated RNNs with fewer neurons.

A neuron of decay λ adds D_i (s_i·x)(q_i·S_λ) to the output, a product of three vectors. Neurons
combine where the sum of their products is a shorter sum of products:

    equal s and D:  Σ q_i is one symmetric matrix, max(positive, negative eigenvalues) products
    equal q:        Σ D_i s_iᵀ is one matrix, as many products as its rank
    equal s, or D:  reads q_i that depend on others are expressed by them

Unlike the gated RNN's, its gate outputs are its neurons, so that the space of what is read cannot
be given any basis of products; networks stay larger than the minimal construction where none of
these rules applies.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from underhood.analysis.forms.quadratic import equal_decays, symmetric_products, upper
from underhood.analysis.shrinking.gates import eigen_gates
from underhood.analysis.shrinking.products import pick
from underhood.layers import SideGatedRNN

# W_in_m, W_in_x, W_side, Dᵀ: one row per neuron.
Neurons = tuple[np.ndarray, ...]


def reduce_side(own: Any, tolerance: float) -> SideGatedRNN:
    """Combine neurons until no rule applies."""
    decays, places = equal_decays(own.decay)
    parts = []
    for place, decay in enumerate(decays):
        one = places == place
        neurons = alive((own.W_in_m[one], own.W_in_x[one], own.W_side[one], own.D[:, one].T))
        before = len(neurons[0]) + 1
        while len(neurons[0]) < before:
            before = len(neurons[0])
            for rule in (combine_reads, combine_products, drop_dependent):
                neurons = alive(rule(neurons, tolerance))
        parts.append((neurons, np.full(len(neurons[0]), decay)))
    stacked = [np.vstack([neurons[i] for neurons, _ in parts]) for i in range(4)]
    return SideGatedRNN(
        W_in_m=stacked[0],
        W_in_x=stacked[1],
        W_side=stacked[2],
        D=stacked[3].T,
        decay=np.concatenate([decay for _, decay in parts]),
    )


def alive(neurons: Neurons) -> Neurons:
    """Neurons without a vanishing factor, those factors scaled alike."""
    sizes = np.array([np.linalg.norm(one, axis=1) for one in neurons])
    product = np.prod(sizes, axis=0)
    kept = product > 1e-15 * np.max(product, initial=0.0)
    common = product[kept] ** 0.25
    return tuple(
        one[kept] * (common / size[kept])[:, None] for one, size in zip(neurons, sizes, strict=True)
    )


def alike(vectors: np.ndarray, tolerance: float) -> list[np.ndarray]:
    """Groups of rows on one line."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    left = np.arange(len(unit))
    groups = []
    while len(left):
        apart = unit[left] - np.outer(unit[left] @ unit[left[0]], unit[left[0]])
        near = np.linalg.norm(apart, axis=1) < tolerance
        near[0] = True
        groups.append(left[near])
        left = left[~near]
    return groups


def along(vectors: np.ndarray) -> np.ndarray:
    """Coordinates of rows on one line, in units of the first."""
    return vectors @ vectors[0] / (vectors[0] @ vectors[0])


def flattened(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return np.einsum("ia,ib->iab", left, right).reshape(len(left), -1)


def combine_reads(neurons: Neurons, tolerance: float) -> Neurons:
    """Equal s and D: one symmetric matrix of reads."""
    W_m, W_x, s, D = neurons
    made: list[Neurons] = []
    for group in alike(flattened(s, D), tolerance) if len(s) else []:
        weight = along(flattened(s, D)[group])
        half = np.einsum("i,ia,ib->ab", weight, W_m[group], W_x[group])
        _, m, x = eigen_gates(((half + half.T) / 2)[None], tolerance)
        if len(m) < len(group):
            first = group[:1].repeat(len(m))
            made.append((m, x, s[first], D[first]))
        else:
            made.append(tuple(one[group] for one in neurons))
    return stack(made, neurons)


def combine_products(neurons: Neurons, tolerance: float) -> Neurons:
    """Equal reads: one matrix of outputs and side gates."""
    W_m, W_x, s, D = neurons
    reads = scaled_reads(W_m, W_x)
    made: list[Neurons] = []
    for group in alike(reads, tolerance) if len(s) else []:
        left, values, right = np.linalg.svd(
            np.einsum("i,io,ic->oc", along(reads[group]), D[group], s[group]), full_matrices=False
        )
        rank = int(np.sum(values > tolerance * values[0])) if values[0] > 0 else 0
        if rank < len(group):
            first = group[:1].repeat(rank)
            made.append((W_m[first], W_x[first], right[:rank], (left[:, :rank] * values[:rank]).T))
        else:
            made.append(tuple(one[group] for one in neurons))
    return stack(made, neurons)


def drop_dependent(neurons: Neurons, tolerance: float) -> Neurons:
    """Equal s, or equal D: reads that depend on others hand their other factor to them."""
    for shared, other in ((2, 3), (3, 2)):
        made: list[Neurons] = []
        for group in alike(neurons[shared], tolerance) if len(neurons[0]) else []:
            reads = scaled_reads(neurons[0][group], neurons[1][group])
            values = np.linalg.svd(reads, compute_uv=False)
            rank = int(np.sum(values > tolerance * values[0]))
            chosen = pick(reads, rank)
            if chosen is None or rank == len(group):
                made.append(tuple(one[group] for one in neurons))
                continue
            weight = along(neurons[shared][group])
            mixing = reads @ np.linalg.pinv(reads[chosen])
            parts = [one[group][chosen] for one in neurons]
            parts[shared] = neurons[shared][group[:1].repeat(rank)]
            parts[other] = mixing.T @ (weight[:, None] * neurons[other][group])
            made.append(tuple(parts))
        neurons = alive(stack(made, neurons))
    return neurons


def scaled_reads(W_m: np.ndarray, W_x: np.ndarray) -> np.ndarray:
    """Products as vectors with the inner product of symmetric matrices."""
    rows, columns = upper(W_m.shape[1])
    return symmetric_products(W_m, W_x) * np.where(rows == columns, 1.0, np.sqrt(0.5))


def stack(made: Sequence[Neurons], like: Neurons) -> Neurons:
    if not made:
        return like
    return tuple(np.vstack([one[i] for one in made]) for i in range(4))
