"""Damped steps downhill: the one loop behind every second-order fit of the package.

A fit is at a *point*, any object with a number `cost`. `linearise(point)` returns a function of the
damping μ, which returns the point one step further, or None if there is no such step. A trial of
lower cost becomes the next point, and μ is divided by `factor`. Otherwise μ is multiplied by it,
and the step is tried again. As μ → 0 the steps are those of Gauss–Newton (or Newton); as μ → ∞ they
are short steps along the gradient. What is solved for a step differs from fit to fit (full least
squares, variable projection, Newton steps with blocks eliminated). SciPy's and Optimistix's solvers
choose that part themselves, so they do not serve all fits.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np


@runtime_checkable
class HasCost(Protocol):
    """A point of a fit."""

    @property
    def cost(self) -> float:
        """What the fit makes small."""


Point = TypeVar("Point", bound=HasCost)


@dataclass(frozen=True)
class ResidualPoint:
    """Two arrays of unknowns and their residual; the cost is its sum of squares."""

    unknowns: tuple[np.ndarray, np.ndarray]
    residual: np.ndarray

    @property
    def cost(self) -> float:
        return float(self.residual @ self.residual)


def damped_steps(
    start: Point,
    linearise: Callable[[Point], Callable[[float], Point | None]],
    *,
    damping: float,
    factor: float,
    least: float = 0.0,
    most: float,
    tries: int | None = None,
) -> Iterator[Point]:
    """Yield points of ever lower cost; the caller stops when it has seen enough.

    damping  μ at the start
    factor   μ is multiplied or divided by this
    least    μ never falls below this
    most     give up once a refused step has raised μ above this
    tries    how many steps may be tried, whatever comes of them; None: any number, and a step that
             does not exist counts as refused
    """
    point, step = start, linearise(start)
    for _ in itertools.count() if tries is None else range(tries):
        trial = step(damping)
        if trial is not None and trial.cost < point.cost:
            point, damping = trial, max(damping / factor, least)
            yield point
            step = linearise(point)
            continue
        damping *= factor
        # A step that does not exist says nothing about shorter ones, so it only uses up a try.
        if damping > most and (trial is not None or tries is None):
            return
