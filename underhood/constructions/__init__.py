"""Weights to weights: attention into every recurrent layer, and back (reverse)."""

from underhood.constructions.compiling import compile
from underhood.constructions.construction import Construction, ImpossibleConstruction, Role
from underhood.constructions.targets.decayed_attention import attention_from_linear_rnn
from underhood.constructions.targets.registry import TARGETS
