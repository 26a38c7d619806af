"""How weights are found: recipes, ensembles, storage and resume; and second-order fits."""

from underhood.training.evaluation import evaluate
from underhood.training.recipes import (
    Adam,
    Constant,
    Cosine,
    Exponential,
    Fade,
    First,
    Recipe,
    Schedule,
)
from underhood.training.run import Run
from underhood.training.second_order.fitting import Fit, fit
from underhood.training.shrinking.plan import Shrinking
from underhood.training.training import train

__all__ = ["Adam", "Constant", "Cosine", "Fade", "First", "Fit", "Recipe", "Run", "Schedule"]
__all__ += ["Exponential", "Shrinking", "evaluate", "fit", "train"]
