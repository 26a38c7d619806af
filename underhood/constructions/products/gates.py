"""Bilinear gates (G x)⊙(V x) of a gated RNN, prepared for layers that have sigmoids.

Each product of two linear forms is split into a branch that goes through the sigmoid (the gate)
and one that stays linear (the value). The sigmoid's argument has to be of size one before ε scales
it, so every gate row comes with its typical size on N(0, 1) inputs, measured on a fixed sample. Of
the two branches the one with the lighter tail becomes the gate, growth over time included:
truncation grows with the argument's (2n+1)-th power, and a query stays as it is where a memory
keeps growing. A branch that is constant needs no sigmoid at all.

Where copies of the value are summed over time before they are subtracted (LSTM, GRU), a bias in it
would make both grow as T and their difference drown in rounding. `split_bias` takes it out:
G·(V + b) = G·V + b·G, and b·G is a row with a constant gate, which costs no copy.
"""

from dataclasses import dataclass

import numpy as np

from underhood.constructions.sources.reference import gated_rnn_states
from underhood.layers import GatedRNN

# Sizes are measured at the end of sequences of this length; longer ones have larger memories, which
# costs truncation (the ratio of sizes to the power 2n) but never correctness at smaller ε.
SAMPLE = (32, 256)


@dataclass(frozen=True)
class Gates:
    """Rows of products gate·value, their typical sizes, and the neuron that each row feeds.

    In `constant` rows the gate reads no input, and `size` is its value.
    """

    gate: np.ndarray
    value: np.ndarray
    size: np.ndarray
    value_size: np.ndarray
    constant: np.ndarray
    neuron: np.ndarray

    @property
    def products(self) -> np.ndarray:
        """Indices of the rows that need a sigmoid."""
        return np.flatnonzero(~self.constant)

    def distinct_values(self, *tags: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """First rows with distinct (value, tags) among the products, and each product's place."""
        rows = np.column_stack([self.value[self.products], *(tag[self.products] for tag in tags)])
        return distinct(rows)


def distinct(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the first of each set of equal rows, and for each row the place of its set."""
    places: dict[bytes, int] = {}
    first: list[int] = []
    where: list[int] = []
    for index, row in enumerate(np.ascontiguousarray(rows + 0.0)):
        place = places.setdefault(row.tobytes(), len(places))
        if place == len(first):
            first.append(index)
        where.append(place)
    return np.array(first, int), np.array(where, int)


def input_gates(rnn: GatedRNN, *, split_bias: bool = False) -> Gates:
    """g_in: the rows over [x;1]; a row that reads the 1 alone is constant."""
    m, x = (np.asarray(W, np.float64) for W in (rnn.W_in_m, rnn.W_in_x))
    m_constant, x_constant = (~np.any(W[:, :-1], axis=1) for W in (m, x))
    # The branch with the larger bias is the gate, so that biases in values are few and small.
    m_bias, x_bias = (np.abs(W[:, -1]) / lengths(W) for W in (m, x))
    swap = (x_constant & ~m_constant) | ((x_bias > m_bias) & ~m_constant)
    gate, value = np.where(swap[:, None], x, m), np.where(swap[:, None], m, x)
    constant = m_constant | x_constant
    neuron = np.arange(len(m))
    if split_bias:
        biased = np.flatnonzero(~constant & (value[:, -1] != 0))
        one = np.zeros((len(biased), m.shape[1]))
        one[:, -1] = 1
        linear = value[biased, -1:] * gate[biased]
        value[biased, -1] = 0
        gate, value = np.concatenate([gate, one]), np.concatenate([value, linear])
        constant = np.concatenate([constant, np.ones(len(biased), bool)])
        neuron = np.concatenate([neuron, biased])
    size = np.where(constant, gate[:, -1], lengths(gate))
    return Gates(gate, value, size, lengths(value), constant, neuron)


def lengths(rows: np.ndarray) -> np.ndarray:
    """Lengths of rows, the typical size of what they read; 1 where a row is zero."""
    length = np.linalg.norm(rows, axis=1)
    return np.where(length > 0, length, 1.0)


def output_gates(rnn: GatedRNN) -> Gates:
    """g_out: the rows over h."""
    m, x = (np.asarray(W, np.float64) for W in (rnn.W_out_m, rnn.W_out_x))
    xs = np.random.default_rng(0).normal(size=(*SAMPLE, rnn.d_in))
    states = gated_rnn_states(rnn, xs)
    signals = [states @ W.T for W in (m, x)]
    sizes, tails = zip(*(size_and_tail(signal) for signal in signals), strict=True)
    swap = tails[1] < tails[0]
    gate, value = np.where(swap[:, None], x, m), np.where(swap[:, None], m, x)
    size, value_size = (np.where(swap, one, other) for one, other in (sizes[::-1], sizes))
    return Gates(gate, value, size, value_size, np.zeros(len(m), bool), np.arange(len(m)))


def size_and_tail(signal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The typical size of each row, and how far its largest value exceeds what it starts with.

    The size is a quarter of the largest value in the sample: the root mean square of a Gaussian
    signal, and more than that where tails are heavy or the signal grows.
    """
    early = np.sqrt(np.mean(signal[:, : SAMPLE[1] // 16] ** 2, axis=(0, 1)))
    largest = np.max(np.abs(signal), axis=(0, 1), initial=0)
    size = largest / 4
    return np.where(size > 0, size, 1.0), largest / np.where(early > 0, early, 1.0)
