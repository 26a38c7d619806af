"""How much a neuron or a gate output matters to the function.

The influence of a neuron is the size of the change of the output without it, over the size of the
output: y − y without i = 2 h_i (K h)_i − K_ii h_i², and D_j g_j for a gate output. Both are
measured on sampled normal tokens, so scaling a neuron up and its readers down changes nothing.
"""

import numpy as np

from underhood.analysis.arguments import GatedNetwork
from underhood.analysis.forms.norms import TIME
from underhood.analysis.forms.quadratic import input_reads, products
from underhood.common.linear_algebra import decayed_sums, thin
from underhood.layers import SideGatedRNN

SAMPLED_SEQUENCES = 128


def sample_states(
    layer: GatedNetwork, time: int = TIME, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return normal tokens [tokens, d_in] and the neurons' states on them [tokens, neurons]."""
    xs = np.random.default_rng(seed).normal(size=(SAMPLED_SEQUENCES, time, layer.d_in))
    many = SAMPLED_SEQUENCES * time
    # Sparse reads take matrices only.
    written = products(xs.reshape(many, layer.d_in)) @ thin(input_reads(layer)).T
    in_time = written.reshape(SAMPLED_SEQUENCES, time, layer.neurons)
    states = decayed_sums(np.asarray(layer.decay, float), in_time)
    return xs.reshape(many, layer.d_in), states.reshape(many, layer.neurons)


def influence(layer: GatedNetwork, time: int = TIME) -> tuple[np.ndarray, np.ndarray]:
    """Return the influence of every neuron, and of every gate output: none in a side-gated RNN."""
    xs, h = sample_states(layer, time)
    D = np.asarray(layer.D, float)
    if isinstance(layer, SideGatedRNN):
        return gate_shares(D, h * (xs @ np.asarray(layer.W_side, float).T)), np.zeros(0)
    W_m, W_x = (np.asarray(W, float) for W in (layer.W_out_m, layer.W_out_x))
    m, x = h @ W_m.T, h @ W_x.T
    whole = max(float(np.mean(((m * x) @ D.T) ** 2)), 1e-300)
    squares = np.zeros(layer.neurons)
    # Each factor of a gate output with the neurons that the other factor reads.
    pairs = [
        (factor, read, thin(W[:, read]))
        for factor, W in ((m, W_x), (x, W_m))
        for read in (np.flatnonzero(np.any(W, axis=0)),)
    ]
    for row, twice in zip(D, D @ (W_m * W_x), strict=True):
        # (m − W_m h_i)(x − W_x h_i) against m x, summed over gate outputs.
        without = -twice * h**2 if np.any(twice) else np.zeros_like(h)
        for factor, read, W in pairs:
            without[:, read] += h[:, read] * ((factor * row) @ W)
        squares += np.mean(without**2, axis=0)
    neurons = np.sqrt(squares / max(len(D), 1) / whole)
    return neurons, gate_shares(D, m * x)


def gate_shares(D: np.ndarray, gated: np.ndarray) -> np.ndarray:
    """Return √(|D_j|²E[g_j²]) over the size of the output, for gate outputs g [tokens, gated]."""
    whole = max(float(np.mean((gated @ D.T) ** 2)), 1e-300)
    return np.sqrt(np.mean(D**2, axis=0) * np.mean(gated**2, axis=0) / whole)
