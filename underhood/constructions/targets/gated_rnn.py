"""Attention → gated RNN (`sources/gated_rnn.py`), and → side-gated RNN (Appendix A.2).

With a side gate the queries need no neurons: W_side = R_q Q, and R_m must be I.
"""

from underhood.constructions.construction import Construction, roles_of
from underhood.constructions.target import Blueprint
from underhood.layers import SideGatedRNN


def build_gated_rnn(plan: Blueprint) -> Construction:
    return plan.finish(*plan.gated_rnn())


def reasons_against_side_gates(plan: Blueprint) -> list[str]:
    if plan.attention is None or not plan.attention.biased:
        return []
    return ["Side gating has no constant input that could carry b_V, b_K or b_Q."]


def build_side_gated_rnn(plan: Blueprint) -> Construction:
    """Return the network whose neurons are the memory variables alone."""
    factors = plan.factors(direct_reads=True)
    layer = SideGatedRNN(
        W_in_m=factors.keys,
        W_in_x=factors.values,
        decay=factors.decay,
        W_side=factors.R_q @ factors.queries,
        D=factors.D,
    )
    return plan.finish(layer, roles_of("memory", factors.memory_labels))
