"""Attention → one Mamba layer, gated RNN → two; attention → one Mamba block; all exact.

In the simplified layer (Appendix B.2, with affine maps) x̃ = [x;1], Δ = 1, A = log λ, and for the
products (value v, key k, query q) of the factors

    B(x̃)_p = (k_p·x̃) v_pᵀ,    C(x̃)_op = 2 D_op (q_p·x̃),    W_side = 0.

The block that is used in practice has channels ±x̃, because silu(u) − silu(−u) = u.
docs/constructions.md has its other weights, and the two layers for a gated RNN.
"""

import numpy as np

from underhood.constructions.construction import Construction, Role, roles_of
from underhood.constructions.sources import gated_rnn
from underhood.constructions.sources.heads import numerical_rank, read_gated_rnn
from underhood.constructions.target import Blueprint
from underhood.constructions.targets.modern.slices import current_only, zero_but
from underhood.layers import GatedRNN, Mamba, MambaBlock, Stack

# exp of it is exactly 0.
FORGET = -1000.0


def build_mamba(plan: Blueprint) -> Construction:
    """Return one simplified layer whose neurons are the memory variables, or two layers."""
    if plan.layers == 1:
        factors = plan.factors(direct_reads=True)
        value, key, query = gated_rnn.triples(factors, plan.source.d_in)
        layer = mamba(
            embed=np.eye(plan.source.d_in + 1),
            decay=factors.decay,
            first=value,
            second=key,
            W_C=factors.D[:, :, None] * query[None],
            b_C=np.zeros_like(factors.D),
        )
        return plan.finish(layer, roles_of("memory", factors.memory_labels))
    rnn, roles = plan.gated_rnn()
    products = roles_of("product", [f"gate[{p}]" for p in range(rnn.gate_width)])
    return plan.finish(two_mamba_layers(rnn), roles + products)


def mamba(
    *,
    embed: np.ndarray,
    decay: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    W_C: np.ndarray,
    b_C: np.ndarray,
) -> Mamba:
    """Return a layer that writes (first x̃)⊙(second x̃) with x̃ = [embed|b][x;1]."""
    # log λ, finite where λ = 0.
    with np.errstate(divide="ignore"):
        log_decay = np.maximum(np.log(decay), FORGET)
    return zero_but(
        Mamba,
        W_input=embed[:, :-1],
        b_input=embed[:, -1],
        b_delta=np.ones(()),
        b_A=log_decay,
        W_B=first[:, :, None] * second[:, None, :],
        # The side gate is σ(0) = ½.
        W_C=2 * W_C,
        b_C=2 * b_C,
    )


def two_mamba_layers(rnn: GatedRNN) -> Stack:
    W_in_m, W_in_x, decay, W_out_m, W_out_x, D = read_gated_rnn(rnn)
    hidden, gated = rnn.neurons, rnn.gate_width
    below = mamba(
        embed=np.eye(rnn.d_in + 1),
        decay=decay,
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
    return Stack(None, [below, above], None)


def reasons_against_block(plan: Blueprint) -> list[str]:
    if plan.attention is None or len(plan.attention.heads) == 1:
        return []
    return ["One Mamba block shares B and C between its channels: one head only."]


def build_block(plan: Blueprint) -> Construction:
    """Return one block after an embedding that appends the 1; it holds x kᵀ whole."""
    layer, roles = block_of_head(plan)
    embed = gated_rnn.append_constant(plan.source.d_in)
    return plan.finish(Stack(embed, [layer], None), roles)


def block_of_head(plan: Blueprint) -> tuple[MambaBlock, tuple[Role, ...]]:
    """Return the block over [x;1], and the roles of its neurons."""
    assert plan.attention is not None
    head, width = plan.attention.heads[0], plan.source.d_in + 1
    U, s, Vt = np.linalg.svd(head.M)
    d_k = numerical_rank(s, head.M.shape, head.eps, head.noise) if np.any(head.W_V) else 0
    matrices = (head.W_V, (U[:, :d_k] * s[:d_k]).T, Vt[:d_k])
    W_V, W_K, W_Q = (gated_rnn.extend(W, plan.source.d_in) for W in matrices)
    fading = bool(np.any(head.decay != 1))
    rows = np.concatenate([np.eye(width), W_V]) if fading else np.eye(width)
    decay = np.concatenate([np.ones(width), head.decay]) if fading else np.ones(width)
    reads = np.hstack([np.zeros((len(W_V), width)), np.eye(len(W_V))]) if fading else W_V
    selects = np.hstack([np.eye(width), np.zeros((width, len(rows) - width))])
    both = np.concatenate([rows, -rows])
    inner = len(both)
    with np.errstate(divide="ignore"):
        A_log = np.clip(np.log(-np.log(decay)), -100, np.log(-FORGET))
    layer = zero_but(
        MambaBlock,
        W_in_u=both,
        W_in_z=gated_rnn.constant_rows(inner, width),
        conv=current_only(4, inner),
        W_x_B=differences(W_K @ selects),
        W_x_C=differences(W_Q @ selects),
        # softplus(log(e − 1)) = 1.
        b_dt=np.full(inner, np.log(np.expm1(1.0))),
        A_log=np.repeat(np.tile(A_log, 2)[:, None], d_k, axis=1),
        W_out=head.out @ differences(reads) * (1 + np.exp(-1.0)),
    )
    channels = [f"{sign}u[{i}]" for sign in "+-" for i in range(len(rows))]
    roles = roles_of("memory", [f"{channel}k[{j}]" for channel in channels for j in range(d_k)])
    return layer, roles


def differences(rows: np.ndarray) -> np.ndarray:
    """Return rows that read u₊ − u₋."""
    return np.hstack([rows, -rows])
