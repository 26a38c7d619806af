"""Levenberg–Marquardt on the parameters of a network whose linear part is solved for.

A step is taken on the residual of the best linear part, with Kaufman's Jacobian: the derivative of
the outputs, minus its part in the range of the features. The linear part moves by the least that
fits, so directions that the examples do not determine stay as they were. Small networks lie in
narrow curved valleys, which a straight step leaves at once. So a step follows the curve, to second
order (geodesic acceleration, Transtrum and Sethna 2012).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from underhood.common.least_squares import damped_steps
from underhood.training.second_order.examples import Examples
from underhood.training.second_order.ranges import ExactRange, FastRange
from underhood.training.second_order.separable import SeparableNetwork

# Steps are tried while their damping is below this.
MOST_DAMPING = 1e8
# A fit ends when this many steps together lower its cost by less than this share. Where the cost is
# low enough, only steps that go on falling fast are taken.
WINDOW, LEAST_GAIN = 8, 0.1
FAST_WINDOW, FAST_GAIN = 2, 0.9
# Exact steps begin below the first share of the targets' cost. They also follow fast steps that
# have ended below the second.
EXACT_BELOW, WORTH_EXACT = 1e-12, 1e-6
# The bend of the residual along a step is measured after this part of it. A step that bends more
# than this share of its length is too long.
PROBE, MOST_BEND = 0.1, 0.375


@dataclass(frozen=True)
class Fitted:
    """A network with its best linear part, what is left of the loss, and its features' range."""

    network: SeparableNetwork
    residual: np.ndarray
    cost: float
    range: FastRange | ExactRange


