"""Many sequences at once: the same numbers as `jax.vmap(layer)`, in fewer and larger products.

A layer is an equation over one sequence, and its vmap defines these functions. But gradients of a
vmapped product contract two axes, which costs a transposed copy of every activation. So the tokens
of all sequences are laid out as one matrix [time·batch, d], time outermost: products are then
plain, and the recurrence walks through memory in order.

A layer without a rule here is vmapped. `backend` is "cpu", "gpu" or "tpu"; by default it is the one
that JAX runs on. It chooses between forms of the recurrence that agree (`base/recurrence.py`).
"""

from collections.abc import Callable
from functools import partial, singledispatch

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from underhood.layers.attention import LinearAttention, MultiHead
from underhood.layers.base.recurrence import linear_recurrence, unrolled
from underhood.layers.gated_rnn import BilinearGates
from underhood.layers.gru import GRU
from underhood.layers.lru import AbstractLRU
from underhood.layers.lstm import LSTM
from underhood.layers.mamba import Mamba
from underhood.layers.mamba_block import MambaBlock
from underhood.layers.side_gated_rnn import SideGatedRNN
from underhood.layers.stack import Stack

# A layer of ours or of somebody else: any function from one sequence to one sequence.
SequenceMap = Callable[[Float[Array, "time d_in"]], Float[Array, "time d_out"]]
Sequences = Float[Array, "batch time d_in"]
Outputs = Float[Array, "batch time d_out"]
LastOutputs = Float[Array, "batch d_out"]


@singledispatch
def batch_outputs(layer: SequenceMap, xs: Sequences, *, backend: str | None = None) -> Outputs:
    """Return the outputs at all times of many sequences."""
    return jax.vmap(layer)(xs)


@singledispatch
def last_outputs(layer: SequenceMap, xs: Sequences, *, backend: str | None = None) -> LastOutputs:
    """Return the outputs at the last token of many sequences, without the unused earlier ones."""
    return batch_outputs(layer, xs, backend=backend)[:, -1]


def by_token(function: Callable[[Array], Array], array: Array) -> Array:
    """Apply a function of [tokens, d] to an array [time, batch, d]."""
    flat = function(array.reshape(-1, array.shape[-1]))
    return flat.reshape(*array.shape[:-1], flat.shape[-1])


def time_first(array: Array) -> Array:
    """Turn [batch, time, …] into [time, batch, …], and back."""
    return jnp.swapaxes(array, 0, 1)


@batch_outputs.register
def _(
    layer: LinearAttention | MultiHead | Mamba | MambaBlock,
    xs: Sequences,
    *,
    backend: str | None = None,
) -> Outputs:
    return jax.vmap(partial(layer, backend=backend))(xs)


def gated_states(
    layer: BilinearGates, xs: Sequences, backend: str | None
) -> Float[Array, "time batch hidden"]:
    return layer.states(by_token(layer.gate_in, time_first(xs)), backend=backend)


@batch_outputs.register
def _(layer: BilinearGates, xs: Sequences, *, backend: str | None = None) -> Outputs:
    states = gated_states(layer, xs, backend)
    return time_first(by_token(lambda h: layer.gate_out(h) @ layer.D.T, states))


@last_outputs.register
def _(layer: BilinearGates, xs: Sequences, *, backend: str | None = None) -> LastOutputs:
    return layer.gate_out(gated_states(layer, xs, backend)[-1]) @ layer.D.T


def side_gated_states(
    layer: SideGatedRNN, xs: Sequences, backend: str | None
) -> Float[Array, "time batch hidden"]:
    written = by_token(layer.gate_in, time_first(xs))
    return linear_recurrence(jnp.asarray(layer.decay), written, backend=backend)


@batch_outputs.register
def _(layer: SideGatedRNN, xs: Sequences, *, backend: str | None = None) -> Outputs:
    gates = by_token(lambda x: x @ layer.W_side.T, time_first(xs))
    gated = gates * side_gated_states(layer, xs, backend)
    return time_first(by_token(lambda h: h @ layer.D.T, gated))


@last_outputs.register
def _(layer: SideGatedRNN, xs: Sequences, *, backend: str | None = None) -> LastOutputs:
    states = side_gated_states(layer, xs, backend)
    return ((xs[:, -1] @ layer.W_side.T) * states[-1]) @ layer.D.T


@batch_outputs.register
def _(layer: AbstractLRU, xs: Sequences, *, backend: str | None = None) -> Outputs:
    us = by_token(layer.before, time_first(xs))
    written = by_token(layer.written, us)
    states = linear_recurrence(layer.eigenvalues, written, backend=backend)
    mixed = layer.read(states.reshape(-1, states.shape[-1]), us.reshape(-1, us.shape[-1]))
    outputs = layer.after(mixed)
    return time_first(outputs.reshape(*us.shape[:-1], outputs.shape[-1]))


@batch_outputs.register
def _(layer: LSTM, xs: Sequences, *, backend: str | None = None) -> Outputs:
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
    turns = unrolled(len(entering), backend)
    return time_first(jax.lax.scan(step, (nothing, nothing), entering, unroll=turns)[1])


@batch_outputs.register
def _(layer: GRU, xs: Sequences, *, backend: str | None = None) -> Outputs:
    U = jnp.concatenate([layer.U_r, layer.U_z, layer.U_h])
    V = jnp.concatenate([layer.V_r, layer.V_z])
    b = jnp.concatenate([layer.b_r, layer.b_z, layer.b_h])
    entering = by_token(lambda x: x @ U.T + b, time_first(xs))
    n = layer.neurons

    def step(h: Array, now: Array) -> tuple[Array, Array]:
        r, z = jnp.split(jax.nn.sigmoid(now[:, : 2 * n] + h @ V.T), 2, axis=1)
        candidate = jnp.tanh(now[:, 2 * n :] + (r * h) @ layer.V_h.T)
        h = (1 - z) * h + z * candidate
        return h, h

    nothing = jnp.zeros((xs.shape[0], n), entering.dtype)
    turns = unrolled(len(entering), backend)
    return time_first(jax.lax.scan(step, nothing, entering, unroll=turns)[1])


def before_last_layer(
    stack: Stack, xs: Sequences, backend: str | None
) -> Float[Array, "batch time hidden"]:
    """Run many sequences through a stack's embedding and all but its last layer."""
    stack.check_precision()
    xs = xs if stack.embed is None else by_token(stack.embed, xs)
    for layer in stack.layers[:-1]:
        xs = batch_outputs(layer, xs, backend=backend)
    return xs


@batch_outputs.register
def _(layer: Stack, xs: Sequences, *, backend: str | None = None) -> Outputs:
    below = before_last_layer(layer, xs, backend)
    outputs = batch_outputs(layer.layers[-1], below, backend=backend)
    return outputs if layer.readout is None else by_token(layer.readout, outputs)


@last_outputs.register
def _(layer: Stack, xs: Sequences, *, backend: str | None = None) -> LastOutputs:
    below = before_last_layer(layer, xs, backend)
    outputs = last_outputs(layer.layers[-1], below, backend=backend)
    return outputs if layer.readout is None else layer.readout(outputs)
