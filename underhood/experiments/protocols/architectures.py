"""The architectures that Figures 4 and 6 compare, by the paper's names.

LSTM, GRU and LRU stand between a linear embedding and a linear readout, one or two of them, with
nothing in between; an LRU's state is as wide as its input and output. The gated RNN is the paper's
Eq. 2 with as many gate outputs as neurons, one layer, without embedding or readout of its own.
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
    LRUInOut,
    LRUInOutMLP,
    Stack,
)
from underhood.tasks import Task

MakeStudent = Callable[..., Any]

# Phases of an LRU's λ at the start. With phases all around the circle half of the regression
# students never learn one of the input directions.
SMALL_PHASE = 0.3


@dataclass(frozen=True)
class Architecture:
    """A name, the depths to try, and the students of one depth."""

    name: str
    depths: tuple[int, ...]
    make: Callable[[Task, int], MakeStudent]


def gated(kind: Any) -> Callable[[Task, int], MakeStudent]:
    """Students that are one gated RNN."""

    def of(task: Task, depth: int) -> MakeStudent:
        def student(width: int, *, key: PRNGKeyArray) -> Any:
            return kind.init(d_in=task.d_in, hidden=width, gated=width, d_out=task.d_out, key=key)

        return student

    return of


def stacked(make_layer: Callable[..., Any]) -> Callable[[Task, int], MakeStudent]:
    """Students with one or more layers between embedding and readout."""

    def of(task: Task, depth: int) -> MakeStudent:
        def student(width: int, *, key: PRNGKeyArray) -> Stack:
            return Stack.init(
                make_layer, d_in=task.d_in, hidden=width, d_out=task.d_out, depth=depth, key=key
            )

        return student

    return of


def plain(kind: Any) -> Callable[..., Any]:
    """A layer of LSTM or GRU."""
    return lambda width, *, key: kind.init(d_in=width, hidden=width, key=key)


def lru(kind: Any) -> Callable[..., Any]:
    """A layer of an LRU."""
    return lambda width, *, key: kind.init(
        d_in=width, hidden=width, d_out=width, max_phase=SMALL_PHASE, key=key
    )


GATED, DENSE, LRU_PLAIN, LRU_IN_OUT, LRU_MLP, LSTM_, GRU_ = (
    "gated RNN",
    "gated RNN, dense",
    "LRU",
    "LRU In+Out",
    "LRU In+Out MLP",
    "LSTM",
    "GRU",
)

ARCHITECTURES = (
    Architecture(GATED, (1,), gated(GatedRNN)),
    Architecture(DENSE, (1,), gated(DenseGatedRNN)),
    Architecture(LRU_PLAIN, (1, 2), stacked(lru(LRU))),
    Architecture(LRU_IN_OUT, (1, 2), stacked(lru(LRUInOut))),
    Architecture(LRU_MLP, (1, 2), stacked(lru(LRUInOutMLP))),
    Architecture(LSTM_, (1, 2), stacked(plain(LSTM))),
    Architecture(GRU_, (1, 2), stacked(plain(GRU))),
)
