"""`trace`: all named intermediates of a layer on one sequence, and what follows if one is changed.

`named_steps.py` has the names. A patch `{"state[12]": value}` replaces the state after token 12,
where the first token is 0. All that is computed from it, there and later, is computed from the new
value.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from underhood.analysis.reading.module_traces import trace_module
from underhood.analysis.reading.named_steps import named_step
from underhood.common.arrays import Weight
from underhood.common.errors import BadInput, did_you_mean, kind_of
from underhood.common.foreign import framework_of
from underhood.layers import Layer, Stack

Patch = Mapping[str, Weight | float]


class Replacement(NamedTuple):
    """What replaces a value at some times: where [time], and the new values [time, …]."""

    where: Array
    values: Array


# Any: a layer with an array [time, d_in], or a torch module with an array or a tensor.
def trace(layer: Any, xs: Any, patch: Patch | None = None) -> dict[str, Weight]:  # Any: see above
    """Return every named intermediate of a layer on one sequence, as arrays [time, …].

    layer  any layer, or a torch module that `from_torch` reads: it is read, and what it computes
           itself is compared and, without a patch, returned; its arrays are NumPy's
    patch  {"state[12]": value} changes the state after token 12 and runs on from there; every
           name of the result can be changed, "f[3]" or "layers[0].written[5]" for example

    It stands among the functions that read a network, not among the layers: it changes no weight,
    and the layers need not know that anybody looks. It runs token by token, can be differentiated,
    and "output" is what `layer(xs)` returns.
    """
    if framework_of(layer) is not None:
        return trace_module(layer, xs, patch, trace)
    if not isinstance(layer, Layer):
        raise BadInput(f"trace takes a layer or a torch module, not {kind_of(layer)}.")
    layer.check_sequence(xs)
    if isinstance(layer, Stack):
        layer.check_precision()
    xs = jnp.asarray(xs)
    if patch is None or not patch:
        return dict(run_named(layer, xs, {}))
    shapes = eqx.filter_eval_shape(run_named, layer, xs, {})
    return dict(run_named(layer, xs, replacements(patch, shapes, len(xs))))


@eqx.filter_jit
def run_named(layer: Layer, xs: Array, replaced: dict[str, Replacement]) -> dict[str, Array]:
    """Run a layer token by token; return what its steps note, with some values replaced."""

    def step(state: PyTree, now: tuple[Array, dict[str, Replacement]]) -> tuple[PyTree, PyTree]:
        x, replaced_now = now
        noted: dict[str, Array] = {}

        def note(name: str, value: Array) -> Array:
            if name in replaced_now:
                where, values = replaced_now[name]
                value = jnp.where(where, values, value)
            noted[name] = value
            return value

        after, _ = named_step(layer, state, x, note)
        return after, noted

    state = jax.tree.map(
        lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf, xs)), layer.initial_state()
    )
    return jax.lax.scan(step, state, (xs, replaced))[1]


def replacements(
    patch: Patch, shapes: dict[str, jax.ShapeDtypeStruct], time: int
) -> dict[str, Replacement]:
    """Return a patch as arrays over all times, or refuse what does not fit the layer."""
    if not isinstance(patch, Mapping):
        raise BadInput(f"trace: patch is a dict such as {{'state[12]': value}}, not {patch!r:.60}.")
    changes: dict[str, dict[int, Array]] = {}
    for place, value in patch.items():
        name, at = place_of(place, shapes, time)
        changes.setdefault(name, {})[at] = new_value(place, value, shapes[name])
    return {name: replacement(changes[name], shapes[name]) for name in changes}


def place_of(place: object, names: Mapping[str, object], time: int) -> tuple[str, int]:
    """Return the name and the time of "state[12]"."""
    parts = re.fullmatch(r"(.+)\[(-?\d{1,9})\]", place) if isinstance(place, str) else None
    # "layers[0]" alone has the form of a place and names a layer.
    if parts is None:
        raise BadInput(f"trace: {place!r} names no place; write 'state[12]' for token 12.")
    name, at = parts[1], int(parts[2])
    if name not in names:
        hint = did_you_mean(name, names)
        raise BadInput(f"trace: there is no {name!r}; there are {', '.join(names)}.{hint}")
    if not 0 <= at < time:
        raise BadInput(f"trace: {place!r} is not there; tokens are numbered from 0 to {time - 1}.")
    return name, at


def new_value(place: str, value: object, wanted: jax.ShapeDtypeStruct) -> Array:
    """Return a new value as an array of the right shape and precision."""
    try:
        array = jnp.asarray(value)
        fits = array.shape == wanted.shape[1:]
    except (TypeError, ValueError):
        raise BadInput(f"trace: the value of {place!r} is {kind_of(value)}.") from None
    if not fits:
        raise BadInput(
            f"trace: the value of {place!r} has shape {array.shape} but must be {wanted.shape[1:]}."
        )
    if jnp.iscomplexobj(array) and not jnp.issubdtype(wanted.dtype, jnp.complexfloating):
        raise BadInput(f"trace: the value of {place!r} is complex, and the layer is real there.")
    return array.astype(wanted.dtype)


def replacement(changes: dict[int, Array], wanted: jax.ShapeDtypeStruct) -> Replacement:
    """Return new values at some times as arrays over all times."""
    times = np.array(list(changes))
    where = np.zeros(wanted.shape[0], bool)
    where[times] = True
    values = jnp.zeros(wanted.shape, wanted.dtype).at[times].set(jnp.stack([*changes.values()]))
    return Replacement(jnp.asarray(where), values)
