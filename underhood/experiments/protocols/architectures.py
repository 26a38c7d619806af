"""The architectures that Figures 4 and 6 compare, by the paper's names.

LSTM, GRU and LRU layers stand between a linear embedding and a linear readout: one layer or two,
with nothing between them. An LRU's state is as wide as its input and output. The gated RNN is the
paper's Eq. 2 with as many gate outputs as neurons, one layer, without embedding and readout.

The paper trains with Flax and builds on Minimal-LRU. PAPER_ARCHITECTURES begin as these do: LSTMs
and GRUs with orthogonal recurrent matrices, GRUs with the reset after the product, LRUs with |λ|²
uniform and phases all around the circle.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from underhood import layers
from underhood.common.decay import nu_from_decay
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


def architecture(
    name: str,
    kind: Any,  # Any: a class with its own `init`
    begin: Callable[..., Layer] | None = None,
) -> Architecture:
    """Return an architecture; `begin` makes a layer of a kind and a width, None: by its `init`."""
    if kind in (GatedRNN, DenseGatedRNN):
        return Architecture(name, (1,), lambda task, depth: gated_student(task, kind))

    def make_layer(width: int, *, key: PRNGKeyArray) -> Layer:
        if begin is not None:
            return begin(kind, width, key=key)
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


def begin_as_the_paper(kind: Any, width: int, *, key: PRNGKeyArray) -> Layer:  # Any: the same
    """Return a layer with the first weights of Flax (LSTM, GRU) or of Minimal-LRU."""
    weights_key, start_key = jax.random.split(key)
    if kind not in (LSTM, GRU):
        lru = kind.init(d_in=width, hidden=width, d_out=width, key=weights_key)
        decay = jnp.sqrt(jax.random.uniform(start_key, (width,), minval=1e-6, maxval=1 - 1e-6))
        gamma_log = 0.5 * jnp.log1p(-(decay**2))
        begun: Layer = replace(lru, nu=nu_from_decay(decay, about="LRU"), gamma_log=gamma_log)
        return begun
    layer = kind.init(d_in=width, hidden=width, key=weights_key)
    matrices = [name for name in vars(layer) if name.startswith("V_")]
    keys = jax.random.split(start_key, len(matrices))
    more: dict[str, Any] = {  # Any: arrays and words
        name: jax.random.orthogonal(matrix_key, width)
        for name, matrix_key in zip(matrices, keys, strict=True)
    }
    if kind is GRU:
        more |= {"reset": "after", "c_h": jnp.zeros(width)}
    layer = replace(layer, **more)
    return layer


LRU_KINDS = (layers.LRU, layers.LRUInOut, layers.LRUInOutMLP)
LAYER_KINDS = (GatedRNN, DenseGatedRNN, *LRU_KINDS, LSTM, GRU)
ARCHITECTURES = tuple(map(architecture, ARCHITECTURE_NAMES, LAYER_KINDS))
PAPER_ARCHITECTURES = tuple(
    architecture(name, kind, begin_as_the_paper)
    for name, kind in zip(ARCHITECTURE_NAMES, LAYER_KINDS, strict=True)
)
