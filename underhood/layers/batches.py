"""Many sequences at once: the same numbers as `jax.vmap(layer)`, in fewer and larger products.

A layer is an equation over one sequence, and its vmap defines these functions. But gradients of a
vmapped product contract two axes, which costs a transposed copy of every activation. So the tokens
of all sequences are laid out as one matrix [time·batch, d], time outermost: products are then
plain, and the recurrence walks through memory in order.

A layer without a rule here is vmapped. `backend` is "cpu", "gpu", "tpu", "nvidia" or "interpret";
by default it is the one that JAX runs on. It chooses between forms of the recurrence that agree
(`base/recurrence.py`), where all but "cpu" count as accelerators. On an NVIDIA GPU it is "nvidia"
by default: kernels compute the LSTM and the GRU where they can. "interpret" runs these kernels as
JAX operations on any machine (`kernels/choice.py`).
"""

from collections.abc import Callable
from functools import partial, singledispatch

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact

from underhood.layers.attention import LinearAttention, MultiHead
from underhood.layers.base.recurrence import run_loop
from underhood.layers.base.recurrent import RecurrentLayer
from underhood.layers.gated_rnn import BilinearGates, SideGatedRNN
from underhood.layers.gru import GRU
from underhood.layers.kernels.choice import (
    after_embedding,
    gru_by_kernels,
    kernels_run,
    lstm_by_kernels,
    walked_on_data,
)
from underhood.layers.lstm import LSTM
from underhood.layers.mamba import Mamba, MambaBlock
from underhood.layers.stack import Stack

# A layer of ours or of somebody else: any function from one sequence to one sequence.
SequenceMap = Callable[[Float[Array, "time d_in"]], Float[Array, "time d_out"]]
Inputs = Float[Array, "batch time d_in"]
AllOutputs = Float[Array, "batch time d_out"]
LastOutputs = Float[Array, "batch d_out"]


@singledispatch
def batch_outputs(layer: SequenceMap, xs: Inputs, *, backend: str | None = None) -> AllOutputs:
    """Return the outputs at all times of many sequences."""
    return jax.vmap(layer)(xs)


@singledispatch
def last_outputs(layer: SequenceMap, xs: Inputs, *, backend: str | None = None) -> LastOutputs:
    """Return the outputs at the last token of many sequences, without the unused earlier ones."""
    return batch_outputs(layer, xs, backend=backend)[:, -1]


def by_token(function: Callable[[Array], Array], array: Array) -> Array:
    """Apply a function of [tokens, d] to an array [time, batch, d] or [batch, d]."""
    flat = function(array.reshape(-1, array.shape[-1]))
    return flat.reshape(*array.shape[:-1], flat.shape[-1])


def time_first(array: Array) -> Array:
    """Turn [batch, time, …] into [time, batch, …], and back."""
    return jnp.swapaxes(array, 0, 1)


@batch_outputs.register
def _(
    layer: LinearAttention | MultiHead | Mamba | MambaBlock,
    xs: Inputs,
    *,
    backend: str | None = None,
) -> AllOutputs:
    return jax.vmap(partial(layer, backend=backend))(xs)


def recurrent_states(
    layer: RecurrentLayer, xs: Inputs, backend: str | None
) -> tuple[Inexact[Array, "time batch hidden"], Float[Array, "time batch u"]]:
    us = by_token(layer.enter, time_first(xs))
    return layer.states(by_token(layer.write, us), backend=backend), us


@batch_outputs.register
def _(layer: RecurrentLayer, xs: Inputs, *, backend: str | None = None) -> AllOutputs:
    states, us = recurrent_states(layer, xs, backend)
    outputs = layer.read(states.reshape(-1, states.shape[-1]), us.reshape(-1, us.shape[-1]))
    return time_first(outputs.reshape(*us.shape[:-1], outputs.shape[-1]))


@last_outputs.register
def _(
    layer: BilinearGates | SideGatedRNN, xs: Inputs, *, backend: str | None = None
) -> LastOutputs:
    states, us = recurrent_states(layer, xs, backend)
    return layer.read(states[-1], us[-1])


