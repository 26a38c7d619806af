"""Attention → side-gated RNN (Appendix A.2).

With a side gate the queries of `gated_rnn.py` need no neurons: W_side = R_q Q, and R_m must be I.
"""

from underhood.constructions.construction import Construction
from underhood.constructions.target import Blueprint, Target
from underhood.constructions.targets.gated_rnn import memory_roles
from underhood.layers import SideGatedRNN


class ToSideGatedRNN(Target):
    """The network whose neurons are the memory variables alone."""

    name = "side_gated_rnn"
    from_attention = (1,)

    def reasons_against(self, plan: Blueprint) -> list[str]:
        if plan.attention is None or not plan.attention.biased:
            return []
        return ["Side gating has no constant input that could carry b_V, b_K or b_Q."]

    def build(self, plan: Blueprint) -> Construction:
        factors = plan.factors(direct_reads=True)
        layer = SideGatedRNN(
            W_in_m=factors.keys,
            W_in_x=factors.values,
            decay=factors.decay,
            W_side=factors.R_q @ factors.queries,
            D=factors.D,
        )
        return plan.finish(layer, memory_roles(factors))
