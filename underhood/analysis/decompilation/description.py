"""A decompilation for people and programs: facts, rows of tables, matrices to draw."""

from collections import Counter
from typing import Any

import numpy as np

from underhood.analysis.decompilation.decompiling import Decompilation


def decompilation_facts(found: Decompilation, radius: float, time: int) -> dict[str, Any]:
    """Plain numbers and words; `bound` is for tokens up to `radius`, `time` of them."""
    attention, certificate = found.attention, found.certificate
    return {
        "is_attention": found.is_attention,
        "reason": found.reason,
        "residual": found.residual,
        "tolerance": found.tolerance,
        "roles": dict(Counter(role.kind for role in found.neurons)),
        "d_in": attention.d_in,
        "d_out": attention.d_out,
        "rank_V": rank(attention.W_V),
        "rank_M": len(attention.W_K),
        "biases": attention.b_V is not None,
        "decay": None if attention.decay is None else np.asarray(attention.decay).tolist(),
        "radius": radius,
        "time": time,
        "bound": finite(certificate.bound(radius, time)),
        "rounding": finite(certificate.rounding(radius, time)),
        "certificate": certificate.facts(),
        "W_V": np.asarray(attention.W_V).tolist(),
        "M": (np.asarray(attention.W_K).T @ np.asarray(attention.W_Q)).tolist(),
    }


def finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if np.isfinite(value) else None


def rank(matrix: Any) -> int:
    """DESIGN's rank: singular values above max(shape)·eps·σ₁."""
    return int(np.linalg.matrix_rank(np.asarray(matrix))) if np.size(matrix) else 0


def rows(told: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Three tables: the verdict, the roles, and the shares of the function."""
    skipped = ("roles", "certificate", "W_V", "M")
    verdict = [
        {"fact": name, "value": value}
        for name, value in told.items()
        if name not in skipped and value is not None
    ]
    roles = [{"role": kind, "neurons": count} for kind, count in told["roles"].items()]
    certificate = told["certificate"]
    shares = [
        {"part": part, "of the function": share, "of it left over": left[key]}
        for kind, whole, left in (
            ("degree", certificate["degrees"], certificate["left_degrees"]),
            ("", certificate["groups"], certificate["left_groups"]),
        )
        for key, share in whole.items()
        for part in [f"{kind} {key}".strip()]
    ]
    return [table for table in (verdict, roles, shares) if table]


def matrices(found: Decompilation) -> list[tuple[str, np.ndarray]]:
    """W_V and M = W_KᵀW_Q, with their biases as last column and row."""
    attention = found.attention
    V, K, Q = (
        np.asarray(W) if b is None else np.hstack([np.asarray(W), np.asarray(b)[:, None]])
        for W, b in (
            (attention.W_V, attention.b_V),
            (attention.W_K, attention.b_K),
            (attention.W_Q, attention.b_Q),
        )
    )
    return [(name, one) for name, one in (("W_V", V), ("M = W_KᵀW_Q", K.T @ Q)) if one.size]
