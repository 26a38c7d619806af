"""How weights are found: recipes, ensembles, storage and resume."""

from underhood.training.evaluation import evaluate
from underhood.training.recipes import Adam, Constant, Cosine, Fade, First, Recipe, Schedule
from underhood.training.run import Run
from underhood.training.training import train

__all__ = ["Adam", "Constant", "Cosine", "Fade", "First", "Recipe", "Run", "Schedule"]
__all__ += ["evaluate", "train"]
