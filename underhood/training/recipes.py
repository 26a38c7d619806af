"""How weights are found: optimiser, schedules, weight decay, batches, steps, precision.

Let α = schedule(t)·learning_rate and δ = decay_schedule(t)·weight_decay. One step on the gradient g
is, by the field `decay`,

    coupled     w ← w − α·direction(g + δ·w)     L2 regularisation, which Adam's direction rescales
    decoupled   w ← w − α·direction(g) − δ·w     AdamW as its authors wrote it (2019)
    optax       w ← w − α·(direction(g) + δ·w)   optax.adamw

docs/recipes.md compares the three on the paper's task.
"""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Float

from underhood.common.errors import BadInput, refuse
from underhood.common.files import Json
from underhood.common.numbers import number_problems, whole_problems

if TYPE_CHECKING:
    import optax

Scalar = Float[Array, ""]


@runtime_checkable
class Schedule(Protocol):
    """A multiplier for each moment of a run: progress goes from 0 to 1.

    Schedules are frozen values, so that a recipe that holds them can be compared and stored.
    """

    def __call__(self, progress: Scalar, /) -> Scalar: ...


@dataclass(frozen=True)
class Constant:
    """1 throughout."""

    def __call__(self, progress: Scalar) -> Scalar:
        return jnp.ones_like(progress)


@dataclass(frozen=True)
class Cosine:
    """Up from 0 during `warmup`, then from 1 down to `end` along half a cosine."""

    end: float = 0.0
    warmup: float = 0.0

    def __post_init__(self) -> None:
        if not (self.end >= 0 and 0 <= self.warmup < 1):
            raise BadInput(f"Cosine needs end ≥ 0 and 0 ≤ warmup < 1, not {self}.")

    def __call__(self, progress: Scalar) -> Scalar:
        done = jnp.clip((progress - self.warmup) / (1 - self.warmup), 0, 1)
        falling = self.end + (1 - self.end) * 0.5 * (1 + jnp.cos(jnp.pi * done))
        return jnp.minimum(falling, progress / self.warmup if self.warmup else 1.0)


@dataclass(frozen=True)
class Fade:
    """1 until `hold`, then down to 0 at `until` along half a cosine, and 0 from there on."""

    hold: float
    until: float

    def __post_init__(self) -> None:
        if not 0 <= self.hold < self.until <= 1:
            raise BadInput(f"Fade needs 0 ≤ hold < until ≤ 1, not {self}.")

    def __call__(self, progress: Scalar) -> Scalar:
        done = jnp.clip((progress - self.hold) / (self.until - self.hold), 0, 1)
        return 0.5 * (1 + jnp.cos(jnp.pi * done))


@dataclass(frozen=True)
class Exponential:
    """From 1 down to `end`, by the same share at every step."""

    end: float

    def __post_init__(self) -> None:
        if not 0 < self.end <= 1:
            raise BadInput(f"Exponential needs 0 < end ≤ 1, not {self.end!r}.")

    def __call__(self, progress: Scalar) -> Scalar:
        return self.end**progress


@dataclass(frozen=True)
class First:
    """The first `part` of another schedule (a share), stretched over the whole run."""

    of: Schedule
    part: float

    def __post_init__(self) -> None:
        if not 0 < self.part <= 1:
            raise BadInput(f"First needs 0 < part ≤ 1, not {self.part!r}.")

    def __call__(self, progress: Scalar) -> Scalar:
        return self.of(self.part * progress)


# 1,000 epochs of 50,000 sequences in batches of 64 (Appendix C.1): "almost one million".
PAPER_STEPS = 781_250
# λ in its several parametrisations; the paper lets weight decay touch everything else.
RECURRENT = ("nu", "theta_log", "gamma_log")
# From 1 to 1e-3: the paper's 1e-3 → 1e-6.
PAPER_SCHEDULE = Cosine(end=1e-3)
RECIPE_PRECISIONS = ("float32", "float64")
DECAYS = ("coupled", "decoupled", "optax")


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
    decay           how weight decay acts: coupled, decoupled or optax (see the head of this file)
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
    decay: str = "decoupled"
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
            f"decay is {self.decay!r}; use coupled, decoupled or optax": self.decay in DECAYS,
        }
        problems = [*whole_problems(**whole), *number_problems(**numbers)]
        refuse(problems + [what for what, holds in checks.items() if not holds], about="Recipe")
        # Plain numbers, because a recipe is compared and stored.
        for name, value in (whole | numbers).items():
            object.__setattr__(self, name, (int if name in whole else float)(value))

    @classmethod
    def paper(
        cls,
        steps: int = PAPER_STEPS,
        *,
        decay: str = "coupled",
        literal: bool = False,
        **changes: Any,  # Any: other fields, here and below
    ) -> "Recipe":
        """Return the paper's protocol (Appendix C.1): AdamW, batch 64, cosine from 1e-3 to 1e-6.

        decay    how its weight decay of 1e-4 acts. The paper does not say; "coupled" gives the
                 network that it describes, "decoupled" and "optax" do not (docs/recipes.md)
        literal  the older way to say decay="optax"
        """
        decay = "optax" if literal else decay
        # optax's and the coupled decay act through the step, which falls by itself.
        fading = PAPER_SCHEDULE if decay == "decoupled" else Constant()
        fields = {"steps": steps, "weight_decay": 1e-4, "decay_schedule": fading, "decay": decay}
        return cls(**fields | changes)

    @classmethod
    def fast(cls, steps: int = 20_000, **changes: Any) -> "Recipe":  # Any: fields
        """Return a recipe with a fortieth of the paper's steps and a similar result.

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


# Coupled decay, strong early, leaves only the neurons that are needed. Then it fades, and the loss
# falls. The clipped norm lets the step be large (docs/recipes.md).
FAST: dict[str, Any] = {
    "learning_rate": 2e-2,
    "schedule": Cosine(end=1e-4, warmup=0.02),
    "weight_decay": 1e-4,
    "decay_schedule": Fade(hold=0.3, until=0.7),
    "decay": "coupled",
    "optimiser": Adam(b2=0.99),
    "clip": 1.0,
}
NOISY: dict[str, Any] = {
    "learning_rate": 5e-3,
    "weight_decay": 5e-3,
    "decay_schedule": Fade(hold=0.5, until=0.9),
    "optimiser": ADAM,
}
