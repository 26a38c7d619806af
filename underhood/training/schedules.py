"""How a number changes over a run: multipliers of progress, which goes from 0 to 1.

Frozen values, so that a recipe that holds them can be compared and stored.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Float

from underhood.common.errors import BadInput

Scalar = Float[Array, ""]


@runtime_checkable
class Schedule(Protocol):
    """A multiplier for each moment of a run."""

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
        rising = progress / self.warmup if self.warmup else 1.0
        return jnp.minimum(falling, rising)


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
class First:
    """The beginning of another schedule, `part` of it, drawn out over the whole run."""

    of: Schedule
    part: float

    def __post_init__(self) -> None:
        if not 0 < self.part <= 1:
            raise BadInput(f"First needs 0 < part ≤ 1, not {self.part!r}.")

    def __call__(self, progress: Scalar) -> Scalar:
        return self.of(self.part * progress)
