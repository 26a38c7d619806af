"""minGRU holds no attention, not even in a limit.

Its state is diagonal and read linearly, with no gate of x_t behind it. So the part of y_3 that
depends on x_1 is Σ_j c_j F_j(x_1) a_j(x_2) a_j(x_3), with a = 1 − z. It does not change if x_2 and
x_3 change places. Attention's part, v_1 (k_1·q_3), does unless it is zero. Functions with this
symmetry are a closed set, so no limit leaves it. docs/modern.md has a computed example.
"""

from typing import NoReturn

import numpy as np

from underhood.constructions.sources.heads import Attention
from underhood.constructions.target import Blueprint

SYMMETRY = (
    "A minGRU has a diagonal state without a gate behind it: what the first of three tokens adds "
    "to the output stays the same if the other two change places. Attention's v₁(k₁·q₃) does not, "
    "unless it is zero or its query is constant. So one layer cannot come near it even in a limit; "
    "uh.can(source, 'min_gru') tells whether this holds for a source."
)


# A term this small beside its factors is zero up to rounding.
SMALLEST_TERM = 1e-9


def largest(values: np.ndarray) -> float:
    return float(np.max(np.abs(values), initial=0.0))


def breaks_swap_symmetry(attention: Attention) -> bool:
    """Tell whether what x_1 adds to y_3 changes if x_2 and x_3 change places.

    The change is (v_1 k_1 − v_0 k_0)·(q_3 − q_2), where v_0 and k_0 are the biases. It is written
    without them, so that large biases do not hide it.
    """
    x, step = np.random.default_rng(0).normal(size=(2, attention.d_in))
    total, size = np.zeros(attention.d_out), 0.0
    for head in attention.heads:
        split = (np.split(W, [attention.d_in], axis=1) for W in (head.W_V, head.W_K, head.W_Q))
        (V, b_V), (K, b_K), (Q, _) = split
        v, k, q, base = V @ x, K @ x, Q @ step, b_V.sum(axis=1)
        parts = ((v, k + b_K.sum(axis=1)), (base, k))
        kept = head.out * head.decay**2
        total = total + sum(kept @ value * (key @ q) for value, key in parts)
        size += sum(largest(kept @ value) * largest(key) * largest(q) for value, key in parts)
    return largest(total) > SMALLEST_TERM * size


def swap_symmetry(plan: Blueprint) -> list[str]:
    """List the reason."""
    return [SYMMETRY]


def refuse_min_gru(plan: Blueprint) -> NoReturn:
    """Never run: every plan is refused before."""
    raise AssertionError("minGRU is refused by its plan")
