"""Why a request cannot be met: all reasons at once, each with what to change."""

from typing import Any

from underhood.common.errors import BadInput
from underhood.constructions.impossibility import ImpossibleConstruction
from underhood.constructions.sources.heads import Attention
from underhood.constructions.targets import mlp
from underhood.constructions.targets.registry import Target
from underhood.constructions.targets.request import FORMS, Request


def refuse_source(source: Any, target: str) -> None:
    """Say why this is no source."""
    name = type(source).__name__
    if name in ("MultiheadAttention", "MultiHeadAttention", "MultiHeadDotProductAttention"):
        raise ImpossibleConstruction(
            f"{name} → {target}",
            [
                "Softmax attention keeps every past token and weighs it by exp(k·q), which no "
                "state of fixed size can hold.",
                "Give its matrices to LinearAttention if the linear part is what you are after.",
            ],
        )
    raise BadInput(f"compile takes a LinearAttention, a MultiHead or a GatedRNN, not a {name}.")


def reasons_against(request: Request, target: str, kind: Target) -> list[str]:
    """Everything that stands against a request."""
    reasons = []
    attention = request.attention
    possible = kind.from_gated_rnn if attention is None else kind.from_attention
    if not possible:
        reasons.append(
            "The source is a gated RNN already."
            if target == "gated_rnn"
            else "A gated RNN has an output gate over two state vectors, which this target lacks."
        )
    elif request.layers is not None and request.layers not in possible:
        counts = " or ".join(map(str, possible))
        reasons.append(f"It takes {counts} layer{'s' * (possible != (1,))}, not {request.layers}.")
    if attention is None and request.form is not None:
        reasons.append("form= says how attention is written as products; a gated RNN has its own.")
    if not kind.linearised:
        named = [n for n in ("order", "epsilon") if getattr(request, n) is not None]
        if named:
            reasons.append(f"The target is exact, so {' and '.join(named)} cannot be set.")
    if request.activation is not None and target != "lru_in_out_mlp":
        reasons.append("activation= belongs to lru_in_out_mlp.")
    piecewise = target == "lru_in_out_mlp" and request.activation in mlp.PIECEWISE_LINEAR
    if piecewise and not (attention is not None and is_zero(attention)):
        reasons.append(
            f"An output of the layer with {request.activation} is a piecewise linear function of "
            "the tokens, so linear on some open set. Attention is a homogeneous cubic polynomial "
            "of them and Eq. 2 in general a quartic, which are linear on no open set unless they "
            "are zero. A smooth activation works to any accuracy: "
            f"use activation={' or '.join(map(repr, mlp.SMOOTH))}."
        )
    if attention is not None:
        reasons += reasons_against_attention(request, attention, target, kind)
    return reasons


def is_zero(attention: Attention) -> bool:
    """Whether every output is zero, which any network can compute."""
    return len(FORMS["minimal"](attention, True).values) == 0


def reasons_against_attention(
    request: Request, attention: Attention, target: str, kind: Target
) -> list[str]:
    """What the source's biases, decay and heads stand against."""
    reasons = []
    if attention.biased and target == "side_gated_rnn":
        reasons.append("Side gating has no constant input that could carry b_V, b_K or b_Q.")
    if attention.fades and target == "gru" and request.layers == 1:
        reasons.append(
            "One GRU layer only sums (λ = 1), so the source must not decay; use layers=2."
        )
    if target == "mamba_block" and len(attention.heads) > 1:
        reasons.append("One Mamba block shares B and C between its channels: one head only.")
    if request.form is not None and not kind.has_forms:
        reasons.append("form= has no meaning for this target, which holds x kᵀ whole.")
    elif request.form == "compact":
        try:
            FORMS["compact"](attention, True)
        except ImpossibleConstruction as refusal:
            reasons += refusal.reasons
    return reasons
