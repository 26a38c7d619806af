"""The architectures that Figures 4 and 6 compare, by the paper's names.

LSTM, GRU and LRU layers stand between a linear embedding and a linear readout: one layer or two,
with nothing between them. An LRU's state is as wide as its input and output. The gated RNN is the
paper's Eq. 2 with as many gate outputs as neurons, one layer, without embedding and readout.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxtyping import PRNGKeyArray

from underhood import layers
from underhood.layers import GRU, LSTM, DenseGatedRNN, GatedRNN, Layer, Stack
from underhood.results.architectures import ARCHITECTURE_NAMES
from underhood.tasks import Task
from underhood.training.ensemble import StudentMaker

# Largest phase of an LRU's λ at the start. With phases all around the circle half of the regression
# students never learn one of the input directions.
SMALL_PHASE = 0.3


@dataclass(frozen=True)
class Architecture:
    """A name, the depths to try, and a function from task and depth to make_student."""

    name: str
    depths: tuple[int, ...]
    make: Callable[[Task, int], StudentMaker]


def architecture(name: str, kind: Any) -> Architecture:  # Any: a class with its own `init`
    if kind in (GatedRNN, DenseGatedRNN):
        return Architecture(name, (1,), lambda task, depth: gated_student(task, kind))

    def make_layer(width: int, *, key: PRNGKeyArray) -> Layer:
        more = {} if kind in (LSTM, GRU) else {"d_out": width, "max_phase": SMALL_PHASE}
        layer: Layer = kind.init(d_in=width, hidden=width, **more, key=key)
        return layer

    def make(task: Task, depth: int) -> StudentMaker:
        # Layers between embedding and readout.
        sizes = {"d_in": task.d_in, "d_out": task.d_out, "depth": depth}
        return lambda width, *, key: Stack.init(make_layer, hidden=width, **sizes, key=key)

    return Architecture(name, (1, 2), make)


def gated_student(task: Task, kind: Any = GatedRNN) -> StudentMaker:  # Any: the same
    """Return make_student for one gated RNN with as many gate outputs as neurons."""

    def student(width: int, *, key: PRNGKeyArray) -> Layer:
        d_in, d_out = task.d_in, task.d_out
        layer: Layer = kind.init(d_in=d_in, hidden=width, gated=width, d_out=d_out, key=key)
        return layer

    return student


LRU_KINDS = (layers.LRU, layers.LRUInOut, layers.LRUInOutMLP)
LAYER_KINDS = (GatedRNN, DenseGatedRNN, *LRU_KINDS, LSTM, GRU)
ARCHITECTURES = tuple(map(architecture, ARCHITECTURE_NAMES, LAYER_KINDS))
