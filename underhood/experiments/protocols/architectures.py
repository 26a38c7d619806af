"""The architectures that Figures 4 and 6 compare, by the paper's names.

LSTM, GRU and LRU layers stand between a linear embedding and a linear readout: one layer or two,
with nothing between them. An LRU's state is as wide as its input and output. The gated RNN is the
paper's Eq. 2 with as many gate outputs as neurons, one layer, without embedding and readout.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxtyping import PRNGKeyArray

from underhood.layers import (
    GRU,
    LRU,
    LSTM,
    DenseGatedRNN,
    GatedRNN,
    Layer,
    LRUInOut,
    LRUInOutMLP,
    Stack,
)
from underhood.results.architectures import ARCHITECTURE_NAMES
from underhood.tasks import Task

# make_student(width, *, key), and make_layer(width, *, key) of a stack.
MakeStudent = Callable[..., Layer]

# Largest phase of an LRU's λ at the start. With phases all around the circle half of the regression
# students never learn one of the input directions.
SMALL_PHASE = 0.3


@dataclass(frozen=True)
class Architecture:
    """A name, the depths to try, and a function from task and depth to make_student."""

    name: str
    depths: tuple[int, ...]
    make: Callable[[Task, int], MakeStudent]


def architecture(name: str, kind: Any) -> Architecture:  # Any: a class with its own `init`
    """Return the architecture of a kind of layer."""
    if kind in (GatedRNN, DenseGatedRNN):
        return Architecture(name, (1,), lambda task, depth: gated_student(task, kind))

    def make_layer(width: int, *, key: PRNGKeyArray) -> Layer:
        more = {} if kind in (LSTM, GRU) else {"d_out": width, "max_phase": SMALL_PHASE}
        layer: Layer = kind.init(d_in=width, hidden=width, **more, key=key)
        return layer

    return Architecture(name, (1, 2), lambda task, depth: stacked_student(task, make_layer, depth))


def gated_student(task: Task, kind: Any = GatedRNN) -> MakeStudent:  # Any: the same
    """Return make_student for one gated RNN with as many gate outputs as neurons."""

    def student(width: int, *, key: PRNGKeyArray) -> Layer:
        sizes = {"d_in": task.d_in, "hidden": width, "gated": width, "d_out": task.d_out}
        layer: Layer = kind.init(**sizes, key=key)
        return layer

    return student


def stacked_student(task: Task, make_layer: MakeStudent, depth: int) -> MakeStudent:
    """Return make_student for layers between embedding and readout."""

    def student(width: int, *, key: PRNGKeyArray) -> Stack:
        sizes = {"d_in": task.d_in, "hidden": width, "d_out": task.d_out}
        return Stack.init(make_layer, **sizes, depth=depth, key=key)

    return student


LAYER_KINDS = (GatedRNN, DenseGatedRNN, LRU, LRUInOut, LRUInOutMLP, LSTM, GRU)
ARCHITECTURES = tuple(map(architecture, ARCHITECTURE_NAMES, LAYER_KINDS))