@batch_outputs.register
def _(layer: LSTM, xs: Inputs, *, backend: str | None = None) -> AllOutputs:
    if kernels_run(layer, xs, backend):
        return time_first(lstm_by_kernels(layer, time_first(xs), backend))
    # The sigmoid gates side by side, then the candidate: one product per token instead of four.
    U = jnp.concatenate([layer.U_f, layer.U_g, layer.U_o, layer.U_c])
    V = jnp.concatenate([layer.V_f, layer.V_g, layer.V_o, layer.V_c])
    b = jnp.concatenate([layer.b_f, layer.b_g, layer.b_o, layer.b_c])
    entering = by_token(lambda x: x @ U.T + b, time_first(xs))
    n = layer.neurons

    def step(state: tuple[Array, Array], now: Array) -> tuple[tuple[Array, Array], Array]:
        h, c = state
        gates = now + h @ V.T
        f, g, o = jnp.split(jax.nn.sigmoid(gates[:, : 3 * n]), 3, axis=1)
        c = f * c + g * jnp.tanh(gates[:, 3 * n :])
        h = o * jnp.tanh(c)
        return (h, c), h

    nothing = jnp.zeros((xs.shape[0], n), entering.dtype)
    return time_first(run_loop(step, (nothing, nothing), entering, backend))


@batch_outputs.register
def _(layer: GRU, xs: Inputs, *, backend: str | None = None) -> AllOutputs:
    if kernels_run(layer, xs, backend):
        return time_first(gru_by_kernels(layer, time_first(xs), backend))
    U = jnp.concatenate([layer.U_r, layer.U_z, layer.U_h])
    V = jnp.concatenate([layer.V_r, layer.V_z])
    b = jnp.concatenate([layer.b_r, layer.b_z, layer.b_h])
    entering = by_token(lambda x: x @ U.T + b, time_first(xs))
    n = layer.neurons

    def step(h: Array, now: Array) -> tuple[Array, Array]:
        r, z = jnp.split(jax.nn.sigmoid(now[:, : 2 * n] + h @ V.T), 2, axis=1)
        candidate = jnp.tanh(now[:, 2 * n :] + layer.recalled(r, h))
        h = (1 - z) * h + z * candidate
        return h, h

    nothing = jnp.zeros((xs.shape[0], n), entering.dtype)
    return time_first(run_loop(step, nothing, entering, backend))


def stack_outputs(
    which: Callable[..., Array], layer: Stack, xs: Inputs, *, backend: str | None = None
) -> Float[Array, "batch *time d_out"]:
    """Return all outputs of a stack or the last ones, as `which` does for its last layer."""
    layer.check_precision()
    first, *others = layer.layers
    if layer.embed is not None:
        if isinstance(first, LSTM | GRU) and kernels_run(first, xs, backend):
            first = after_embedding(first, layer.embed)
        else:
            xs = by_token(layer.embed, xs)
    *below, last = first, *others
    for lower in below:
        xs = batch_outputs(lower, xs, backend=backend)
    outputs = which(last, xs, backend=backend)
    return outputs if layer.readout is None else by_token(layer.readout, outputs)


def outputs_on_data(
    which: Callable[..., Array], layer: SequenceMap, xs: Inputs, *, backend: str | None = None
) -> Float[Array, "batch *time d_out"]:
    """Return `which` outputs, all or the last, where no gradient by the sequences is asked for.

    Then a kernel may walk through the first layer without a gradient for them.
    """
    if isinstance(layer, Stack) and layer.embed is not None:
        layer.check_precision()
        first, *others = layer.layers
        if isinstance(first, LSTM):
            states = walked_on_data(first, layer.embed, xs, backend)
            if states is not None and others:
                return which(
                    Stack(None, others, layer.readout), time_first(states), backend=backend
                )
            if states is not None:
                shown = states[-1] if which is last_outputs else time_first(states)
                return shown if layer.readout is None else by_token(layer.readout, shown)
    return which(layer, xs, backend=backend)


batch_outputs.register(Stack, partial(stack_outputs, batch_outputs))
last_outputs.register(Stack, partial(stack_outputs, last_outputs))
