"""Sources evaluated from their definitions, token by token, in NumPy and float64.

No layer's forward pass is used: what a construction is measured against must not be able to repeat
the layer's mistakes.
"""

import numpy as np

from underhood.constructions.sources.heads import read_attention
from underhood.layers import GatedRNN, LinearAttention, MultiHead

Batch = np.ndarray


def reference(source: LinearAttention | MultiHead | GatedRNN, xs: Batch) -> Batch:
    """The outputs [batch, time, d_out] of a source on a batch [batch, time, d_in]."""
    xs = np.asarray(xs, np.float64)
    if isinstance(source, GatedRNN):
        return gated_rnn_reference(source, xs)
    return attention_reference(source, xs)


def attention_reference(source: LinearAttention | MultiHead, xs: Batch) -> Batch:
    """Eq. 1: a key-value matrix per head, updated and queried once per token."""
    attention = read_attention(source)
    batch, time, _ = xs.shape
    if attention.biased:
        xs = np.concatenate([xs, np.ones((batch, time, 1))], axis=2)
    outputs = np.zeros((batch, time, attention.d_out))
    for head in attention.heads:
        memory = np.zeros((batch, len(head.W_V), len(head.W_K)))
        for t in range(time):
            v, k, q = (xs[:, t] @ W.T for W in (head.W_V, head.W_K, head.W_Q))
            memory = head.decay[:, None] * memory + v[:, :, None] * k[:, None, :]
            outputs[:, t] += (memory @ q[:, :, None])[:, :, 0] @ head.out.T
    return outputs


def gated_rnn_reference(source: GatedRNN, xs: Batch) -> Batch:
    """Eq. 2."""
    states = gated_rnn_states(source, xs)
    W_out_m, W_out_x, D = (
        np.asarray(W, np.float64) for W in (source.W_out_m, source.W_out_x, source.D)
    )
    return ((states @ W_out_m.T) * (states @ W_out_x.T)) @ D.T


def gated_rnn_states(source: GatedRNN, xs: Batch) -> Batch:
    """h_t at all times, [batch, time, hidden]."""
    W_in_m, W_in_x, decay = (
        np.asarray(W, np.float64) for W in (source.W_in_m, source.W_in_x, source.decay)
    )
    batch, time, _ = xs.shape
    xs = np.concatenate([xs, np.ones((batch, time, 1))], axis=2)
    state, states = np.zeros((batch, len(decay))), np.zeros((batch, time, len(decay)))
    for t in range(time):
        state = decay * state + (xs[:, t] @ W_in_m.T) * (xs[:, t] @ W_in_x.T)
        states[:, t] = state
    return states
