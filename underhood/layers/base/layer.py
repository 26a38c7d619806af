"""What every layer can do: run over one sequence at once, or stream it token by token."""

from abc import abstractmethod
from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Any, no_type_check

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from underhood.common.arrays import Weight
from underhood.common.errors import BadInput, refuse, with_article
from underhood.layers.base.shapes import Output, Outputs, Token, Tokens, problems_of


class Size(property):
    """A property that counts: `d_in = Size(lambda self: self.W_in.shape[1] - 1)`."""

    if TYPE_CHECKING:

        def __get__(self, layer: object, kind: type | None = None) -> int:  # type: ignore[override]
            ...


def axis_size(field: str, axis: int) -> Size:
    """Return a property that reads a shape; `d_in = axis_size("W_V", 1)` is W_V.shape[1]."""
    return Size(lambda self: getattr(self, field).shape[axis])


class Layer(eqx.Module):
    """A function from one sequence [time, d_in] to one sequence [time, d_out].

    Use `jax.vmap` to run batches of sequences, or layers with stacked weights.

    d_in, d_out  numbers per input and output token
    neurons      recurrent units: numbers that the state carries on; a complex one counts once
    gate_width   products that the gates pass to a readout or to the next layer
    """

    d_in = d_out = neurons = gate_width = Size(abstractmethod(lambda self: 0))

    def __call__(self, xs: Tokens) -> Outputs:
        """Return the outputs at all times; token by token, unless a layer has a faster way."""
        return stream(self, xs)

    @abstractmethod
    def initial_state(self) -> PyTree:
        """Return the state before the first token."""

    @abstractmethod
    def step(self, state: PyTree, x: Token) -> tuple[PyTree, Output]:
        """Return the state after one more token, and the output there."""

    def __check_init__(self) -> None:
        refuse(problems_of(self) or self.further_problems(), about=type(self).__name__)

    def further_problems(self) -> list[str]:
        """List what is wrong beyond the arrays' shapes; called only if the shapes are right."""
        return []

    def check_sequence(self, xs: Weight) -> None:
        """Refuse anything but one sequence of tokens of the right size."""
        self.check_array(xs, "")
        if xs.ndim != 2 or xs.shape[1] != self.d_in:
            raise BadInput(
                f"{type(self).__name__} takes one sequence [time, {self.d_in}] but got shape "
                f"{tuple(xs.shape)}; for a batch call jax.vmap(layer)."
            )

    def check_step(self, state: PyTree, x: Weight) -> None:
        """Refuse anything but a state as the layer makes it and one token of the right size."""
        self.check_array(x, ".step")
        if jnp.shape(x) != (self.d_in,):
            raise BadInput(
                f"{type(self).__name__}.step takes one token [{self.d_in}] but got shape "
                f"{jnp.shape(x)}; for a batch call jax.vmap(layer.step)."
            )
        given, wanted = shapes_of(state), shapes_of(self.initial_state())
        if given != wanted:
            raise BadInput(
                f"{type(self).__name__}.step takes a state of shape {wanted} but got {given}; "
                "start with layer.initial_state()."
            )

    def check_array(self, value: Any, method: str) -> None:  # Any: whatever the caller gave
        if not isinstance(value, Weight):
            taker, kind = f"{type(self).__name__}{method}", type(value).__name__
            raise BadInput(f"{taker} takes a NumPy or JAX array, not {with_article(kind)}.")

    def _repr_html_(self) -> str:
        # Notebooks alone need it.
        from underhood.layers.rendering import layer_html

        return layer_html(self)

    # JAX keeps compiled functions by hash and equality. Equinox hashes and compares a layer by its
    # arrays, which have no hash. A layer never changes, so its identity serves where they do not.
    def __hash__(self) -> int:
        try:
            return super().__hash__()
        except TypeError:
            return id(self)

    def __eq__(self, other: object) -> Any:  # Any: Equinox may return a traced truth value
        return self is other or super().__eq__(other)

    # Called so often that checking its types would take a third of the time of the tests.
    @no_type_check
    def __getattribute__(self, name: str) -> Any:  # Any: whatever the attribute is
        value = object.__getattribute__(self, name)
        bound = isinstance(value, MethodType) and value.__self__ is self
        return LayerMethod(value.__func__, self) if bound and name[:2] != "__" else value


class LayerMethod(eqx.Module):
    """A method of a layer as a pytree that JAX can hash, so that `jax.jit(layer.step)` works."""

    function: Callable[..., Any] = eqx.field(static=True)  # Any: any method's signature
    layer: Layer

    def __call__(self, *arguments: Any, **options: Any) -> Any:  # Any: the method's own
        return self.function(self.layer, *arguments, **options)

    @property
    def __name__(self) -> str:
        return self.function.__name__

    @property
    def __wrapped__(self) -> MethodType:
        return MethodType(self.function, self.layer)

    def __hash__(self) -> int:
        return hash((self.function, id(self.layer)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LayerMethod):
            return False
        return self.layer is other.layer and self.function is other.function


def shapes_of(state: PyTree) -> PyTree:
    """Return a state with each array replaced by its shape; other things by their type's name."""
    return jax.tree.map(
        lambda leaf: tuple(leaf.shape) if isinstance(leaf, Weight) else type(leaf).__name__,
        state,
        is_leaf=lambda node: node is None,
    )


def stream(layer: Layer, xs: Tokens) -> Outputs:
    """Run a layer token by token; the same function as `layer(xs)`, in constant memory."""
    layer.check_sequence(xs)
    # The state has the wider precision of the layer and the inputs.
    state = layer.initial_state()
    state = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf, xs)), state)
    return jax.lax.scan(layer.step, state, xs)[1]


def zeros(*shape: int, like: Weight) -> Float[Array, "..."]:
    """Return zeros in the precision that `like` has once JAX computes with it."""
    return jnp.zeros(shape, jnp.asarray(like).dtype)


def gaussian(key: PRNGKeyArray, *shape: int) -> Float[Array, "..."]:
    """Draw random weights [..., fan_in] from N(0, 1/fan_in)."""
    return jax.random.normal(key, shape) / np.sqrt(max(shape[-1], 1))


def random_gates(
    key: PRNGKeyArray, letters: str, *, d_in: int, hidden: int
) -> dict[str, Float[Array, "..."]]:
    """Draw U [hidden, d_in] and V [hidden, hidden] of each gate from N(0, 1/fan_in); b is zero."""
    keys = iter(jax.random.split(key, 2 * len(letters)))
    weights = {}
    for gate in letters:
        weights[f"U_{gate}"] = gaussian(next(keys), hidden, d_in)
        weights[f"V_{gate}"] = gaussian(next(keys), hidden, hidden)
        weights[f"b_{gate}"] = jnp.zeros(hidden)
    return weights


def append_one(xs: Float[Array, "*time d"]) -> Float[Array, "*time d_plus_1"]:
    """Return [x; 1], so that a weight's last column is a bias."""
    return jnp.concatenate([xs, jnp.ones_like(xs[..., :1])], axis=-1)


def bilinear(W_m: Weight, W_x: Weight, xs: Float[Array, "*time d"]) -> Float[Array, "*time gated"]:
    """Return (W_m x) ⊙ (W_x x) by one product with both matrices stacked, which reads x once."""
    both = xs @ jnp.concatenate([W_m, W_x]).T
    return both[..., : W_m.shape[0]] * both[..., W_m.shape[0] :]


def parameter_count(module: PyTree) -> int:
    """Count the numbers in a module's arrays."""
    return sum(int(leaf.size) for leaf in jax.tree.leaves(module) if eqx.is_array(leaf))
