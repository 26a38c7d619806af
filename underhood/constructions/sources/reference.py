"""Sources evaluated from their definitions, token by token, in NumPy and float64.

No layer's forward pass is used: what a construction is measured against must not be able to repeat
the layer's mistakes. Batches are [batch, time, d].
"""

import numpy as np

from underhood.constructions.sources.heads import Source, read_attention, read_gated_rnn
from underhood.layers import GatedRNN


def reference(source: Source, xs: np.ndarray) -> np.ndarray:
    """Return the outputs of a source on a batch.

    A gated RNN is Eq. 2. Attention is Eq. 1: a key-value matrix per head, updated and queried once
    per token.
    """
    xs = np.asarray(xs, np.float64)
    if isinstance(source, GatedRNN):
        rnn, states = read_gated_rnn(source), gated_rnn_states(source, xs)
        return ((states @ rnn.W_out_m.T) * (states @ rnn.W_out_x.T)) @ rnn.D.T
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


def gated_rnn_states(
    source: GatedRNN, xs: np.ndarray, start: np.ndarray | None = None
) -> np.ndarray:
    """Return h_t at all times, [batch, time, hidden].

    start  state before the first token, [batch, hidden]; zero by default
    """
    rnn = read_gated_rnn(source)
    batch, time, _ = xs.shape
    xs = np.concatenate([xs, np.ones((batch, time, 1))], axis=2)
    state = np.zeros((batch, source.neurons)) if start is None else start
    states = np.zeros((batch, time, source.neurons))
    for t in range(time):
        state = rnn.decay * state + (xs[:, t] @ rnn.W_in_m.T) * (xs[:, t] @ rnn.W_in_x.T)
        states[:, t] = state
    return states
