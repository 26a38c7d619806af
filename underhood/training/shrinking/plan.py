"""`Shrinking`: a short wide recipe, a smaller student, a long narrow recipe.

Coupled weight decay kills most neurons of a wide student in its first two thousand updates, and
from then on they only cost time: `cutting.py` drops them. What remains slow are the decays: ν = −∞
is λ = 1, so Adam needs ever more steps for each digit of 1 − λ. So decays near 0 and 1 are set to 0
and 1, as `fit` does. Then the loss over a fixed set of sequences and its gradient cost less than a
batch (`settled_loss.py`), and have no noise. docs/discovery.md has the measurements.
"""

from dataclasses import dataclass

from underhood.common.errors import kind_of, refuse
from underhood.common.numbers import share_problems, whole_problems
from underhood.training.recipes import Adam, Exponential, Recipe

# `Shrinking.fast`: updates in all, how many of them are wide, and sequences per batch.
SHRINKING_STEPS = 72_000
WIDE_SHARE = 36
SMALL_BATCH = 16
# Sequences that the second recipe takes exact gradients over. Surplus neurons help gradients, so
# little is cut before it.
FIXED_SEQUENCES = 2_000
GENTLE = 1e-5


@dataclass(frozen=True)
class Shrinking:
    """Two recipes, and how the student shrinks between them; `train` takes it as a recipe.

    wide       for the students that make_student gives
    narrow     for what is left of them; the optimiser starts anew
    tolerance  largest change of the outputs when neurons are dropped: the size of the difference
               over the size of the outputs, on sequences of the task
    settle     a λ within this distance of 0 or 1 becomes 0 or 1 and stays there; 0.5: all do,
               0: none does. Use 0 where memory should fade
    sequences  None: narrow draws a batch at every update. A number: each update follows the exact
               gradient over so many sequences, drawn once. For squared errors that can fall to
               zero, few inputs, and settle=0.5
    """

    wide: Recipe
    narrow: Recipe
    tolerance: float = 1e-2
    settle: float = 0.5
    sequences: int | None = None

    def __post_init__(self) -> None:
        recipes = {"wide": self.wide, "narrow": self.narrow}
        problems = [
            f"{name} is {kind_of(recipe)}; give a Recipe"
            for name, recipe in recipes.items()
            if not isinstance(recipe, Recipe)
        ]
        refuse(problems, about="Shrinking")
        problems = share_problems(tolerance=self.tolerance, settle=self.settle)
        if not problems and self.settle > 0.5:
            problems = [f"settle is {self.settle}; give 0.5 or less"]
        if self.sequences is not None:
            problems += whole_problems(sequences=self.sequences)
            if not problems and self.settle < 0.5:
                problems = ["sequences needs every decay at 0 or 1; use settle=0.5"]
        if self.wide.precision != self.narrow.precision:
            problems.append("wide and narrow have different precisions; use the same for both")
        refuse(problems, about="Shrinking")

    @classmethod
    def fast(
        cls,
        steps: int = SHRINKING_STEPS,
        *,
        sequences: int | None = FIXED_SEQUENCES,
        precision: str = "float32",
    ) -> "Shrinking":
        """Return a recipe for students of 100 neurons that reaches the paper's loss in 20 s.

        docs/discovery.md has the numbers.

        steps      of both recipes together; one in 36 of them is wide
        sequences  None: the second recipe draws batches, as for tasks with more than eight inputs
        """
        wide = max(steps // WIDE_SHARE, 1)
        # The first tenth of `Recipe.fast`, where decay is strong, on small batches.
        return cls(
            wide=Recipe.fast(10 * wide, batch=SMALL_BATCH, precision=precision).first(wide),
            narrow=Recipe(
                steps=max(steps - wide, 1),
                batch=SMALL_BATCH,
                learning_rate=2e-2,
                schedule=Exponential(end=5e-4),
                optimiser=Adam(b2=0.99),
                clip=1.0,
                precision=precision,
            ),
            tolerance=GENTLE,
            sequences=sequences,
        )

    @property
    def steps(self) -> int:
        return self.wide.steps + self.narrow.steps
