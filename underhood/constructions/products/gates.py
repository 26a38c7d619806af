"""Bilinear gates (G x)⊙(V x) of a gated RNN, prepared for layers that have sigmoids.

Each product of two linear forms is split into a branch that goes through the sigmoid (the gate)
and one that stays linear (the value); a constant branch needs no sigmoid at all. Gate rows are
scaled to size one on a fixed sample before ε scales them, and the branch with the lighter tail
becomes the gate. docs/constructions.md ("Sizes of the arguments") says why.

`split_bias` writes G·(V + b) = G·V + b·G: copies of a biased value would grow as T in an LSTM or a
GRU, and their difference would drown in rounding.
"""

import math
from dataclasses import dataclass

import numpy as np

from underhood.constructions.products.product import Product
from underhood.constructions.sources.gated_rnn import constant_rows
from underhood.constructions.sources.heads import read_gated_rnn
from underhood.constructions.sources.reference import gated_rnn_states
from underhood.layers import GatedRNN

# Sizes are measured on 32 sequences of 256 tokens, so memories may grow for that long. A network
# for longer sequences has larger memories: 8 sequences of its length are drawn, piece by piece.
SEQUENCES, PIECE, LONG_SEQUENCES = 32, 256, 8


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


def lengths(rows: np.ndarray) -> np.ndarray:
    """Return the lengths of rows, the typical size of what they read; 1 where a row is zero."""
    length = np.linalg.norm(rows, axis=1)
    return np.where(length > 0, length, 1.0)


def output_gates(rnn: GatedRNN, length: int) -> Gates:
    """Split g_out; rows act on h.

    length  of the longest sequence that the network is built for
    """
    weights = read_gated_rnn(rnn)
    m, x = weights.W_out_m, weights.W_out_x
    sizes, tails = zip(*sizes_and_tails(rnn, (m, x), length), strict=True)
    swap = tails[1] < tails[0]
    gate, value = np.where(swap[:, None], x, m), np.where(swap[:, None], m, x)
    size, value_size = np.where(swap, sizes[1], sizes[0]), np.where(swap, sizes[0], sizes[1])
    return Gates(gate, value, size, value_size, np.zeros(len(m), bool), np.arange(len(m)))


def sizes_and_tails(
    rnn: GatedRNN, branches: tuple[np.ndarray, np.ndarray], length: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return each row's typical size, and its largest value over its size at the start.

    The size is a quarter of the largest value in the sample: the root mean square of a Gaussian
    signal, and more than that where tails are heavy or the signal grows.
    """
    rng = np.random.default_rng(0)
    pieces = max(math.ceil(length / PIECE), 1)
    sequences = SEQUENCES if pieces == 1 else LONG_SEQUENCES
    start, largest = None, [np.zeros(len(W)) for W in branches]
    early: list[np.ndarray] = []
    for _ in range(pieces):
        states = gated_rnn_states(rnn, rng.normal(size=(sequences, PIECE, rnn.d_in)), start)
        start = states[:, -1]
        signals = [states @ W.T for W in branches]
        early = early or [np.sqrt(np.mean(s[:, : PIECE // 16] ** 2, axis=(0, 1))) for s in signals]
        peaks = [np.max(np.abs(signal), axis=(0, 1), initial=0) for signal in signals]
        largest = [np.maximum(*pair) for pair in zip(largest, peaks, strict=True)]
    return [
        (np.where(peak > 0, peak / 4, 1.0), peak / np.where(first > 0, first, 1.0))
        for peak, first in zip(largest, early, strict=True)
    ]


@dataclass(frozen=True)
class Pairs:
    """A gated linear unit and the linear map R that turns its outputs into products."""

    W_m: np.ndarray
    W_x: np.ndarray
    R: np.ndarray


def input_pairs(gates: Gates, product: Product, *tags: np.ndarray) -> Pairs:
    """Return the pairs for g_in; R is [neurons, pairs].

    tags  numbers per gate row; rows that share a copy agree in them too
    """
    p, n, neuron = gates.products, product.order, gates.neuron
    first, where = gates.distinct_values(*tags)
    passed = np.flatnonzero(gates.constant)
    rows = np.concatenate([np.tile(p, n), p[first], passed])
    copies = np.zeros((len(first) + len(passed), gates.gate.shape[1]))
    gain = np.concatenate([np.ones(len(rows) - len(passed)), 2 * gates.size[passed]])
    R = np.zeros((1 + max(neuron, default=-1), len(rows)))
    for a, weight in enumerate(product.weights):
        R[neuron[p], a * len(p) + np.arange(len(p))] = weight * gates.size[p]
    R[neuron[p], n * len(p) + where] = -np.sum(product.weights) * gates.size[p]
    R[neuron[passed], n * len(p) + len(first) + np.arange(len(passed))] = 1
    scaled = product.scaled(gates.gate[p] / gates.size[p, None])
    return Pairs(np.concatenate([scaled, copies]), gain[:, None] * gates.value[rows], R)


def output_pairs(gates: Gates, D: np.ndarray, product: Product) -> Pairs:
    """Return the pairs for D g_out; R is [d_out, pairs]."""
    n, weighted = product.order, D * gates.size
    scaled = product.scaled(gates.gate / gates.size[:, None])
    copies = -np.sum(product.weights) * np.eye(len(D))
    return Pairs(
        W_m=np.concatenate([scaled, np.zeros((len(D), gates.gate.shape[1]))]),
        W_x=np.concatenate([np.tile(gates.value, (n, 1)), weighted @ gates.value]),
        R=np.hstack([*(weight * weighted for weight in product.weights), copies]),
    )
