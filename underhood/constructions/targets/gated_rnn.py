"""Attention → gated RNN (Section 3, Appendix A.1) and side-gated RNN (Appendix A.2).

The factors y_t = D((R_m m_t) ⊙ (R_q q_t)) of `factors.py` are the network:

neurons        decay  W_in_x     W_in_m        W_out_x  W_out_m
memory m_p     λ_p    value_p    key_p         R_m      0
queries q_j    0      Q_j        the constant  0        R_q

The constant 1 that the layer appends to x carries the queries in, and biases too. With a side gate
the queries need no neurons: W_side = R_q Q and R_m must be the identity.
"""

import numpy as np

from underhood.constructions.construction import Role
from underhood.constructions.sources.factors import Factors, power_of_two
from underhood.layers import GatedRNN, SideGatedRNN


def gated_rnn(factors: Factors, d_in: int) -> GatedRNN:
    """The network whose neurons are the memory variables and then the queries."""
    n, r = len(factors.values), len(factors.queries)
    constant = np.zeros((r, d_in + 1))
    constant[:, -1] = 1
    products = len(factors.D.T)
    return GatedRNN(
        W_in_m=np.concatenate([extend(factors.keys, d_in), constant]),
        W_in_x=np.concatenate([extend(factors.values, d_in), extend(factors.queries, d_in)]),
        decay=np.concatenate([factors.decay, np.zeros(r)]),
        W_out_m=np.hstack([np.zeros((products, n)), factors.R_q]),
        W_out_x=np.hstack([factors.R_m, np.zeros((products, r))]),
        D=factors.D,
    )


def extend(rows: np.ndarray, d_in: int) -> np.ndarray:
    """Rows over [x;1], with a last column of zeros where the source has no biases."""
    missing = d_in + 1 - rows.shape[1]
    return np.pad(rows, ((0, 0), (0, missing)))


def side_gated_rnn(factors: Factors) -> SideGatedRNN:
    """The network whose neurons are the memory variables alone."""
    return SideGatedRNN(
        W_in_m=factors.keys,
        W_in_x=factors.values,
        decay=factors.decay,
        W_side=factors.R_q @ factors.queries,
        D=factors.D,
    )


def normalised_rnn(rnn: GatedRNN) -> GatedRNN:
    """The same function with gates of size one and all scale in D, by powers of two."""
    W_in_m, W_in_x, W_out_m, W_out_x, D, decay = (
        np.asarray(W, np.float64)
        for W in (rnn.W_in_m, rnn.W_in_x, rnn.W_out_m, rnn.W_out_x, rnn.D, rnn.decay)
    )
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


def memory_roles(factors: Factors) -> tuple[Role, ...]:
    """A role per memory variable."""
    return tuple(Role("memory", label) for label in factors.memory_labels)


def query_roles(factors: Factors) -> tuple[Role, ...]:
    """A role per query."""
    return tuple(Role("query", label) for label in factors.query_labels)
