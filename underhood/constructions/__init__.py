"""Weights to weights: attention into every recurrent layer, and back (reverse)."""

from underhood.constructions.compile import compile
from underhood.constructions.construction import Construction, Role
from underhood.constructions.errors import ImpossibleConstruction
from underhood.constructions.request import FORMS
from underhood.constructions.reverse import attention_from_linear_rnn
from underhood.constructions.targets import TARGETS

__all__ = [
    "FORMS",
    "TARGETS",
    "Construction",
    "ImpossibleConstruction",
    "Role",
    "attention_from_linear_rnn",
    "compile",
]
