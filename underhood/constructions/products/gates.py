"""Bilinear gates (G x)⊙(V x) of a gated RNN, prepared for layers that have sigmoids.

Each product of two linear forms is split into a branch that goes through the sigmoid (the gate)
and one that stays linear (the value). The sigmoid's argument has to be of size one before ε scales
it. So every gate row has a typical size on N(0, 1) inputs, which is measured on a fixed sample.
The branch with the lighter tail becomes the gate, because truncation grows with the (2n+1)-th
power of the argument. Growth over time counts as tail: a query keeps its size where a memory keeps
growing. A constant branch needs no sigmoid at all.

The LSTM and the GRU sum copies of the value over time before they subtract them. A bias in the
value would make both sums grow as T, and their difference would drown in rounding. `split_bias`
takes it out: G·(V + b) = G·V + b·G, and b·G is a row with a constant gate, which needs no copy.
"""

from dataclasses import dataclass

import numpy as np

from underhood.constructions.sources.heads import read_gated_rnn
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
        """Apply `distinct` to the rows (value, tags) of the products."""
        rows = np.column_stack([self.value[self.products], *(tag[self.products] for tag in tags)])
        return distinct(rows)


def distinct(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the index of the first row of each set of equal rows, and each row's set."""
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
    """Split g_in; rows act on [x;1], and a row that reads the 1 alone is constant."""
    weights = read_gated_rnn(rnn)
    m, x = weights.W_in_m, weights.W_in_x
    m_constant, x_constant = (~np.any(W[:, :-1], axis=1) for W in (m, x))
    # The branch with the larger bias is the gate, so that biases in values are few and small.
    m_bias, x_bias = (np.abs(W[:, -1]) / lengths(W) for W in (m, x))
    swap = (x_constant & ~m_constant) | ((x_bias > m_bias) & ~m_constant)
    gate, value = np.where(swap[:, None], x, m), np.where(swap[:, None], m, x)
    constant = m_constant | x_constant
    neuron = np.arange(len(m))
    if split_bias:
        biased = np.flatnonzero(~constant & (value[:, -1] != 0))
        linear = value[biased, -1:] * gate[biased]
        value[biased, -1] = 0
        gate = np.concatenate([gate, constant_rows(len(biased), m.shape[1])])
        value = np.concatenate([value, linear])
        constant = np.concatenate([constant, np.ones(len(biased), bool)])
        neuron = np.concatenate([neuron, biased])
    size = np.where(constant, gate[:, -1], lengths(gate))
    return Gates(gate, value, size, lengths(value), constant, neuron)


def constant_rows(count: int, width: int, value: float = 1.0) -> np.ndarray:
    """Return rows that read nothing but the constant in the last column."""
    rows = np.zeros((count, width))
    rows[:, -1] = value
    return rows


def lengths(rows: np.ndarray) -> np.ndarray:
    """Return the lengths of rows, the typical size of what they read; 1 where a row is zero."""
    length = np.linalg.norm(rows, axis=1)
    return np.where(length > 0, length, 1.0)


def output_gates(rnn: GatedRNN) -> Gates:
    """Split g_out; rows act on h."""
    weights = read_gated_rnn(rnn)
    m, x = weights.W_out_m, weights.W_out_x
    xs = np.random.default_rng(0).normal(size=(*SAMPLE, rnn.d_in))
    states = gated_rnn_states(rnn, xs)
    signals = [states @ W.T for W in (m, x)]
    sizes, tails = zip(*(size_and_tail(signal) for signal in signals), strict=True)
    swap = tails[1] < tails[0]
    gate, value = np.where(swap[:, None], x, m), np.where(swap[:, None], m, x)
    size, value_size = np.where(swap, sizes[1], sizes[0]), np.where(swap, sizes[0], sizes[1])
    return Gates(gate, value, size, value_size, np.zeros(len(m), bool), np.arange(len(m)))


def size_and_tail(signal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each row's typical size, and its largest value over its size at the start.

    The size is a quarter of the largest value in the sample: the root mean square of a Gaussian
    signal, and more than that where tails are heavy or the signal grows.
    """
    early = np.sqrt(np.mean(signal[:, : SAMPLE[1] // 16] ** 2, axis=(0, 1)))
    largest = np.max(np.abs(signal), axis=(0, 1), initial=0)
    size = largest / 4
    return np.where(size > 0, size, 1.0), largest / np.where(early > 0, early, 1.0)
