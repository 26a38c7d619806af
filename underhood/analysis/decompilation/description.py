"""A decompilation for people and programs: facts, rows of tables, matrices to draw."""

from collections import Counter

import numpy as np

from underhood.analysis.decompilation.decompiling import Decompilation
from underhood.common.files import Json
from underhood.common.numbers import finite_or_none
from underhood.constructions.sources.heads import numerical_rank
from underhood.layers import LinearAttention, MultiHead
from underhood.layers.base.markup import Content, html_picture, html_table

# Facts that have a table of their own, or none.
NOT_IN_VERDICT = ("roles", "certificate", "W_V", "M", "W_O", "each")


def decompilation_facts(result: Decompilation, radius: float, time: int) -> Json:
    """Return plain numbers and words; `bound` is for |x| ≤ radius and at most `time` tokens."""
    attention, certificate = result.attention, result.certificate
    return {
        "verdict": result.verdict,
        "is_attention": result.is_attention,
        "reason": result.reason,
        "promise": result.promise(radius),
        "horizon": result.horizon(radius),
        "residual": result.residual,
        "tolerance": result.tolerance,
        "roles": dict(Counter(role.kind for role in result.neurons)),
        "d_in": attention.d_in,
        "d_out": attention.d_out,
        "heads": len(result.heads),
        **head_facts(attention),
        "radius": radius,
        "time": time,
        "bound": finite_or_none(certificate.bound(radius, time)),
        "rounding": finite_or_none(certificate.rounding(radius, time)),
        "certificate": certificate.facts(),
    }


def head_facts(attention: LinearAttention | MultiHead) -> Json:
    """Return ranks, biases, decay and matrices of one head; of several, a list of them and W_O."""
    if isinstance(attention, MultiHead):
        W_O = None if attention.W_O is None else np.asarray(attention.W_O).tolist()
        return {"each": [head_facts(head) for head in attention.heads], "W_O": W_O}
    V, K, Q = (np.asarray(W) for W in (attention.W_V, attention.W_K, attention.W_Q))
    values = np.linalg.svd(V, compute_uv=False)
    return {
        "rank_V": numerical_rank(values, V.shape, float(np.finfo(float).eps)),
        "rank_M": len(K),
        "biases": attention.b_V is not None,
        "decay": None if attention.decay is None else np.asarray(attention.decay).tolist(),
        "W_V": V.tolist(),
        "M": (K.T @ Q).tolist(),
    }


def rows(facts: Json) -> list[list[Json]]:
    """Return three tables: the verdict, the roles, and the shares of the function."""
    verdict = [
        {"fact": name, "value": value}
        for name, value in facts.items()
        if name not in NOT_IN_VERDICT and value is not None
    ]
    roles = [{"role": kind, "neurons": count} for kind, count in facts["roles"].items()]
    certificate = facts["certificate"]
    shares = [
        {
            "part": f"{kind} {part}".strip(),
            "of the function": share,
            "not explained": certificate[f"left_{name}"][part],
        }
        for kind, name in (("degree", "degrees"), ("", "groups"))
        for part, share in certificate[name].items()
    ]
    return [table for table in (verdict, roles, shares) if table]


def decompilation_html(result: Decompilation) -> str:
    """Return the verdict, the roles and the matrices for a notebook."""
    roles = Counter(role.kind for role in result.neurons)
    facts: dict[str, Content] = {
        "verdict": result.verdict,
        "reason": result.reason,
        "residual": result.residual,
        "tolerance": result.tolerance,
        "heads": len(result.heads),
        **{f"{kind} neurons": count for kind, count in roles.items()},
    }
    verdict = html_table("Decompilation", [{"fact": n, "value": v} for n, v in facts.items()])
    drawn: list[dict[str, Content]] = [
        {"matrix": name, "shape": " × ".join(map(str, W.shape)), "picture": html_picture(name, W)}
        for name, W in matrices(result)
    ]
    return verdict.text + html_table("Attention", drawn).text


def matrices(result: Decompilation) -> list[tuple[str, np.ndarray]]:
    """Return W_V and M = W_KᵀW_Q of every head, with biases as last column and row, and W_O."""
    several = isinstance(result.attention, MultiHead)
    named = []
    for number, head in enumerate(result.heads):
        width = head.d_in + (head.b_V is not None)
        V, K, Q = (W[:, :width] for W in head.augmented())
        prefix = f"head {number + 1}: " if several else ""
        named += [(f"{prefix}W_V", V), (f"{prefix}M = W_KᵀW_Q", K.T @ Q)]
    if isinstance(result.attention, MultiHead) and result.attention.W_O is not None:
        named.append(("W_O", np.asarray(result.attention.W_O)))
    return [(name, W) for name, W in named if W.size]
