"""Any layer as arrays: its outputs and states on many sequences in float64, or a clear refusal.

A layer is whatever maps one sequence [time, d_in] to [time, d_out]: ours, or somebody else's
callable module. If it has `initial_state()` and `step(state, x)`, its states are read too.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from underhood.common.errors import BadInput, refuse
from underhood.common.keys import key_problems
from underhood.common.numbers import whole_problems

Sequences = Float[Array, "batch time d_in"]


def checked_d_in(layer: Any, key: Any, time: Any, sequences: Any, d_in: Any) -> int:
    """Numbers per token, once all arguments make sense."""
    if not callable(layer):
        raise BadInput(f"attention_score: a {type(layer).__name__} is not a layer to be called.")
    own = getattr(layer, "d_in", None)
    if own is None and d_in is None:
        raise BadInput("attention_score: the layer has no d_in; pass d_in=, numbers per token.")
    d_in = own if d_in is None else d_in
    problems = whole_problems(least=2, time=time) + whole_problems(least=8, sequences=sequences)
    problems += whole_problems(d_in=d_in)
    if own is not None and own != d_in:
        problems.append(f"d_in is {d_in} but the layer reads {own} numbers per token")
    problems += key_problems(key)
    refuse(problems, about="attention_score")
    p = d_in + 1
    check_tokens(time, sequences, p * p * (p + 1) // 2, f"products of {d_in} inputs and a constant")
    return int(d_in)


def check_tokens(time: int, sequences: int, numbers: int, what: str) -> None:
    """Refuse a regression on the fitted half with fewer than two tokens per number."""
    if sequences // 2 * time < 2 * numbers:
        needed = 2 * -(-2 * numbers // time)
        raise BadInput(
            f"attention_score: {sequences} sequences of {time} tokens are too few to fit {numbers} "
            f"numbers ({what}); pass sequences={needed} or more."
        )


def streams(layer: Any) -> bool:
    """Whether the layer shows its state."""
    return all(callable(getattr(layer, name, None)) for name in ("step", "initial_state"))


def check_layer(layer: Any, xs: Sequences) -> None:
    """Refuse layers that do not map [time, d_in] to [time, d_out], or have too large a state."""
    sequences, time, d_in = xs.shape
    try:
        made = eqx.filter_eval_shape(layer, xs[0])
        state = eqx.filter_eval_shape(states, layer, xs).shape[2] if streams(layer) else 0
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


def finite(what: str, values: Array) -> np.ndarray:
    """NumPy numbers, refused unless all are finite."""
    numbers = np.asarray(values)
    if not np.all(np.isfinite(numbers)):
        raise BadInput(f"attention_score: the layer's {what} on N(0, 1) inputs are not finite.")
    return numbers


def promoted(layer: Any) -> Any:
    """The layer with its weights in float64, or complex128."""
    return jax.tree.map(
        lambda leaf: (
            jnp.asarray(leaf, jnp.promote_types(leaf.dtype, jnp.float64))
            if eqx.is_inexact_array(leaf)
            else leaf
        ),
        layer,
    )


@eqx.filter_jit
def outputs(layer: Any, xs: Sequences) -> Float[Array, "batch time d_out"]:
    """The outputs at all times of many sequences."""
    return jax.vmap(layer)(xs)


@eqx.filter_jit
def states(layer: Any, xs: Sequences) -> Float[Array, "batch time state"]:
    """The state after every token, as real numbers."""
    start = jax.tree.map(
        lambda leaf: (
            jnp.asarray(leaf, jnp.result_type(leaf, xs)) if eqx.is_inexact_array(leaf) else leaf
        ),
        layer.initial_state(),
    )

    def advance(state: Any, x: Array) -> tuple[Any, Array]:
        state = layer.step(state, x)[0]
        return state, real_numbers(state)

    return jax.vmap(lambda one: jax.lax.scan(advance, start, one)[1])(xs)


def real_numbers(state: Any) -> Float[Array, " state"]:
    """All floating-point numbers of a state; complex ones as their real and imaginary parts."""
    parts = [jnp.zeros(0)]
    for leaf in jax.tree.leaves(state):
        if jnp.iscomplexobj(leaf):
            parts += [jnp.real(leaf).ravel(), jnp.imag(leaf).ravel()]
        elif eqx.is_inexact_array(leaf):
            parts.append(leaf.ravel())
    return jnp.concatenate(parts)
