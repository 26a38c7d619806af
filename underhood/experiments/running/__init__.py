"""Running experiments and judging what they give."""

from underhood.experiments.running.outcomes import Outcome
from underhood.experiments.running.setting import Setting

__all__ = ["Outcome", "Setting"]
