"""Attention as a gated RNN (Section 3, Appendix A.1), and rows that act on [x;1].

The factors y_t = D((R_m m_t) ⊙ (R_q q_t)) of `factors.py` are the network:

neurons        decay  W_in_x     W_in_m        W_out_x  W_out_m
memory m_p     λ_p    value_p    key_p         R_m      0
queries q_j    0      Q_j        the constant  0        R_q

The constant 1 that the layer appends to x carries the queries in, and biases too. Most targets that
cannot hold attention directly compile this network instead.
"""

import numpy as np

from underhood.constructions.sources.factors import Factors, power_of_two
from underhood.constructions.sources.heads import read_gated_rnn
from underhood.layers import Affine, GatedRNN


def gated_rnn_from(factors: Factors, d_in: int) -> GatedRNN:
    """Return the network whose neurons are the memory variables and then the queries."""
    n, r = len(factors.values), len(factors.queries)
    products = len(factors.D.T)
    return GatedRNN(
        W_in_m=np.concatenate([extend(factors.keys, d_in), constant_rows(r, d_in + 1)]),
        W_in_x=np.concatenate([extend(factors.values, d_in), extend(factors.queries, d_in)]),
        decay=np.concatenate([factors.decay, np.zeros(r)]),
        W_out_m=np.hstack([np.zeros((products, n)), factors.R_q]),
        W_out_x=np.hstack([factors.R_m, np.zeros((products, r))]),
        D=factors.D,
    )


def normalised_rnn(rnn: GatedRNN) -> GatedRNN:
    """Return the same function with gates of size one and all scale in D, by powers of two."""
    W_in_m, W_in_x, decay, W_out_m, W_out_x, D = read_gated_rnn(rnn)
    m, x = power_of_two(W_in_m), power_of_two(W_in_x)
    W_out_m, W_out_x = m * x * W_out_m, m * x * W_out_x
    out_m, out_x = power_of_two(W_out_m), power_of_two(W_out_x)
    return GatedRNN(
        W_in_m=W_in_m / m,
        W_in_x=W_in_x / x,
        decay=decay,
        W_out_m=W_out_m / out_m,
        W_out_x=W_out_x / out_x,
        D=out_m * out_x * D,
    )


def triples(factors: Factors, d_in: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return value, key and query of each product as rows over [x;1]; R_m must be I."""
    value, key = extend(factors.values, d_in), extend(factors.keys, d_in)
    return value, key, extend(factors.R_q @ factors.queries, d_in)


def extend(rows: np.ndarray, d_in: int) -> np.ndarray:
    """Return rows over [x;1]; the last column is zero if the source has no biases."""
    return np.pad(rows, ((0, 0), (0, d_in + 1 - rows.shape[1])))


def constant_rows(count: int, width: int, value: float = 1.0) -> np.ndarray:
    """Return rows that read nothing but the constant in the last column."""
    rows = np.zeros((count, width))
    rows[:, -1] = value
    return rows


def append_constant(d_in: int) -> Affine:
    """Return the map x ↦ [x;1]."""
    return Affine(np.eye(d_in + 1, d_in), np.eye(d_in + 1)[d_in])
