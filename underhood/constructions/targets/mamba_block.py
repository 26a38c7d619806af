"""Attention → one Mamba block as it is used in practice; exact.

The block has SiLUs, but silu(u) − silu(−u) = u: with channels ±x̃ and the readout P = [I, −I] it
passes x̃ on exactly. The convolution is the identity, B = W_K P, C = W_Q P, Δ = 1 from its bias,
A_log = −100 (exp(−exp(−100)) is 1 to the last bit), D = 0, and the gate z = 1 comes from the
constant that an embedding appends. Channel c sums u_c (k·q), so W_out = W_V P/silu(1) gives
attention. Keys and queries come from the SVD of M, so that the state has rank(M) columns.
Value rows that fade get channels ±v of their own with A = log λ.
"""

import numpy as np

from underhood.constructions.construction import Construction, Role
from underhood.constructions.products.gates import constant_rows
from underhood.constructions.sources.heads import Attention, numerical_rank
from underhood.constructions.target import Blueprint, Target
from underhood.constructions.targets.gated_rnn import extend
from underhood.constructions.targets.lru import append_constant
from underhood.constructions.targets.mamba import FORGET
from underhood.layers import MambaBlock, Stack


class ToMambaBlock(Target):
    """One block after an embedding that appends the 1; it holds x kᵀ whole."""

    name = "mamba_block"
    from_attention = (1,)
    takes = ()

    def reasons_against(self, plan: Blueprint) -> list[str]:
        if plan.attention is None or len(plan.attention.heads) == 1:
            return []
        return ["One Mamba block shares B and C between its channels: one head only."]

    def build(self, plan: Blueprint) -> Construction:
        assert plan.attention is not None
        return plan.finish(*one_block(plan.attention))


def one_block(source: Attention) -> tuple[Stack, tuple[Role, ...]]:
    head = source.heads[0]
    U, s, Vt = np.linalg.svd(head.M)
    d_k = numerical_rank(s, head.M.shape, head.eps, head.noise) if np.any(head.W_V) else 0
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
    identity = np.zeros((4, inner))
    identity[-1] = 1
    layer = MambaBlock(
        W_in_u=both,
        W_in_z=constant_rows(inner, width),
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
    """Return rows that read u₊ − u₋."""
    return np.hstack([rows, -rows])