def fit_linear(network: SeparableNetwork, examples: Examples, *, exact: bool = True) -> Fitted:
    """Solve for the linear part."""
    F = examples.features(network)
    scale = np.linalg.norm(F, axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    known = (ExactRange if exact else FastRange).of(F / scale)
    linear, residual = network.linear, examples.targets - F @ network.linear.T
    for _ in range(known.PASSES):
        linear = linear + (known.solve(residual) / scale[:, None]).T
        residual = examples.targets - F @ linear.T
    return Fitted(replace(network, linear=linear), residual, examples.cost(residual), known)


# Called with the number of a step, the cost before it, and the network; returns a reason to stop.
StepWatcher = Callable[[int, float, SeparableNetwork], str | None]
Halted = Callable[[], str | None]


def never_halted() -> str | None:
    return None


class Minimised(NamedTuple):
    """A network after its last step, the cost before and after each step, and why it ended."""

    network: SeparableNetwork
    costs: list[float]
    reason: str


def minimise(
    network: SeparableNetwork,
    examples: Examples,
    *,
    steps: int,
    target: float = 0.0,
    watch: StepWatcher,
    far: bool = False,
    enough: float = 0.0,
    halted: Halted = never_halted,
) -> Minimised:
    """Return the network after at most `steps` steps.

    target  a cost that is zero up to rounding
    enough  a cost that will do; below it steps are taken only while the cost falls fast
    watch   called before each step; if it returns a reason, no step follows
    far     the network is far from a solution: fast steps come first
    halted  asked before each trial of a step; if it returns a reason, no trial follows
    """
    stopped = False

    def watched(step: int, cost: float, now: SeparableNetwork) -> str | None:
        nonlocal stopped
        reason = watch(step, cost, now)
        stopped = reason is not None
        return reason

    whole = examples.cost(examples.targets)
    result = Minimised(network, [np.inf], "")
    # Near a solution that is no isolated point, steps of one kind sometimes go on where those of
    # the other have come to an end.
    kinds = ((False, False), (True, True), (True, False)) if far else ((True, False), (True, True))
    for exact, curved in kinds:
        left = steps - (len(result.costs) - 1)
        floor = target if exact else max(target, EXACT_BELOW * whole)
        result = descend(
            result.network,
            examples,
            left,
            (floor, enough),
            watched,
            result.costs[:-1],
            exact,
            curved,
            halted,
        )
        cost = result.costs[-1]
        if (
            stopped
            or halted() is not None
            or cost <= max(target, enough)
            or cost > WORTH_EXACT * whole
        ):
            break
    return result


def descend(
    network: SeparableNetwork,
    examples: Examples,
    steps: int,
    goals: tuple[float, float],
    watch: StepWatcher,
    before: list[float],
    exact: bool,
    curved: bool,
    halted: Halted = never_halted,
) -> Minimised:
    """Take steps of one kind; `before` are the costs of earlier ones, `goals` target and enough."""
    target, enough = goals

    def fitted(moved: SeparableNetwork) -> Fitted | None:
        try:
            return fit_linear(moved if exact else moved.balanced(), examples, exact=exact)
        except np.linalg.LinAlgError:
            # Features so dependent that rounding leaves no factor: a shorter step may have one.
            return None

    def linearise(now: Fitted) -> Callable[[float], Fitted | None]:
        blocks = now.range.outside(examples.derivatives(now.network))
        normal = np.sum([now.range.normal(block) for block in blocks], axis=0)

        def downhill(residual: np.ndarray) -> np.ndarray:
            products = (J.T @ r for J, r in zip(blocks, residual.T, strict=True))
            return np.sum(list(products), axis=0)

        slope = downhill(now.residual)
        moves = movable(now.network, slope)
        # Neurons differ in size, so every parameter is damped by its own curvature.
        level = np.diag(normal) + 1e-9 * np.trace(normal) / len(normal) + 1e-300

        def step(damping: float) -> Fitted | None:
            if halted() is not None:
                return None
            matrix = (normal + damping * np.diag(level))[np.ix_(moves, moves)]

            def solve(right: np.ndarray) -> np.ndarray:
                by = np.zeros(len(moves))
                by[moves] = np.linalg.solve(matrix, right[moves])
                return by

            along = solve(slope)
            if not curved:
                return fitted(now.network.moved(along))
            # Geodesic acceleration: how the residual bends along the step, by a short try.
            probe = fitted(now.network.moved(PROBE * along))
            if probe is None:
                return None
            foreseen = now.range.rest(np.stack([J @ along for J in blocks], axis=1))
            bend = 2 / PROBE * ((probe.residual - now.residual) / PROBE + foreseen)
            turn = solve(downhill(now.range.rest(bend)))
            if turn @ (level * turn) > MOST_BEND**2 * (along @ (level * along)):
                return None
            return fitted(now.network.moved(along + turn / 2))

        return step

    now = fitted(network)
    if now is None:
        now = fit_linear(network, examples)
    costs = [*before, now.cost]
    if network.W_m.size == 0:
        return Minimised(now.network, costs, "no neuron is left to fit")
    most = float(np.nextafter(MOST_DAMPING, 0.0))
    # Far from a solution steps are short at first, and grow more carefully.
    damping, factor = (1e-3, 10) if exact else (1e-2, 5)
    fits = damped_steps(now, linearise, damping=damping, factor=factor, least=1e-12, most=most)
    first = len(before)
    reason = "the fit has taken all its steps"
    for number in range(steps):
        # The last network of earlier steps has been watched.
        new = number > 0 or not before
        stopped = watch(len(costs) - 1, costs[-1], now.network) if new else None
        window, gain = (FAST_WINDOW, FAST_GAIN) if costs[-1] <= enough else (WINDOW, LEAST_GAIN)
        slow = len(costs) - 1 - first >= window and costs[-1] > (1 - gain) * costs[-1 - window]
        if stopped is not None:
            reason = stopped
        elif costs[-1] <= target:
            reason = "the loss is zero up to rounding"
        elif slow and costs[-1] <= enough:
            reason = "the loss is low enough and hardly falls any more"
        elif slow:
            reason = f"{window} steps together lowered the loss by less than {gain:.0%}"
        else:
            after = next(fits, None)
            if after is not None:
                now = after
                costs.append(now.cost)
                continue
            reason = halted() or "no step lowers the loss any more"
        break
    return Minimised(now.network, costs, reason)


def movable(network: SeparableNetwork, downhill: np.ndarray) -> np.ndarray:
    """Tell which parameters may move: not a decay at 0 or 1 that would leave [0, 1]."""
    moves = np.ones(len(downhill), bool)
    start = 2 * network.W_m.size
    decay = network.decay[network.free]
    slope = downhill[start : start + len(decay)]
    leaves = ((decay <= 0) & (slope < 0)) | ((decay >= 1) & (slope > 0))
    moves[start : start + len(decay)] = ~leaves
    return moves
