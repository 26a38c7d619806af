"""How much a neuron or a gate output matters to the function.

The influence of a neuron is the size of what leaves the output with it, over the size of the whole
output: y − y without i = 2 h_i (K h)_i − K_ii h_i², and D_j g_j for a gate output. Both are
measured on sampled normal tokens, so that scaling a neuron up and its readers down changes nothing.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from underhood.analysis.forms.norms import TIME
from underhood.analysis.forms.quadratic import products, symmetric_products
from underhood.layers import GatedRNN, SideGatedRNN

SEQUENCES = 128


@dataclass(frozen=True)
class Influence:
    """`neurons` [neurons] and `gates` [gated], shares of the output's size; gates is None where
    every neuron is its own gate."""

    neurons: np.ndarray
    gates: np.ndarray | None


def states_of(layer: Any, time: int = TIME, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Sampled tokens and the neurons' states, [tokens, d_in] and [tokens, neurons]."""
    xs = np.random.default_rng(seed).normal(size=(SEQUENCES, time, layer.d_in))
    W_m, W_x = (np.asarray(W, float) for W in (layer.W_in_m, layer.W_in_x))
    if isinstance(layer, SideGatedRNN):
        W_m, W_x = (np.pad(W, ((0, 0), (0, 1))) for W in (W_m, W_x))
    states = products(xs) @ symmetric_products(W_m, W_x).T
    decay = np.asarray(layer.decay, float)
    for t in range(1, time):
        states[:, t] += decay * states[:, t - 1]
    many = SEQUENCES * time
    return xs.reshape(many, layer.d_in), states.reshape(many, layer.neurons)


def influence(layer: GatedRNN | SideGatedRNN, time: int = TIME) -> Influence:
    """The influence of every neuron and gate output."""
    xs, h = states_of(layer, time)
    D = np.asarray(layer.D, float)
    if isinstance(layer, SideGatedRNN):
        gated = h * (xs @ np.asarray(layer.W_side, float).T)
        return Influence(shares(np.mean(gated**2, axis=0), D, gated), None)
    W_m, W_x = (np.asarray(W, float) for W in (layer.W_out_m, layer.W_out_x))
    m, x = h @ W_m.T, h @ W_x.T
    whole = max(float(np.mean(((m * x) @ D.T) ** 2)), 1e-300)
    squares = np.zeros(layer.neurons)
    for row in D:
        # (m − W_m h_i)(x − W_x h_i) against m x, summed over gate outputs.
        without = h * ((m * row) @ W_x + (x * row) @ W_m) - h**2 * (row @ (W_m * W_x))
        squares += np.mean(without**2, axis=0)
    neurons = np.sqrt(squares / max(len(D), 1) / whole)
    return Influence(neurons, shares(np.mean((m * x) ** 2, axis=0), D, m * x))


def shares(squares: np.ndarray, D: np.ndarray, gated: np.ndarray) -> np.ndarray:
    """√(|D_j|²E[g_j²]) over the size of the output."""
    whole = max(float(np.mean((gated @ D.T) ** 2)), 1e-300)
    return np.sqrt(np.mean(D**2, axis=0) * squares / whole)
