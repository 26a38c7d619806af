"""Compiled gated RNNs run token by token with sparse weights, many sequences side by side.

Nearly all weights of a compiled memory are zero: a gate reads one key number and one value number.
Products with the zeros would take a thousand times longer than the recurrence itself. Weights,
recurrence and precision are the layer's own; only the zeros are left out.

Arrays are [neurons, sequences], so that a row of weights moves whole rows.
"""

from collections.abc import Sequence
from typing import TypeGuard

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse

from underhood.layers import GatedRNN, Layer, SideGatedRNN
from underhood.recall.codes import Codes
from underhood.tasks.mqar import EMPTY, MQAR, NOT_SCORED

# Sequences that run at once: the states of the largest memory still fit a processor's cache.
SEQUENCES_AT_ONCE = 32

SideBySide = Float[np.ndarray, "_ sequences"]


class SparseWeights:
    """A matrix as its nonzero entries."""

    def __init__(self, W: np.ndarray):
        W = np.asarray(W)
        self.matrix = sparse.csr_array(W)
        counts = np.diff(self.matrix.indptr)
        # Rows with one entry each move rows of x, which is faster than a product.
        self.places = self.matrix.indices if np.all(counts == 1) else None
        entries = self.matrix.data[:, None]
        self.entries = None if np.all(entries == 1) else entries

    def __matmul__(self, x: SideBySide) -> SideBySide:
        if self.places is None:
            return self.matrix @ x
        moved = np.take(x, self.places, axis=0)
        return moved if self.entries is None else self.entries * moved


class SparseLayer:
    """A gated or side-gated RNN with its state, for some sequences at once."""

    def __init__(self, layer: GatedRNN | SideGatedRNN, sequences: int, dtype: str):
        self.side = isinstance(layer, SideGatedRNN)
        names = ("W_in_m", "W_in_x", *(("W_side",) if self.side else ("W_out_m", "W_out_x")), "D")
        self.weights = {
            name: SparseWeights(np.asarray(getattr(layer, name), dtype)) for name in names
        }
        decay = np.asarray(layer.decay, dtype)
        self.fading = np.flatnonzero(decay != 1)
        self.decay = decay[self.fading][:, None]
        self.state = np.zeros((len(decay), sequences), dtype)

    def reset(self) -> None:
        self.state[:] = 0

    def update(self, x: SideBySide) -> SideBySide:
        """Let the state take in a token of every sequence; return what `read` needs of it."""
        u = x if self.side else np.vstack([x, np.ones_like(x[:1])])
        written = self.weights["W_in_m"] @ u
        written *= self.weights["W_in_x"] @ u
        self.state[self.fading] *= self.decay
        self.state += written
        return u

    def read(self, u: SideBySide) -> SideBySide:
        """Return the outputs for the state and the token that was last taken in."""
        if self.side:
            return self.weights["D"] @ (self.state * (self.weights["W_side"] @ u))
        gates = self.weights["W_out_m"] @ self.state
        gates *= self.weights["W_out_x"] @ self.state
        return self.weights["D"] @ gates


def runs_sparse(layers: tuple[Layer, ...]) -> TypeGuard[tuple[GatedRNN | SideGatedRNN, ...]]:
    """Tell whether these layers can run here."""
    return all(isinstance(layer, GatedRNN | SideGatedRNN) for layer in layers)


def sparse_shares(
    layers: Sequence[GatedRNN | SideGatedRNN],
    embeddings: Float[np.ndarray, "symbols d"],
    codes: Codes,
    task: MQAR,
    symbols: Int[np.ndarray, "batch time *pair"],
    labels: Int[np.ndarray, "batch time"],
    *,
    dtype: str,
) -> Float[np.ndarray, " batch"]:
    """Return the share of right answers of each sequence."""
    # A row of zeros for the empty half of a stacked token.
    table = np.vstack([embeddings, 0 * embeddings[:1]]).astype(dtype)
    W, b = codes.W.astype(dtype), codes.b.astype(dtype)[:, None]
    at_once = min(SEQUENCES_AT_ONCE, len(symbols))
    run = [SparseLayer(layer, at_once, dtype) for layer in layers]
    answers = labels if task.stacked else labels - task.half
    scored = labels != NOT_SCORED
    right = np.zeros(len(symbols))
    for first in range(0, len(symbols), at_once):
        # The last group begins earlier, so that all groups are of one size.
        start = min(first, len(symbols) - at_once)
        group = slice(start, start + at_once)
        right[group] = count_right(
            run, table, W, b, task, symbols[group], answers[group], scored[group]
        )
    return right / task.pairs


def count_right(
    run: Sequence[SparseLayer],
    table: Float[np.ndarray, "symbols d"],
    W: Float[np.ndarray, "all_values dv"],
    b: Float[np.ndarray, "all_values 1"],
    task: MQAR,
    symbols: Int[np.ndarray, "sequences time *pair"],
    answers: Int[np.ndarray, "sequences time"],
    scored: Bool[np.ndarray, "sequences time"],
) -> Int[np.ndarray, " sequences"]:
    """Run some sequences side by side, and count the right answers of each."""
    *before, memory = run
    for layer in run:
        layer.reset()
    right = np.zeros(len(symbols), int)
    for time in range(task.length):
        x = np.ascontiguousarray(token_codes(table, symbols[:, time], task).T)
        for layer in before:
            x = layer.read(layer.update(x))
        x = memory.update(x)
        asks = np.flatnonzero(scored[:, time])
        if len(asks):
            chosen = np.argmax(W @ memory.read(x)[:, asks] + b, axis=0)
            right[asks] += chosen == answers[asks, time]
    return right


def token_codes(
    table: Float[np.ndarray, "symbols d"], symbols: np.ndarray, task: MQAR
) -> Float[np.ndarray, "sequences d"]:
    """Return the codes of a token; stacked, the sum of a key's and a value's."""
    if not task.stacked:
        return table[symbols]
    key, value = symbols.T
    return table[key] + table[np.where(value == EMPTY, -1, task.half + value)]
