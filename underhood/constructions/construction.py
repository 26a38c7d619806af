"""What `compile` returns: the network, the role of each neuron, its error; or the refusal."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from underhood.common.arrays import key_problems
from underhood.common.errors import BadInput, refuse
from underhood.common.numbers import number_problems, whole_problems
from underhood.constructions.sources.heads import Source
from underhood.constructions.sources.reference import reference
from underhood.layers import Layer, Stack, parameter_count
from underhood.layers.base.layer import Size


class ImpossibleConstruction(BadInput):
    """The request cannot be met; `reasons` says why, all of them at once.

    proved  no weights meet the request; False: underhood does not build it, and others might
    """

    def __init__(self, request: str, reasons: list[str], *, proved: bool = True):
        self.reasons, self.proved = tuple(reasons), proved
        verdict = "possible" if proved else "built"
        super().__init__(f"{request} is not {verdict}: {' '.join(reasons)}")


class Role(NamedTuple):
    """What a neuron is for: ("memory", "kv[0,1]"), ("query", "q[2]"), ("copy", …)."""

    kind: str
    label: str


def roles_of(kind: str, labels: Sequence[str], *, scales: int | None = None) -> tuple[Role, ...]:
    """Return a role per label; with `scales`, all labels once per scale of a `Product`."""
    if scales is not None:
        labels = [f"{label} scale {a}" for a in range(scales) for label in labels]
    return tuple(Role(kind, label) for label in labels)


@dataclass(frozen=True)
class Construction:
    """A recurrent network that computes the source's function.

    An `exact` network differs from the source by rounding alone, at every length and size. The
    others are linearised: sigmoids serve as products (order and epsilon: `product.py`). They are
    built for sequences up to `length` and tokens of `size`. Their error grows on longer sequences,
    and on much larger or much smaller tokens; `error` measures it anywhere.

    length, size         what a linearised network was built for; None if it is exact
    neurons, gate_width  recurrent units and gate outputs over all layers
    parameters           numbers in all arrays, zeros included
    layers               recurrent layers one above the other
    """

    source: Source
    target: str
    form: str | None
    layer: Layer
    roles: tuple[Role, ...] = field(repr=False)
    exact: bool
    epsilon: float | None = None
    order: int | None = None
    length: int | None = None
    size: float | None = None

    def __post_init__(self) -> None:
        assert len(self.roles) == self.layer.neurons, "one role per neuron"

    neurons = Size(lambda self: self.layer.neurons)
    gate_width = Size(lambda self: self.layer.gate_width)
    parameters = Size(lambda self: parameter_count(self.layer))
    layers = Size(lambda self: len(self.layer.layers) if isinstance(self.layer, Stack) else 1)

    @property
    def settings(self) -> dict[str, str | int | float | bool | None]:
        """How the network was made, as it is stored beside its weights."""
        names = ("target", "form", "exact", "order", "epsilon", "length", "size")
        return {name: getattr(self, name) for name in names}

    def _repr_html_(self) -> str:
        """Return what a notebook shows: how the network was made, its roles and its arrays."""
        from underhood.layers.base.markup import html_table
        from underhood.layers.rendering import layer_html

        facts = {**self.settings, "layers": self.layers, "neurons": self.neurons}
        counts = Counter(role.kind for role in self.roles)
        facts |= {f"{kind} neurons": count for kind, count in counts.items()}
        rows = [
            {"fact": name, "value": value} for name, value in facts.items() if value is not None
        ]
        return html_table("Construction", rows).text + layer_html(self.layer)

    @property
    def dtype(self) -> np.dtype:
        """Precision of the weights."""
        return np.result_type(*(leaf.dtype for leaf in jax.tree.leaves(self.layer)))

    def error(
        self, *, key: PRNGKeyArray, length: int = 32, size: float = 1.0, sequences: int = 16
    ) -> float:
        """Return max|y − y_ref| / max|y_ref| on random sequences.

        The network runs in its precision; y_ref is the source's definition in float64. If the
        source's outputs are all zero, the error is 0 when the network's are zero too, and otherwise
        BadInput is raised. BadInput is also raised for outputs outside the range of the precision.

        length     tokens of a sequence
        size       standard deviation of the tokens' entries, which are Gaussian with mean zero
        sequences  how many sequences are drawn
        """
        return float(self.errors(key=key, length=length, size=size, sequences=sequences)[-1])

    def errors(
        self, *, key: PRNGKeyArray, length: int, size: float = 1.0, sequences: int = 16
    ) -> np.ndarray:
        """Return the error after 1, 2, …, `length` tokens; `error` explains the arguments."""
        problems = key_problems(key) + whole_problems(length=length, sequences=sequences)
        refuse(problems + number_problems(above=True, size=size), about="error")
        with jax.enable_x64(True):
            shape = (sequences, length, self.source.d_in)
            drawn = np.asarray(jax.random.normal(key, shape, jnp.float64))
            with np.errstate(over="ignore"):
                xs = (size * drawn).astype(self.dtype)
            ys = np.asarray(run_batch(self.layer, jnp.asarray(xs)), np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            expected = reference(self.source, xs)
            differences, largest, reached = (
                np.maximum.accumulate(np.max(np.abs(outputs), axis=(0, 2), initial=0.0))
                for outputs in (ys - expected, expected, ys)
            )
            # Zero because the tokens are tiny, and not because the source is.
            vanished = largest[-1] == 0 and bool(np.any(reference(self.source, drawn)))
        where = f"on {length} tokens of size {size:g}"
        for name, last in (("source", largest[-1]), ("network", reached[-1])):
            if not np.isfinite(last):
                raise BadInput(
                    f"The {name}'s outputs {where} are too large for {self.dtype}; scale the "
                    "weights or the tokens down."
                )
        if vanished or 0 < largest[-1] < np.finfo(self.dtype).tiny:
            raise BadInput(
                f"The source's outputs {where} are too small for {self.dtype}; scale the weights "
                "or the tokens up."
            )
        if largest[-1] == 0 < reached[-1]:
            raise BadInput(
                f"The source's outputs {where} are all zero, so there is no relative error; the "
                f"network's largest output is {reached[-1]:.1e}."
            )
        # Until the source has an output, any difference is infinitely large.
        unlike = np.where(differences > 0, np.inf, 0.0)
        return np.divide(differences, largest, out=unlike, where=largest > 0)


@eqx.filter_jit
def run_batch(layer: Layer, xs: jax.Array) -> jax.Array:
    return jax.vmap(layer)(xs)
