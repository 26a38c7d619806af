"""Attention → one Mamba layer, gated RNN → two; both exact.

In the simplified layer (Appendix B.2, with affine maps) x̃ = [x;1], Δ = 1, A = log λ, and B(x̃) x̃
multiplies two linear forms of the input, which is an input gate. For the products (value v, key k,
query q) of the factors

B(x̃)_p = (k_p·x̃) v_pᵀ,  C(x̃)_op = 2 D_op (q_p·x̃),  W_side = 0,

where the 2 undoes the side gate σ(0) = ½. The query goes through C. For Eq. 2 two layers are
needed, as the paper says: the first has B from W_in and C = 2I, the second forgets at once
(A = −1000, exp A = 0), multiplies the two branches of W_out in its B, and reads with C = 2D.
"""

import numpy as np

from underhood.constructions.construction import Construction
from underhood.constructions.sources.factors import Factors
from underhood.constructions.sources.heads import read_gated_rnn
from underhood.constructions.target import Blueprint, Target
from underhood.constructions.targets import gated_rnn
from underhood.layers import GatedRNN, Mamba, Stack

# exp of it is exactly 0.
FORGET = -1000.0


class ToMamba(Target):
    """One simplified Mamba layer, or two."""

    name = "mamba"
    from_attention = (1, 2)
    from_gated_rnn = (2,)

    def build(self, plan: Blueprint) -> Construction:
        if plan.layers == 1:
            factors = plan.factors(direct_reads=True)
            layer = one_mamba_layer(factors, plan.source.d_in)
            return plan.finish(layer, gated_rnn.memory_roles(factors))
        rnn, roles = gated_rnn.as_gated_rnn(plan)
        return plan.finish(two_mamba_layers(rnn), roles + gated_rnn.product_roles(rnn))


def mamba(
    *,
    embed: np.ndarray,
    decay: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    W_C: np.ndarray,
    b_C: np.ndarray,
) -> Mamba:
    """Return a layer that writes (first x̃)⊙(second x̃) with x̃ = [embed|b][x;1]."""
    hidden, inner = first.shape
    # log λ, finite where λ = 0.
    with np.errstate(divide="ignore"):
        log_decay = np.maximum(np.log(decay), FORGET)
    return Mamba(
        W_input=embed[:, :-1],
        b_input=embed[:, -1],
        W_delta=np.zeros(inner),
        b_delta=np.ones(()),
        W_A=np.zeros((hidden, inner)),
        b_A=log_decay,
        W_B=first[:, :, None] * second[:, None, :],
        b_B=np.zeros((hidden, inner)),
        # The side gate is σ(0) = ½.
        W_C=2 * W_C,
        b_C=2 * b_C,
        W_side=np.zeros((len(b_C), embed.shape[1] - 1)),
    )


def one_mamba_layer(factors: Factors, d_in: int) -> Mamba:
    """Compute attention in one layer whose neurons are the memory variables."""
    value, key, query = gated_rnn.triples(factors, d_in)
    return mamba(
        embed=np.eye(d_in + 1),
        decay=factors.decay,
        first=value,
        second=key,
        W_C=factors.D[:, :, None] * query[None],
        b_C=np.zeros_like(factors.D),
    )


def two_mamba_layers(rnn: GatedRNN) -> Stack:
    W_in_m, W_in_x, decay, W_out_m, W_out_x, D = read_gated_rnn(rnn)
    hidden, gated = rnn.neurons, rnn.gate_width
    below = mamba(
        embed=np.eye(rnn.d_in + 1),
        decay=decay,
        first=W_in_m,
        second=W_in_x,
        W_C=np.zeros((hidden, hidden, rnn.d_in + 1)),
        b_C=np.eye(hidden),
    )
    above = mamba(
        embed=np.eye(hidden, hidden + 1),
        decay=np.zeros(gated),
        first=W_out_m,
        second=W_out_x,
        W_C=np.zeros((len(D), gated, hidden)),
        b_C=D,
    )
    return Stack(None, [below, above], None)
