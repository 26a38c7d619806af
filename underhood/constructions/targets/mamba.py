"""Attention → one Mamba layer, gated RNN → two, and attention → one Mamba block; all exact.

The simplified layer (Appendix B.2, with affine maps): x̃ = [x;1], Δ = 1, A = log λ, and
B(x̃) x̃ multiplies two linear forms of the input, which is an input gate. For the products
(value v, key k, query q) of the factors

B(x̃)_p = (k_p·x̃) v_pᵀ,  C(x̃)_op = 2 D_op (q_p·x̃),  W_side = 0,

where the 2 undoes the side gate σ(0) = ½. The query goes through C. For Eq. 2 two layers are
needed, as the paper says: the first has B from W_in and C = 2I, the second forgets at once
(A = −1000, exp A = 0), multiplies the two branches of W_out in its B, and reads with C = 2D.

The block of practice has SiLUs on the way, but silu(u) − silu(−u) = u: with channels ±x̃ and the
readout P = [I, −I] it passes x̃ on exactly. Identity convolution, B = W_K P, C = W_Q P, Δ = 1 from
its bias, A_log = −100 (exp(−exp(−100)) is 1 to the last bit), D = 0, and a gate z = 1 from the
constant that an embedding appends: channel c sums u_c (k·q), so W_out = W_V P/silu(1) gives
attention. Keys and queries come from the SVD of M, so that the state has rank(M) columns.
Value rows that fade get channels ±v of their own with A = log λ.
"""

import numpy as np

from underhood.constructions.construction import Role
from underhood.constructions.sources.factors import Factors
from underhood.constructions.sources.heads import Attention, rank
from underhood.constructions.targets.gated_rnn import extend
from underhood.constructions.targets.lru import append_constant
from underhood.layers import GatedRNN, Layer, Mamba, MambaBlock, Stack

# exp of it is exactly 0.
FORGET = -1000.0


def log_decay(decay: np.ndarray) -> np.ndarray:
    """log λ, finite where λ = 0."""
    with np.errstate(divide="ignore"):
        return np.maximum(np.log(decay), FORGET)


def mamba(
    *,
    embed: np.ndarray,
    decay: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    W_C: np.ndarray,
    b_C: np.ndarray,
) -> Mamba:
    """A layer that writes (first x̃)⊙(second x̃) with x̃ = [embed|b][x;1]."""
    hidden, inner = first.shape
    return Mamba(
        W_input=embed[:, :-1],
        b_input=embed[:, -1],
        W_delta=np.zeros(inner),
        b_delta=np.ones(()),
        W_A=np.zeros((hidden, inner)),
        b_A=log_decay(decay),
        W_B=first[:, :, None] * second[:, None, :],
        b_B=np.zeros((hidden, inner)),
        # The side gate is σ(0) = ½.
        W_C=2 * W_C,
        b_C=2 * b_C,
        W_side=np.zeros((len(b_C), embed.shape[1] - 1)),
    )


def one_mamba_layer(factors: Factors, d_in: int) -> Mamba:
    """Attention in one layer whose neurons are the memory variables."""
    value, key, query = (
        extend(rows, d_in) for rows in (factors.values, factors.keys, factors.R_q @ factors.queries)
    )
    return mamba(
        embed=np.eye(d_in + 1),
        decay=factors.decay,
        first=value,
        second=key,
        W_C=factors.D[:, :, None] * query[None],
        b_C=np.zeros_like(factors.D),
    )


def two_mamba_layers(rnn: GatedRNN) -> Stack:
    """Eq. 2 in two layers."""
    W_in_m, W_in_x, W_out_m, W_out_x, D = (
        np.asarray(W, np.float64) for W in (rnn.W_in_m, rnn.W_in_x, rnn.W_out_m, rnn.W_out_x, rnn.D)
    )
    hidden, gated = rnn.neurons, rnn.gate_width
    below = mamba(
        embed=np.eye(rnn.d_in + 1),
        decay=np.asarray(rnn.decay, np.float64),
        first=W_in_m,
        second=W_in_x,
        W_C=np.zeros((hidden, hidden, rnn.d_in + 1)),
        b_C=np.eye(hidden),
    )
    above = mamba(
        embed=np.eye(hidden, hidden + 1),
        decay=np.zeros(gated),
        first=W_out_m,
        second=W_out_x,
        W_C=np.zeros((len(D), gated, hidden)),
        b_C=D,
    )
    layers: list[Layer] = [below, above]
    return Stack(None, layers, None)


def mamba_block(source: Attention) -> tuple[Stack, tuple[Role, ...]]:
    """One head of attention in one block of practice, after an embedding that appends the 1."""
    head = source.heads[0]
    U, s, Vt = np.linalg.svd(head.M)
    d_k = rank(s, head.M.shape, head.eps, head.noise) if np.any(head.W_V) else 0
    W_V, W_K, W_Q = (extend(W, source.d_in) for W in (head.W_V, (U[:, :d_k] * s[:d_k]).T, Vt[:d_k]))
    width = source.d_in + 1
    fading = bool(np.any(head.decay != 1))
    rows = np.concatenate([np.eye(width), W_V]) if fading else np.eye(width)
    decay = np.concatenate([np.ones(width), head.decay]) if fading else np.ones(width)
    reads = np.hstack([np.zeros((len(W_V), width)), np.eye(len(W_V))]) if fading else W_V
    selects = np.hstack([np.eye(width), np.zeros((width, len(rows) - width))])
    both = np.concatenate([rows, -rows])
    inner = len(both)
    with np.errstate(divide="ignore"):
        A_log = np.clip(np.log(-np.log(decay)), -100, np.log(-FORGET))
    constant = np.zeros((inner, width))
    constant[:, -1] = 1
    identity = np.zeros((4, inner))
    identity[-1] = 1
    layer = MambaBlock(
        W_in_u=both,
        W_in_z=constant,
        conv=identity,
        b_conv=np.zeros(inner),
        W_x_dt=np.zeros((1, inner)),
        W_x_B=differences(W_K @ selects),
        W_x_C=differences(W_Q @ selects),
        W_dt=np.zeros((inner, 1)),
        # softplus(log(e − 1)) = 1.
        b_dt=np.full(inner, np.log(np.expm1(1.0))),
        A_log=np.repeat(np.tile(A_log, 2)[:, None], d_k, axis=1),
        D=np.zeros(inner),
        W_out=head.out @ differences(reads) * (1 + np.exp(-1.0)),
    )
    roles = [
        Role("memory", f"{sign}u[{i}]k[{j}]")
        for sign in "+-"
        for i in range(len(rows))
        for j in range(d_k)
    ]
    return Stack(append_constant(source.d_in), [layer], None), tuple(roles)


def differences(rows: np.ndarray) -> np.ndarray:
    """Rows that read u₊ − u₋."""
    return np.hstack([rows, -rows])
