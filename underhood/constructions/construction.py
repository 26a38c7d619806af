"""What `compile` returns: the network, the role of each neuron, and its error."""

from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from underhood.constructions.sources.reference import reference
from underhood.layers import GatedRNN, Layer, LinearAttention, MultiHead, Stack, parameter_count

Source = LinearAttention | MultiHead | GatedRNN


class Role(NamedTuple):
    """What a neuron is for: ("memory", "kv[0,1]"), ("query", "q[2]"), ("copy", …)."""

    kind: str
    label: str


@dataclass(frozen=True)
class Construction:
    """A recurrent network that computes the source's function.

    An `exact` network differs from the source by rounding alone. The others use sigmoids as
    products (order and epsilon: `product.py`); `error` measures how exact they are.
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

    @property
    def settings(self) -> dict[str, str | int | float | bool | None]:
        """How the network was made, as it is stored beside its weights."""
        return {
            "target": self.target,
            "form": self.form,
            "exact": self.exact,
            "order": self.order,
            "epsilon": self.epsilon,
        }

    @property
    def neurons(self) -> int:
        """Recurrent units over all layers."""
        return self.layer.neurons

    @property
    def gate_width(self) -> int:
        """Gate outputs over all layers."""
        return self.layer.gate_width

    @property
    def parameters(self) -> int:
        """Numbers in all arrays, zeros included."""
        return parameter_count(self.layer)

    @property
    def layers(self) -> int:
        """Recurrent layers one above the other."""
        return len(self.layer.layers) if isinstance(self.layer, Stack) else 1

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
    """Run the layer over a batch of sequences."""
    return jax.vmap(layer)(xs)
