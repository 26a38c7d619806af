"""Any layer as arrays: its outputs and states on many sequences in float64, or a clear refusal.

A layer is whatever maps one sequence [time, d_in] to [time, d_out]: ours, or somebody else's
callable module. If it has `initial_state()` and `step(state, x)`, its states are read too.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from underhood.common.errors import BadInput, refuse
from underhood.common.keys import key_problems
from underhood.common.numbers import whole_problems

AnyLayer = Callable[[Array], Array]
TokenSequences = Float[Array, "batch time d_in"]


def checked_d_in(layer: AnyLayer, key: object, time: int, sequences: int, d_in: int | None) -> int:
    """Refuse arguments that make no sense, and return the numbers per token."""
    if not callable(layer):
        raise BadInput(f"attention_score: a {type(layer).__name__} is not a layer to be called.")
    reads = getattr(layer, "d_in", d_in)
    d_in = reads if d_in is None else d_in
    if d_in is None:
        raise BadInput("attention_score: the layer has no d_in; pass d_in=, numbers per token.")
    problems = whole_problems(least=2, time=time) + whole_problems(least=8, sequences=sequences)
    problems += whole_problems(d_in=d_in)
    if reads not in (None, d_in):
        problems.append(f"d_in is {d_in} but the layer reads {reads} numbers per token")
    refuse(problems + key_problems(key), about="attention_score")
    p = d_in + 1
    check_tokens(time, sequences, p * p * (p + 1) // 2, f"products of {d_in} inputs and a constant")
    return int(d_in)


def check_tokens(time: int, sequences: int, numbers: int, what: str) -> None:
    """Refuse a regression on half of the sequences with fewer than two tokens per number."""
    if sequences // 2 * time < 2 * numbers:
        needed = 2 * -(-2 * numbers // time)
        raise BadInput(
            f"attention_score: {sequences} sequences of {time} tokens are too few to fit {numbers} "
            f"numbers ({what}); pass sequences={needed} or more."
        )


def streams(layer: AnyLayer) -> bool:
    """Tell whether the layer shows its state."""
    return all(callable(getattr(layer, name, None)) for name in ("step", "initial_state"))


def check_layer(layer: AnyLayer, xs: TokenSequences) -> None:
    """Refuse layers that do not map [time, d_in] to [time, d_out], or have too large a state."""
    sequences, time, d_in = xs.shape
    try:
        made = eqx.filter_eval_shape(layer, xs[0])
        state = eqx.filter_eval_shape(layer_states, layer, xs).shape[2] if streams(layer) else 0
    except BadInput:
        raise
    except (TypeError, ValueError, AttributeError) as problem:
        line = str(problem).strip().split("\n")[0]
        raise BadInput(
            f"attention_score: the layer fails on a sequence of shape ({time}, {d_in}): {line}"
        ) from problem
    check_tokens(time, sequences, state + 1, "the state and a constant")
    kind = getattr(made, "dtype", None)
    if kind is None or not jnp.issubdtype(kind, jnp.floating):
        given = type(made).__name__ if kind is None else f"{kind} numbers"
        raise BadInput(f"attention_score: the layer must return real numbers, not {given}.")
    if len(made.shape) != 2 or made.shape[0] != time or made.shape[1] == 0:
        raise BadInput(
            f"attention_score: for a sequence of shape ({time}, {d_in}) the layer must return "
            f"({time}, d_out), not {made.shape}."
        )


def read_layer(layer: AnyLayer, xs: TokenSequences, *, states: bool = False) -> np.ndarray:
    """Return a layer's outputs or states, or refuse them unless all are finite."""
    numbers = np.asarray((layer_states if states else layer_outputs)(layer, xs))
    if not np.all(np.isfinite(numbers)):
        what = "states" if states else "outputs"
        raise BadInput(f"attention_score: the layer's {what} on N(0, 1) inputs are not finite.")
    return numbers


def promoted(tree: PyTree, dtype: jnp.dtype = jnp.float64) -> PyTree:
    """Return a layer or state with its floating-point numbers in float64, or complex128."""
    numbers, rest = eqx.partition(tree, eqx.is_inexact_array)
    wider = jax.tree.map(lambda x: jnp.asarray(x, jnp.promote_types(x.dtype, dtype)), numbers)
    return eqx.combine(wider, rest)


@eqx.filter_jit
def layer_outputs(layer: AnyLayer, xs: TokenSequences) -> Float[Array, "batch time d_out"]:
    return jax.vmap(layer)(xs)


@eqx.filter_jit
def layer_states(layer: PyTree, xs: TokenSequences) -> Float[Array, "batch time state"]:
    """Return the state after every token, as real numbers."""
    start = promoted(layer.initial_state(), xs.dtype)

    def advance(state: PyTree, x: Array) -> tuple[PyTree, Array]:
        state = layer.step(state, x)[0]
        return state, real_numbers(state)

    return jax.vmap(lambda sequence: jax.lax.scan(advance, start, sequence)[1])(xs)


def real_numbers(state: PyTree) -> Float[Array, " state"]:
    """Return all floating-point numbers of a state; complex ones as real and imaginary parts."""
    parts = [jnp.zeros(0)]
    for leaf in jax.tree.leaves(state):
        if jnp.iscomplexobj(leaf):
            parts += [jnp.real(leaf).ravel(), jnp.imag(leaf).ravel()]
        elif eqx.is_inexact_array(leaf):
            parts.append(leaf.ravel())
    return jnp.concatenate(parts)
