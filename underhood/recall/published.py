"""Trained layers in Zoology's recall–memory figure, as published.

The points are read off the figure by colour: accuracies to ±0.003, sizes to 0.6 % where the code
says what they are. A size is the code's if the two agree, else the one that was read.
"""

import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PUBLISHED_POINTS = Path(__file__).with_name("published.json")
# Keeps every token, so its state is not of fixed size.
SOFTMAX_ATTENTION = "attention"


@dataclass(frozen=True)
class TrainedPoint:
    """One trained layer: the bytes of its state, and its mean accuracy over the test sets.

    whole  False: the marker is partly hidden in the figure
    """

    layer: str
    bytes: int
    accuracy: float
    whole: bool

    @property
    def state(self) -> int:
        """The size in numbers of four bytes."""
        return round(self.bytes / 4)


@cache
def trained_points() -> tuple[TrainedPoint, ...]:
    """Return all points of the figure."""
    points = json.loads(PUBLISHED_POINTS.read_text(encoding="utf-8"))["points"]
    return tuple(TrainedPoint(**point) for point in points)


def provenance_of_points() -> str:
    """Return where the points come from."""
    return str(json.loads(PUBLISHED_POINTS.read_text(encoding="utf-8"))["provenance"])


def nearest_trained(state: int) -> TrainedPoint:
    """Return the trained layer of fixed state whose size is nearest, as a ratio."""
    fixed = [point for point in trained_points() if point.layer != SOFTMAX_ATTENTION]
    return min(fixed, key=lambda point: (abs(math.log(point.bytes / (4 * state))), -point.accuracy))
