"""Windows of learning rates: accuracies by rate of every start, and the rules that judge them.

recall_training has the rules in words; they were written before any run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from underhood.common.files import Json
from underhood.experiments.beyond.recall_starts import (
    COMPILED,
    LINEARISED_ORDER,
    NOISY_START,
    RANDOM,
    START_NAMES,
    TARGET_OF,
    StudentKind,
)
from underhood.experiments.running.rules import judged, ours, shown
from underhood.results.files import Number

# A drop that counts as none, a gain that counts, and the share of the reference that is enough.
DROP, GAIN, WORKS = 0.01, 0.02, 0.9


@dataclass(frozen=True, eq=False)
class RateCurve:
    """Accuracies of a kind of student before training, and after it at every rate.

    reference  by formula, without training, in linear attention with the same memory
    """

    kind: StudentKind
    rates: tuple[float, ...]
    reference: float
    before: Float[np.ndarray, " seeds"]
    after: Float[np.ndarray, "rates seeds"]
    parameters: int
    neurons: int

    @property
    def medians(self) -> Float[np.ndarray, " rates"]:
        return np.median(self.after, axis=1)

    @property
    def start(self) -> float:
        return float(np.median(self.before))

    @property
    def best(self) -> float:
        return float(np.max(self.medians))

    @property
    def gain(self) -> float:
        return self.best - self.start

    def rates_from(self, level: float) -> list[float]:
        """Return the rates at which the accuracy ends at a level or above."""
        return [r for r, median in zip(self.rates, self.medians, strict=True) if median >= level]

    @property
    def working(self) -> list[float]:
        return self.rates_from(WORKS * self.reference)

    @property
    def gaining(self) -> list[float]:
        return self.rates_from(self.reference + GAIN)


def judge_windows(curves: Sequence[RateCurve], seeds: int) -> list[Number]:
    """Judge every layer by the rules at the head of this file."""
    numbers = []
    for layer in dict.fromkeys(curve.kind.layer for curve in curves):
        of_layer = [curve for curve in curves if curve.kind.layer == layer]
        chosen = {start: best_by_state(of_layer, start) for start in START_NAMES}
        random, compiled, noisy = (chosen[start] for start in START_NAMES)
        gain = min(curve.gain for curve in compiled)
        least = "smallest gain over the states, at the best rate,"
        numbers += [
            rule_of(
                layer,
                "compiled start holds",
                gain,
                f"{least} ≥ −{DROP:g}",
                -DROP,
                seeds,
            ),
            rule_of(layer, "compiled start improves", gain, f"{least} ≥ {GAIN:g}", GAIN, seeds),
        ]
        for title, window in (("work", "working"), ("gain", "gaining")):
            counts = {start: rates_in(chosen[start], window) for start in START_NAMES}
            more = counts[COMPILED] - counts[RANDOM]
            rule = "more rates from compiled than from random weights, over all states, ≥ 1"
            numbers += [
                rule_of(layer, f"rates that {title}", more, rule, 1, seeds),
                shown(f"rates that {title}, random, {layer}", counts[RANDOM], seeds=seeds),
                shown(f"rates that {title}, noisy, {layer}", counts[NOISY_START], seeds=seeds),
            ]
        for what, starts in (("random", random), ("compiled", compiled), ("noisy", noisy)):
            beyond = min(curve.best - curve.reference for curve in starts)
            name = f"best accuracy less the formula's, smallest over states, {what}, {layer}"
            numbers.append(shown(name, beyond, seeds=seeds))
        if layer in LINEARISED_ORDER:
            training = {
                curve.kind.epsilon
                for curve in of_layer
                if curve.kind.start == COMPILED
                and curve.start >= WORKS * curve.reference
                and curve.gain >= GAIN
            }
            rule = "values of ε whose start recalls, and improves at some state, ≥ 1"
            numbers.append(rule_of(layer, "ε trains", len(training), rule, 1, seeds))
    return numbers


def rule_of(layer: str, name: str, value: float, rule: str, least: float, seeds: int) -> Number:
    """Return a number of a layer that is at least so large, or differs."""
    return ours(judged(f"{name}, {layer}", value, rule, value >= least, paper=None, seeds=seeds))


def best_by_state(curves: Sequence[RateCurve], start: str) -> list[RateCurve]:
    """Return the curve of a start at each state; of several ε the one that ends highest."""
    by_state: dict[int, list[RateCurve]] = {}
    for curve in curves:
        if curve.kind.start == start:
            by_state.setdefault(curve.kind.state, []).append(curve)
    return [max(candidates, key=lambda curve: curve.best) for candidates in by_state.values()]


def rates_in(curves: Sequence[RateCurve], window: str) -> int:
    return sum(len(getattr(curve, window)) for curve in curves)


def start_row(curve: RateCurve) -> Json:
    """Return a kind of student as a row for people."""
    kind = curve.kind
    rate = curve.rates[int(np.argmax(curve.medians))]
    return {
        "layer": kind.layer,
        "memory": kind.state,
        "start": kind.start,
        "epsilon": kind.epsilon,
        "neurons": curve.neurons,
        "parameters": curve.parameters,
        "formula": curve.reference,
        "before": curve.start,
        "after": curve.best,
        "best rate": rate,
        "rates that work": rate_words(curve.working),
        "rates that gain": rate_words(curve.gaining),
    }


def rate_words(rates: Sequence[float]) -> str:
    return " ".join(f"{rate:g}" for rate in rates) or "none"


def arrays_of_curves(curves: Sequence[RateCurve]) -> dict[str, np.ndarray]:
    """Return what the figure shows, an entry per kind of student; layers by their place."""
    layers = list(TARGET_OF)
    return {
        "rates": np.array(curves[0].rates),
        "layer": np.array([layers.index(curve.kind.layer) for curve in curves]),
        "memory": np.array([curve.kind.state for curve in curves], float),
        "start": np.array([START_NAMES.index(curve.kind.start) for curve in curves]),
        "epsilon": np.array([curve.kind.epsilon or 0.0 for curve in curves]),
        "formula": np.array([curve.reference for curve in curves]),
        "before": np.stack([curve.before for curve in curves]),
        "after": np.stack([curve.after for curve in curves]),
    }
