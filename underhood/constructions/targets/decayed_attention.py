"""Gated RNN → two layers of attention with decay and biases (Appendix B.5, the reverse); exact.

A diagonal linear RNN y_t = λ⊙y_{t−1} + B x_t is one head with W_V = B, keys and queries equal to
the constant 1 (so that kᵀq = 1) and decay λ.

A gate of several units needs one head per unit, because a head has one number kᵀq per pair of
tokens for all of its value rows. Neuron i of Eq. 2 is the head with value
W_in_m,i [x;1], key W_in_x,i [x;1], query 1 and decay λ_i, whose output is h_i. Output gate p is the
head over h with value W_out_m,p h, key W_out_x,p h, query 1 and decay 0; W_O = D sums them. So a
gated RNN is two layers of decayed attention, exactly.
"""

import numpy as np

from underhood.constructions.construction import Construction, roles_of
from underhood.constructions.sources.heads import read_gated_rnn
from underhood.constructions.target import Blueprint
from underhood.layers import Affine, GatedRNN, LinearAttention, MultiHead, Stack


def build_decayed_attention(plan: Blueprint) -> Construction:
    rnn, roles = plan.gated_rnn()
    roles += roles_of("product", [f"gate[{p}]" for p in range(rnn.gate_width)])
    stack = two_attention_layers(rnn)
    return plan.finish(stack, roles[: stack.neurons])


def attention_from_linear_rnn(decay: np.ndarray, B: np.ndarray | None = None) -> LinearAttention:
    """Return the head that computes y_t = λ⊙y_{t−1} + B x_t; B is the identity unless given."""
    B = np.eye(len(decay)) if B is None else B
    nothing = np.zeros((1, B.shape[1]))
    return LinearAttention(
        B, nothing, nothing, b_K=np.ones(1), b_Q=np.ones(1), decay=np.asarray(decay, np.float64)
    )


def two_attention_layers(rnn: GatedRNN) -> Stack:
    """Compute Eq. 2 with one head per neuron below and one head per gate output above."""
    W_in_m, W_in_x, decay, W_out_m, W_out_x, D = read_gated_rnn(rnn)
    if not (len(W_in_m) and len(W_out_m)):
        # A network without neurons or gates is zero: attention over no values and no keys.
        empty = LinearAttention(*(np.zeros((0, rnn.d_in)) for _ in range(3)))
        return Stack(None, [empty], Affine(np.zeros((rnn.d_out, 0))))
    no_x, no_h, unit = np.zeros((1, rnn.d_in)), np.zeros((1, rnn.neurons)), np.ones(1)
    below = [
        LinearAttention(
            m[:, :-1], x[:, :-1], no_x, b_V=m[:, -1], b_K=x[:, -1], b_Q=unit, decay=kept
        )
        for m, x, kept in zip(W_in_m[:, None], W_in_x[:, None], decay[:, None], strict=True)
    ]
    above = [
        LinearAttention(m, x, no_h, b_Q=unit, decay=np.zeros(1))
        for m, x in zip(W_out_m[:, None], W_out_x[:, None], strict=True)
    ]
    return Stack(None, [MultiHead(below), MultiHead(above, W_O=D)], None)
