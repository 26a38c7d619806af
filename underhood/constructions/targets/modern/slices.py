"""Attention as slices: value rows of one head that share a decay, each for one head of a mixer.

A mixer's nonlinearities are made linear by small signals. With ε → 0

    silu(εu) = εu/2 (1 + O(ε))      εu/√(|εu|² + eps) = εu/√eps (1 + O(ε²)), for every norm

and the readout divides by what is left. All of it is products, so a small ε costs no rounding.
`antithetic` removes the O(ε) of silu, which satisfies silu(u) − silu(−u) = u exactly: with
B = (s(k), s(−k)) and C = (s(q), s(−q)) in one head, and C = (s(−q), s(q)) in a second head that the
readout subtracts, s(k)s(q) + s(−k)s(−q) − s(k)s(−q) − s(−k)s(q) = kq.
"""

import math
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from underhood.constructions.construction import Construction, Role
from underhood.constructions.products.product import Limit, Product
from underhood.constructions.sources.gated_rnn import append_constant, extend
from underhood.constructions.sources.heads import Head, numerical_rank
from underhood.constructions.target import Blueprint
from underhood.layers import MLSTM, Layer, Stack
from underhood.layers.base.shapes import annotated_arrays
from underhood.layers.modern.mixer import Mixer

AnyKind = TypeVar("AnyKind", bound=Layer)

# The error of silu is of size ε, so ε is below rounding; ε³ is inside the range of the precision.
SMALL = {np.dtype("float64"): 2.0**-60, np.dtype("float32"): 2.0**-27}


@dataclass(frozen=True)
class Slices:
    """The weights of all slices over [x;1], of equal sizes: rows that are missing are zero.

    V [slices, d_v, width]   K, Q [slices, d_k, width]   decay [slices]   out [d_out, slices, d_v]
    """

    V: np.ndarray
    K: np.ndarray
    Q: np.ndarray
    decay: np.ndarray
    out: np.ndarray

    def __len__(self) -> int:
        return len(self.V)

    @property
    def width(self) -> int:
        return self.V.shape[2]

    @property
    def one_row(self) -> np.ndarray:
        """The row that reads the constant 1."""
        return np.eye(self.width)[-1]

    def gates(self) -> np.ndarray:
        """Return rows [slices, d_v, width] that read the constant 1."""
        return np.broadcast_to(self.one_row, self.V.shape).copy()


def slices_of(plan: Blueprint) -> Slices:
    """Return the slices of the source, with matrices of size one and all scale in `out`."""
    assert plan.attention is not None
    pieces = [piece for head in plan.attention.heads for piece in head_slices(head, plan)]
    d_v = max((len(V) for V, *_ in pieces), default=1)
    d_k = max((len(K) for _, K, *_ in pieces), default=1)
    width = plan.source.d_in + 1
    count = max(len(pieces), 1)
    made = Slices(
        np.zeros((count, d_v, width)),
        np.zeros((count, d_k, width)),
        np.zeros((count, d_k, width)),
        np.ones(count),
        np.zeros((plan.attention.d_out, count, d_v)),
    )
    for number, (V, K, Q, decay, out) in enumerate(pieces):
        made.V[number, : len(V)], made.K[number, : len(K)] = V, K
        made.Q[number, : len(Q)], made.decay[number] = Q, decay
        made.out[:, number, : len(V)] = out
    return made


def head_slices(head: Head, plan: Blueprint) -> list[tuple]:
    """Return (V, K, Q, decay, out) for every decay of a head."""
    U, s, Vt = np.linalg.svd(head.M)
    rank = numerical_rank(s, head.M.shape, head.eps, head.noise)
    if not rank or not np.any(head.W_V):
        return []
    K, Q = (extend(rows, plan.source.d_in) for rows in (U[:, :rank].T, Vt[:rank]))
    # Singular values relative to the largest, so that no signal is much larger than the tokens.
    K = K * (s[:rank, None] / s[0])
    pieces = []
    for rows, decay in head.groups():
        V = extend(head.W_V[rows], plan.source.d_in)
        size = float(np.linalg.norm(V, 2))
        if size > 0:
            pieces.append((V / size, K, Q, decay, head.out[:, rows] * (size * s[0])))
    return pieces


