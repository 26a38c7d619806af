"""Gated RNN, and so attention → two LRU layers, or one LRU In-Out layer (Appendix B.1).

A gate σ(W_m x)⊙(W_x x) makes products by the gadget of `product.py`. For the product of row p
(gate G_p of size κ_p, value V_p) it has the pairs (W_m; W_x)

    pair_pa = (e_a G_p/κ_p; V_p),   copy_p = (0; V_p),   product_p = κ_p Σ_a a_a (pair_pa − copy_p),

and the next linear map takes that sum: B for the input gate, the readout for the output gate.
docs/constructions.md has constant gates, the two ways to stack the parts, and the sizes.
"""

from functools import partial

import numpy as np

from underhood.constructions.construction import Construction, roles_of
from underhood.constructions.products import gates
from underhood.constructions.products.product import sigmoid_epsilon
from underhood.constructions.sources.gated_rnn import append_constant
from underhood.constructions.sources.heads import read_gated_rnn
from underhood.constructions.target import Blueprint
from underhood.layers import LRU, Affine, Layer, LRUInOut, Stack
from underhood.layers.lru import real_recurrence

lru_epsilon = partial(sigmoid_epsilon, rounding=2.0, power=1)


def build_lru(plan: Blueprint) -> Construction:
    """Compute Eq. 2 in two LRU layers or in one LRU In-Out layer."""
    rnn, roles = plan.gated_rnn(unit=True)
    product = plan.product(lru_epsilon)
    weights = read_gated_rnn(rnn)
    into = gates.input_pairs(gates.input_gates(rnn), product)
    out = gates.output_pairs(gates.output_gates(rnn, plan.length), weights.D, product)
    # An embedding appends the 1 if the gate reads it.
    constant = np.any(into.W_m[:, -1]) or np.any(into.W_x[:, -1])
    embed = append_constant(rnn.d_in) if constant else None
    W_m, W_x = (W if constant else W[:, :-1] for W in (into.W_m, into.W_x))
    above = {**real_recurrence(weights.decay, into.R), "W_m": out.W_m, "W_x": out.W_x}
    if plan.layers == 1:
        stacked: list[Layer] = [LRUInOut(W_in_m=W_m, W_in_x=W_x, **above)]
    else:
        # The first layer's neurons pass on the inputs that its gate reads.
        read = np.flatnonzero(np.any(W_m, axis=0) | np.any(W_x, axis=0))
        passing = real_recurrence(np.zeros(len(read)), np.eye(W_m.shape[1])[read])
        stacked = [LRU(**passing, W_m=W_m[:, read], W_x=W_x[:, read]), LRU(**above)]
        roles = roles_of("copy", [f"x[{i}]" for i in range(len(read))]) + roles
    stack = Stack(embed, stacked, Affine(out.R), needs_x64=product.needs_x64)
    return plan.finish(stack, roles, product)
