"""Attention → Jamba's Mamba block: Mamba's block (`mamba.py`) with norms on δ, B and C.

The rows that make B and C are of size ε, so that their norms are linear, of order 2:
εk/√(mean (εk)² + eps) = εk/√eps (1 + O(ε²)). The weights of the norms undo the scale. δ is zero,
and so is its norm. B and C are bounded, and attention grows as |x|³, so no such block is exact.
"""

import math

import numpy as np

from underhood.constructions.construction import Construction
from underhood.constructions.sources.gated_rnn import append_constant
from underhood.constructions.target import Blueprint
from underhood.constructions.targets.mamba import block_of_head
from underhood.constructions.targets.modern.slices import small_signal
from underhood.layers import JambaBlock, Stack

JAMBA_EPS = 1e-6


def build_jamba(plan: Blueprint) -> Construction:
    """Return one Jamba block after an embedding that appends the 1."""
    block, roles = block_of_head(plan)
    limit = small_signal(plan, 2)
    rank, state = len(block.W_x_dt), len(block.W_x_B)
    # The largest row has size ε, so that ε bounds what enters the norms.
    sizes = [max(float(np.max(np.abs(W), initial=0.0)), 1e-300) for W in (block.W_x_B, block.W_x_C)]
    undone = [np.full(state, size * math.sqrt(JAMBA_EPS) / limit.epsilon) for size in sizes]
    fields = {name: getattr(block, name) for name in block.__dataclass_fields__}
    fields["W_x_B"] = limit.epsilon / sizes[0] * block.W_x_B
    fields["W_x_C"] = limit.epsilon / sizes[1] * block.W_x_C
    layer = JambaBlock(
        **fields, norm_dt=np.ones(rank), norm_B=undone[0], norm_C=undone[1], eps=JAMBA_EPS
    )
    stack = Stack(append_constant(plan.source.d_in), [layer], None)
    return plan.finish(stack, roles, limit)
