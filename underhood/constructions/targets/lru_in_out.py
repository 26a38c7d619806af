"""Gated RNN, and so attention → one LRU In-Out layer; `lru.py` has the derivation."""

from underhood.constructions.construction import Construction
from underhood.constructions.products.gates import input_gates, output_gates
from underhood.constructions.sources.heads import read_gated_rnn
from underhood.constructions.target import Blueprint, Target
from underhood.constructions.targets.gated_rnn import as_normalised_rnn
from underhood.constructions.targets.lru import (
    constant_embedding,
    input_pairs,
    lru_epsilon,
    output_pairs,
    real_recurrence,
)
from underhood.layers import Affine, LRUInOut, Stack


class ToLRUInOut(Target):
    """One layer and a readout; its neurons are those of the gated RNN."""

    name = "lru_in_out"
    from_attention = from_gated_rnn = (1,)
    takes = ("form", "order", "epsilon")

    def build(self, plan: Blueprint) -> Construction:
        rnn, roles = as_normalised_rnn(plan)
        product = plan.product(lru_epsilon)
        weights = read_gated_rnn(rnn)
        into = input_pairs(input_gates(rnn), product)
        out = output_pairs(output_gates(rnn), weights.D, product)
        embed, W_m, W_x = constant_embedding(into, rnn.d_in)
        layer = LRUInOut(
            W_in_m=W_m,
            W_in_x=W_x,
            **real_recurrence(weights.decay, into.R),
            W_m=out.W_m,
            W_x=out.W_x,
        )
        stack = Stack(embed, [layer], Affine(out.R), needs_x64=product.needs_x64)
        return plan.finish(stack, roles, product)
