"""Heads of one attention, mixed so that they compare with those of another.

The function of several heads is Σ_h W_V^h S M^h x. For any invertible G the heads Σ_g G_hg W_V^g
with Σ_g (G⁻ᵀ)_hg M^g have the same function. One head has G = s: s·W_V and M/s.
"""

import numpy as np

from underhood.layers import LinearAttention, MultiHead
from underhood.tasks.multi_head_teacher import ValuesAndScores, values_and_scores

# A mix with a larger condition number is no mix of the same heads.
WORST_MIX = 1e8
# Mixed heads that miss the teacher's W_V by a larger share are other heads. With d = 2 different
# heads can have the same function.
FARTHEST = 1e-2


def aligned_heads(
    attention: LinearAttention | MultiHead, teacher: LinearAttention | MultiHead
) -> ValuesAndScores | None:
    """Return W_V and M of heads, mixed so that W_V is nearest to the teacher's.

    None if the number of heads or their shapes differ, or no mix comes near.
    """
    values, scores = values_and_scores(attention)
    wanted, _ = values_and_scores(teacher)
    if values.shape != wanted.shape or not np.any(values):
        return None
    flat, target = (W.reshape(len(W), -1) for W in (values, wanted))
    G = np.linalg.lstsq(flat.T, target.T, rcond=None)[0].T
    missed = np.linalg.norm(G @ flat - target) / np.linalg.norm(target)
    if not np.linalg.cond(G) < WORST_MIX or (len(G) > 1 and missed > FARTHEST):
        return None
    return np.tensordot(G, values, 1), np.tensordot(np.linalg.inv(G).T, scores, 1)
