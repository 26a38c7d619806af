"""Weights to weights: attention into every recurrent layer, and back (reverse)."""

from underhood.constructions.compiling import compile as compile
from underhood.constructions.construction import Construction as Construction, Role as Role
from underhood.constructions.impossibility import ImpossibleConstruction as ImpossibleConstruction
from underhood.constructions.target import FORMS as FORMS
from underhood.constructions.targets.decayed_attention import (
    attention_from_linear_rnn as attention_from_linear_rnn,
)
from underhood.constructions.targets.registry import TARGETS as TARGETS
