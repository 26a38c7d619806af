"""Gated RNN, and so attention → two LRU layers, or one LRU In-Out layer (Appendix B.1).

A gate σ(W_m x)⊙(W_x x) makes products by the gadget of `product.py`. For the product of
row p (gate G_p of size κ_p, value V_p) it has the pairs (W_m; W_x)

(e_a G_p/κ_p; V_p) for a = 1…n,   (0; V_p) once per distinct V_p,   and (0; 2c V_p) if G_p = c,

so that product_p = κ_p Σ_a a_a (pair_pa − copy_p). The next linear map takes that sum: B for the
input gate, the readout for the output gate. There one copy per output row is enough, because the
readout can sum before the gate: (0; Σ_p D_op κ_p V_p).

LRU In-Out: input gate → B → λ → C = I → output gate → readout. Two LRU layers: the first has
λ = 0 and B = C = I, so that its gate is the input gate; the second is the rest.

Attention with N products, r queries, v distinct values and o outputs: N + r neurons,
nN + v + r input pairs, nN + o output pairs; the two LRU layers add a neuron per input number.
An embedding appends the 1 if the source has a constant.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from underhood.common.decay import nu_from_decay
from underhood.constructions.construction import Construction, Role
from underhood.constructions.products.gates import Gates, input_gates, output_gates
from underhood.constructions.products.product import Product, sigmoid_epsilon
from underhood.constructions.sources.heads import read_gated_rnn
from underhood.constructions.target import Blueprint, Target
from underhood.constructions.targets.gated_rnn import as_gated_rnn
from underhood.layers import LRU, Affine, Layer, LRUInOut, Stack

# exp(−100): a phase that is zero to the last bit.
NO_PHASE = -100.0

lru_epsilon = partial(sigmoid_epsilon, rounding=2.0, power=1)


class ToLRU(Target):
    """Two LRU layers."""

    name = "lru"
    from_attention = from_gated_rnn = (2,)
    takes = ("form", "order", "epsilon")

    def build(self, plan: Blueprint) -> Construction:
        return build_lru(plan, layers=2)


class ToLRUInOut(Target):
    """One LRU In-Out layer and a readout; its neurons are those of the gated RNN."""

    name = "lru_in_out"
    from_attention = from_gated_rnn = (1,)
    takes = ("form", "order", "epsilon")

    def build(self, plan: Blueprint) -> Construction:
        return build_lru(plan, layers=1)


def build_lru(plan: Blueprint, *, layers: int) -> Construction:
    """Compute Eq. 2 in two LRU layers or in one LRU In-Out layer."""
    rnn, roles = as_gated_rnn(plan, unit=True)
    product = plan.product(lru_epsilon)
    weights = read_gated_rnn(rnn)
    into = input_pairs(input_gates(rnn), product)
    out = output_pairs(output_gates(rnn), weights.D, product)
    embed, W_m, W_x = constant_embedding(into, rnn.d_in)
    above = {**real_recurrence(weights.decay, into.R), "W_m": out.W_m, "W_x": out.W_x}
    if layers == 1:
        stacked: list[Layer] = [LRUInOut(W_in_m=W_m, W_in_x=W_x, **above)]
    else:
        # The first layer's neurons pass on the inputs that its gate reads.
        read = np.flatnonzero(np.any(W_m, axis=0) | np.any(W_x, axis=0))
        passing = real_recurrence(np.zeros(len(read)), np.eye(W_m.shape[1])[read])
        stacked = [LRU(**passing, W_m=W_m[:, read], W_x=W_x[:, read]), LRU(**above)]
        roles = tuple(Role("copy", f"x[{i}]") for i in range(len(read))) + roles
    stack = Stack(embed, stacked, Affine(out.R), needs_x64=product.needs_x64)
    return plan.finish(stack, roles, product)


@dataclass(frozen=True)
class Pairs:
    """A gated linear unit and the linear map that turns its outputs into products."""

    W_m: np.ndarray
    W_x: np.ndarray
    R: np.ndarray


def input_pairs(gates: Gates, product: Product, *tags: np.ndarray) -> Pairs:
    """Return the pairs for g_in; R is [neurons, pairs].

    tags  numbers per gate row; rows that share a copy agree in them too
    """
    p, n, neuron = gates.products, product.order, gates.neuron
    first, where = gates.distinct_values(*tags)
    passed = np.flatnonzero(gates.constant)
    rows = np.concatenate([np.tile(p, n), p[first], passed])
    copies = np.zeros((len(first) + len(passed), gates.gate.shape[1]))
    gain = np.concatenate([np.ones(len(rows) - len(passed)), 2 * gates.size[passed]])
    R = np.zeros((1 + max(neuron, default=-1), len(rows)))
    for a, weight in enumerate(product.weights):
        R[neuron[p], a * len(p) + np.arange(len(p))] = weight * gates.size[p]
    R[neuron[p], n * len(p) + where] = -np.sum(product.weights) * gates.size[p]
    R[neuron[passed], n * len(p) + len(first) + np.arange(len(passed))] = 1
    scaled = product.scaled(gates.gate[p] / gates.size[p, None])
    return Pairs(np.concatenate([scaled, copies]), gain[:, None] * gates.value[rows], R)


def output_pairs(gates: Gates, D: np.ndarray, product: Product) -> Pairs:
    """Return the pairs for D g_out; R is [d_out, pairs]."""
    n, weighted = product.order, D * gates.size
    scaled = product.scaled(gates.gate / gates.size[:, None])
    copies = -np.sum(product.weights) * np.eye(len(D))
    return Pairs(
        W_m=np.concatenate([scaled, np.zeros((len(D), gates.gate.shape[1]))]),
        W_x=np.concatenate([np.tile(gates.value, (n, 1)), weighted @ gates.value]),
        R=np.hstack([*(weight * weighted for weight in product.weights), copies]),
    )


def constant_embedding(pairs: Pairs, d_in: int) -> tuple[Affine | None, np.ndarray, np.ndarray]:
    """Return an embedding that appends the 1 if the gate reads it, and the gate over its output."""
    if not (np.any(pairs.W_m[:, -1]) or np.any(pairs.W_x[:, -1])):
        return None, pairs.W_m[:, :-1], pairs.W_x[:, :-1]
    return append_constant(d_in), pairs.W_m, pairs.W_x


def append_constant(d_in: int) -> Affine:
    """Return the map x ↦ [x;1]."""
    return Affine(np.eye(d_in + 1, d_in), np.eye(d_in + 1)[d_in])


def real_recurrence(decay: np.ndarray, B: np.ndarray) -> dict[str, np.ndarray]:
    """Return the weights of h = λh + Bu, ỹ = h, with real λ, in an LRU's letters."""
    n = len(decay)
    return {
        "nu": np.asarray(nu_from_decay(decay, about="LRU")),
        "theta_log": np.full(n, NO_PHASE),
        "gamma_log": np.zeros(n),
        "B_re": B,
        "B_im": np.zeros_like(B),
        "C_re": np.eye(n),
        "C_im": np.zeros((n, n)),
        "D": np.zeros((n, B.shape[1])),
    }
