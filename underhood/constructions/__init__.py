"""Weights to weights: attention into every recurrent layer, and back (reverse)."""

from underhood.constructions.compiling import compile
from underhood.constructions.construction import Construction, Role
from underhood.constructions.impossibility import ImpossibleConstruction
from underhood.constructions.target import FORMS
from underhood.constructions.targets.decayed_attention import attention_from_linear_rnn
from underhood.constructions.targets.registry import TARGETS

__all__ = [
    "FORMS",
    "TARGETS",
    "Construction",
    "ImpossibleConstruction",
    "Role",
    "attention_from_linear_rnn",
    "compile",
]