def antithetic(slices: Slices) -> Slices:
    """Return two slices for each, whose silus cancel but for their odd part."""

    def signed(*parts: np.ndarray) -> np.ndarray:
        return np.concatenate(parts, axis=1)

    V, K, Q, out = slices.V, slices.K, slices.Q, slices.out
    return Slices(
        np.concatenate([signed(V, -V)] * 2),
        np.concatenate([signed(K, -K)] * 2),
        np.concatenate([signed(Q, -Q), signed(-Q, Q)]),
        np.tile(slices.decay, 2),
        np.concatenate(
            [np.concatenate([sign * out, -sign * out], axis=2) for sign in (1, -1)], axis=1
        ),
    )


def centred_values(slices: Slices) -> Slices:
    """Return slices with values ±v, whose mean is zero, for norms that remove the mean."""
    V = np.concatenate([slices.V, -slices.V], axis=1)
    out = np.concatenate([slices.out, -slices.out], axis=2) / 2
    return Slices(V, slices.K, slices.Q, slices.decay, out)


def repeated(slices: Slices, decays: np.ndarray, length: int, dtype: np.dtype) -> Slices:
    """Return every slice once for each of several fixed decays, weighted to its decay.

    decays  [copies, slices]: head h of the layer has the decay decays.ravel()[h]
    length  of the sequences for which Σ_a c_a γ_a^τ = λ^τ is fitted
    dtype   of the layer: the decays are rounded to it, and large c_a amplify its rounding
    """
    copies = len(decays)
    decays = decays.astype(dtype).astype(float)
    outs = []
    for number, decay in enumerate(slices.decay):
        weights = fit_decay(decay, decays[:, number], length, dtype)[0]
        outs.append(slices.out[:, number, None] * weights[None, :, None])
    d_out, _, d_v = slices.out.shape
    out = np.stack(outs, axis=2).reshape(d_out, copies * len(slices), d_v)
    V, K, Q = (np.tile(part, (copies, 1, 1)) for part in (slices.V, slices.K, slices.Q))
    return Slices(V, K, Q, decays.ravel(), out)


def fit_decay(
    decay: float, decays: np.ndarray, length: int, dtype: np.dtype
) -> tuple[np.ndarray, float]:
    """Return weights c with Σ_a c_a γ_a^τ = λ^τ for τ < length, and the largest difference."""
    lags = np.arange(length)
    powers = decays ** lags[:, None]
    # Rounding adds eps·|c| at every lag, and several times as much where a kernel sums blocks of
    # tokens, so it is part of what is minimised.
    price = 8 * math.sqrt(length) * float(np.finfo(dtype).eps) * np.eye(len(decays))
    asked = np.concatenate([decay**lags, np.zeros(len(decays))])
    weights = np.linalg.lstsq(np.concatenate([powers, price]), asked, rcond=1e-16)[0]
    return weights, float(np.max(np.abs(powers @ weights - decay**lags)))


def log_rate(decay: np.ndarray) -> np.ndarray:
    """Return log(−log λ): −inf for a decay of exactly 1 and +inf for 0."""
    with np.errstate(divide="ignore"):
        return np.log(-np.log(decay))


def current_only(width: int, *shape: int) -> np.ndarray:
    """Return a kernel that passes the current token on."""
    kernel = np.zeros((width, *shape))
    kernel[-1] = 1
    return kernel


def zero_but(kind: type[AnyKind], **given: Any) -> AnyKind:  # Any: arrays, and settings like eps
    """Return a layer whose arrays are zero where they are not given; projections have rank 1."""
    arrays, sizes = annotated_arrays(kind), {"rank": 1}
    for array in arrays:
        if given.get(array.field) is not None:
            sizes |= zip(array.dimensions, given[array.field].shape, strict=True)
    zero = {
        array.field: np.zeros([sizes[axis] for axis in array.dimensions])
        for array in arrays
        if array.field not in given
    }
    return kind(**zero, **given)


def mixer_network(
    plan: Blueprint, layer: Mixer | MLSTM, limit: Limit | Product | None
) -> Construction:
    """Put a mixer behind an embedding that appends the constant 1."""
    heads, d_k, d_v = layer.heads, layer.d_k, layer.d_v
    roles = tuple(
        Role("memory", f"head{h}.k[{j}]v[{i}]")
        for h in range(heads)
        for j in range(d_k)
        for i in range(d_v)
    )
    needs_x64 = limit is not None and plan.dtype == np.float64
    stack = Stack(append_constant(plan.source.d_in), [layer], None, needs_x64=needs_x64)
    return plan.finish(stack, roles, limit)


def small_signal(plan: Blueprint, order: int) -> Limit:
    """Return ε, as it was asked for or below rounding, and its order."""
    epsilon = SMALL[plan.dtype] if plan.epsilon is None else plan.epsilon
    return Limit(order, epsilon)
