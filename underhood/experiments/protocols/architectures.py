"""The architectures that Figures 4 and 6 compare, by the paper's names.

LSTM, GRU and LRU layers stand between a linear embedding and a linear readout: one layer or two,
with nothing between them. An LRU's state is as wide as its input and output. The gated RNN is the
paper's Eq. 2 with as many gate outputs as neurons, one layer, without embedding and readout.
"""

from collections.abc import Callable
from dataclasses import dataclass

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
from underhood.results.architectures import (
    DENSE,
    GATED,
    GRU_NAME,
    LRU_IN_OUT,
    LRU_MLP,
    LRU_PLAIN,
    LSTM_NAME,
)
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


def gated(kind: type[GatedRNN | DenseGatedRNN]) -> Callable[[Task, int], MakeStudent]:
    """Return students that are one gated RNN."""

    def students(task: Task, depth: int) -> MakeStudent:
        def student(width: int, *, key: PRNGKeyArray) -> Layer:
            return kind.init(d_in=task.d_in, hidden=width, gated=width, d_out=task.d_out, key=key)

        return student

    return students


def between_affine(make_layer: MakeStudent) -> Callable[[Task, int], MakeStudent]:
    """Return students with layers between embedding and readout."""

    def students(task: Task, depth: int) -> MakeStudent:
        def student(width: int, *, key: PRNGKeyArray) -> Stack:
            return Stack.init(
                make_layer, d_in=task.d_in, hidden=width, d_out=task.d_out, depth=depth, key=key
            )

        return student

    return students


def recurrent_layer(kind: type[LSTM | GRU]) -> MakeStudent:
    """Return a function that makes an LSTM or GRU layer."""
    return lambda width, *, key: kind.init(d_in=width, hidden=width, key=key)


def lru_layer(kind: type[LRU | LRUInOut | LRUInOutMLP]) -> MakeStudent:
    """Return a function that makes a layer of one of the LRUs."""
    return lambda width, *, key: kind.init(
        d_in=width, hidden=width, d_out=width, max_phase=SMALL_PHASE, key=key
    )


# In the order of ARCHITECTURE_NAMES.
ARCHITECTURES = (
    Architecture(GATED, (1,), gated(GatedRNN)),
    Architecture(DENSE, (1,), gated(DenseGatedRNN)),
    Architecture(LRU_PLAIN, (1, 2), between_affine(lru_layer(LRU))),
    Architecture(LRU_IN_OUT, (1, 2), between_affine(lru_layer(LRUInOut))),
    Architecture(LRU_MLP, (1, 2), between_affine(lru_layer(LRUInOutMLP))),
    Architecture(LSTM_NAME, (1, 2), between_affine(recurrent_layer(LSTM))),
    Architecture(GRU_NAME, (1, 2), between_affine(recurrent_layer(GRU))),
)
