"""How weights are found: optimiser, schedules, weight decay, batches, steps, precision.

One step of a recipe is AdamW as its authors wrote it (Loshchilov and Hutter 2019):

w ← w − schedule(t)·learning_rate·direction − decay_schedule(t)·weight_decay·w

so `weight_decay` is the share of a weight that one step removes at the schedule's peak. optax
multiplies its own weight_decay by the learning rate: optax's 0.1 at 1e-3 is 1e-4 here.
"""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from underhood.common.errors import refuse
from underhood.common.files import Json
from underhood.common.numbers import number_problems, whole_problems
from underhood.training.schedules import Cosine, Fade, First, Schedule

if TYPE_CHECKING:
    import optax

PAPER_STEPS = 1_000_000
# λ in its several parametrisations; the paper lets weight decay touch everything else.
RECURRENT = ("nu", "theta_log", "gamma_log")
# From 1 to 1e-3: the paper's 1e-3 → 1e-6.
PAPER_SCHEDULE = Cosine(end=1e-3)
RECIPE_PRECISIONS = ("float32", "float64")


@runtime_checkable
class Optimiser(Protocol):
    """A frozen dataclass that gives directions."""

    def direction(self) -> "optax.GradientTransformation":
        """Return optax's transformation from gradients to directions."""


@dataclass(frozen=True)
class Adam:
    """Adam's direction (Kingma and Ba 2015)."""

    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8

    def direction(self) -> "optax.GradientTransformation":
        # Here, because optax takes long to import and `import underhood` should not.
        import optax

        return optax.scale_by_adam(self.b1, self.b2, self.eps)


ADAM = Adam()


@dataclass(frozen=True)
class Recipe:
    """Everything about training that is neither the student nor the task.

    length          of the sequences; None: the task's own
    schedule        multiplies learning_rate, decay_schedule multiplies weight_decay
    spared          fields that weight decay leaves alone
    clip            largest norm of the gradient; None: not clipped
    precision       float32 or float64
    """

    steps: int
    batch: int = 64
    length: int | None = None
    learning_rate: float = 1e-3
    schedule: Schedule = PAPER_SCHEDULE
    weight_decay: float = 0.0
    decay_schedule: Schedule = PAPER_SCHEDULE
    spared: tuple[str, ...] = RECURRENT
    optimiser: Optimiser = ADAM
    clip: float | None = None
    precision: str = "float32"

    def __post_init__(self) -> None:
        whole: Json = {"steps": self.steps, "batch": self.batch}
        whole |= {} if self.length is None else {"length": self.length}
        numbers: Json = {"learning_rate": self.learning_rate, "weight_decay": self.weight_decay}
        numbers |= {} if self.clip is None else {"clip": self.clip}
        several, known = not isinstance(self.spared, str), self.precision in RECIPE_PRECISIONS
        directs = hasattr(self.optimiser, "direction") and dataclasses.is_dataclass(self.optimiser)
        checks = {
            "schedule must map progress in [0, 1] to a multiplier": callable(self.schedule),
            "decay_schedule must map [0, 1] to a multiplier": callable(self.decay_schedule),
            "spared is a tuple of field names; write ('nu',) for one": several,
            "optimiser must be a frozen dataclass with a method direction(); see Adam": directs,
            f"precision is {self.precision!r}; use float32 or float64": known,
        }
        problems = [*whole_problems(**whole), *number_problems(**numbers)]
        refuse(problems + [what for what, holds in checks.items() if not holds], about="Recipe")
        # Plain numbers, because a recipe is compared and stored.
        for name, value in (whole | numbers).items():
            object.__setattr__(self, name, (int if name in whole else float)(value))

    @classmethod
    # Any: `changes` are other fields, here and below.
    def paper(cls, steps: int = PAPER_STEPS, *, literal: bool = False, **changes: Any) -> "Recipe":
        """Return the paper's protocol (Appendix C.1): AdamW, batch 64, cosine from 1e-3 to 1e-6.

        literal  read its weight decay of 1e-4 as optax does, times the learning rate, which
                 removes nothing in a million steps; else as in the original AdamW
        """
        decay = 1e-7 if literal else 1e-4
        return cls(**{"steps": steps, "weight_decay": decay, **changes})

    @classmethod
    def fast(cls, steps: int = 20_000, **changes: Any) -> "Recipe":  # Any: fields
        """Return a recipe that reaches the paper's result in a fiftieth of its steps.

        It is for losses that can fall to zero. docs/recipes.md describes how it was found.
        """
        return cls(**{"steps": steps, **FAST, **changes})

    @classmethod
    def noisy(cls, steps: int = 50_000, **changes: Any) -> "Recipe":  # Any: fields
        """Return the same for losses that no student brings to zero, as in in-context regression.

        There gradients stay noisy to the end: smaller steps, and more weight decay for longer.
        """
        return cls(**{"steps": steps, **FAST, **NOISY, **changes})

    def change(self, **changes: Any) -> "Recipe":  # Any: fields
        """Return the same recipe with some fields changed."""
        return dataclasses.replace(self, **changes)

    def first(self, steps: int) -> "Recipe":
        """Return the first steps of this recipe, its schedules cut off there."""
        part = steps / self.steps
        schedule, decay = First(self.schedule, part), First(self.decay_schedule, part)
        return self.change(steps=steps, schedule=schedule, decay_schedule=decay)

    @property
    def whole(self) -> "Recipe":
        """The full recipe, if `first` cut this one from it; otherwise this recipe."""
        schedule, decay = self.schedule, self.decay_schedule
        if not (isinstance(schedule, First) and isinstance(decay, First)):
            return self
        steps = round(self.steps / schedule.part)
        if decay.part != schedule.part or self.steps / steps != schedule.part:
            return self
        return self.change(steps=steps, schedule=schedule.of, decay_schedule=decay.of).whole


# A large step kills the neurons that do not help, and the clipped norm lets the step be large;
# weight decay this small changes nothing that was measured (docs/recipes.md).
FAST: dict[str, Any] = {
    "learning_rate": 3e-2,
    "schedule": Cosine(end=1e-4, warmup=0.02),
    "weight_decay": 3e-5,
    "decay_schedule": Fade(hold=0.3, until=0.7),
    "clip": 1.0,
}
NOISY: dict[str, Any] = {
    "learning_rate": 5e-3,
    "weight_decay": 3e-4,
    "decay_schedule": Fade(hold=0.5, until=0.9),
}
