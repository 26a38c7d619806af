"""What `compile` returns: the network, the role of each neuron, its error; or the refusal."""

from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from underhood.common.errors import BadInput
from underhood.constructions.sources.reference import reference
from underhood.layers import GatedRNN, Layer, LinearAttention, MultiHead, Stack, parameter_count
from underhood.layers.base.layer import Size

Source = LinearAttention | MultiHead | GatedRNN


class ImpossibleConstruction(BadInput):
    """The request cannot be met; `reasons` says why, all of them at once."""

    def __init__(self, request: str, reasons: list[str]):
        self.reasons = tuple(reasons)
        super().__init__(f"{request} is not possible: {' '.join(reasons)}")


class Role(NamedTuple):
    """What a neuron is for: ("memory", "kv[0,1]"), ("query", "q[2]"), ("copy", …)."""

    kind: str
    label: str


@dataclass(frozen=True)
class Construction:
    """A recurrent network that computes the source's function.

    An `exact` network differs from the source by rounding alone. The others use sigmoids as
    products (order and epsilon: `product.py`); `error` measures how exact they are.

    neurons, gate_width  recurrent units and gate outputs over all layers
    parameters           numbers in all arrays, zeros included
    layers               recurrent layers one above the other
    """

    source: Source
    target: str
    form: str | None
    layer: Layer
    roles: tuple[Role, ...]
    exact: bool
    epsilon: float | None = None
    order: int | None = None

    def __post_init__(self) -> None:
        assert len(self.roles) == self.layer.neurons, "one role per neuron"

    neurons = Size(lambda self: self.layer.neurons)
    gate_width = Size(lambda self: self.layer.gate_width)
    parameters = Size(lambda self: parameter_count(self.layer))
    layers = Size(lambda self: len(self.layer.layers) if isinstance(self.layer, Stack) else 1)

    @property
    def settings(self) -> dict[str, str | int | float | bool | None]:
        """How the network was made, as it is stored beside its weights."""
        names = ("target", "form", "exact", "order", "epsilon")
        return {name: getattr(self, name) for name in names}

    def error(self, *, key: PRNGKeyArray, length: int = 32, sequences: int = 16) -> float:
        """Return max|y − y_ref| / max(largest |y_ref|, 1) on fresh N(0, 1) sequences.

        The network runs in its precision; y_ref is the source's definition in float64.
        """
        with jax.enable_x64(True):
            shape = (sequences, length, self.source.d_in)
            xs = np.asarray(jax.random.normal(key, shape, jnp.float64))
            dtype = jnp.result_type(*[leaf.dtype for leaf in jax.tree.leaves(self.layer)])
            xs = xs.astype(dtype)
            ys = np.asarray(run_batch(self.layer, jnp.asarray(xs)))
        expected = reference(self.source, xs)
        largest = max(float(np.max(np.abs(expected), initial=0.0)), 1.0)
        return float(np.max(np.abs(ys - expected), initial=0.0)) / largest


@eqx.filter_jit
def run_batch(layer: Layer, xs: jax.Array) -> jax.Array:
    return jax.vmap(layer)(xs)
