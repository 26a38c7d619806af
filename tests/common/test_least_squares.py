"""Damped steps against SciPy, and on a singular problem."""

import itertools
from dataclasses import dataclass
from functools import partial

import numpy as np
import scipy.optimize

from underhood.common.least_squares import damped_steps

TIMES = np.linspace(0, 3, 12)


@dataclass(frozen=True)
class Fit:
    """A point of a fit of a·exp(−b t) + c to noisy data."""

    parameters: np.ndarray
    data: np.ndarray

    @property
    def residuals(self) -> np.ndarray:
        a, b, c = self.parameters
        return a * np.exp(-b * TIMES) + c - self.data

    @property
    def cost(self) -> float:
        return float(np.sum(self.residuals**2))

    @property
    def jacobian(self) -> np.ndarray:
        a, b, _ = self.parameters
        decay = np.exp(-b * TIMES)
        return np.column_stack([decay, -a * TIMES * decay, np.ones_like(TIMES)])


def linearise(point):
    J, r = point.jacobian, point.residuals

    def step(damping):
        normal = J.T @ J + damping * np.eye(3)
        return Fit(point.parameters - np.linalg.solve(normal, J.T @ r), point.data)

    return step


def data(seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=TIMES.shape)
    return 2 * np.exp(-1.3 * TIMES) + 0.5 + 0.05 * noise


def test_a_nonlinear_fit_ends_where_scipys_does() -> None:
    for seed in range(5):
        start = Fit(np.array([1.0, 0.5, 0.0]), data(seed))
        points = list(damped_steps(start, linearise, damping=1e-2, factor=5.0, most=1e10))
        costs = [start.cost, *(point.cost for point in points)]
        assert all(after < before for before, after in itertools.pairwise(costs))
        residuals = partial(lambda data, p: Fit(p, data).residuals, start.data)
        limits = dict.fromkeys(("xtol", "ftol", "gtol"), 1e-15)
        expected = scipy.optimize.least_squares(residuals, start.parameters, **limits)
        np.testing.assert_allclose(points[-1].parameters, expected.x, rtol=1e-6)


@dataclass(frozen=True)
class Singular:
    """(x + y − 1)²: the Jacobian has rank one everywhere."""

    place: np.ndarray

    @property
    def cost(self) -> float:
        return float((self.place.sum() - 1) ** 2)

    def stepped(self, damping):
        if damping == 0:
            return None
        matrix = np.ones((2, 2)) + damping * np.eye(2)
        return Singular(self.place - np.linalg.solve(matrix, np.ones(2) * (self.place.sum() - 1)))


def test_a_singular_problem_is_solved_and_a_missing_step_skipped() -> None:
    start = Singular(np.array([3.0, -1.0]))
    limits = {"damping": 1e-3, "factor": 10.0, "least": 1e-9, "most": 1e3, "tries": 40}
    points = list(damped_steps(start, lambda point: point.stepped, **limits))
    assert points[-1].cost < 1e-20
    # The shortest way there: the difference of the two never changes.
    np.testing.assert_allclose(points[-1].place, [2.5, -1.5], atol=1e-9)


def test_refused_steps_raise_the_damping_until_it_gives_up() -> None:
    asked = []

    def never(point):
        return lambda damping: asked.append(damping)

    assert list(damped_steps(Singular(np.zeros(2)), never, damping=1.0, factor=10, most=1e3)) == []
    assert asked == [1.0, 10.0, 100.0, 1000.0]
    asked.clear()
    limited = damped_steps(Singular(np.zeros(2)), never, damping=1.0, factor=2, most=1e9, tries=3)
    assert list(limited) == [] and len(asked) == 3
