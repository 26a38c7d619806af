"""One step of every layer, with a name for each intermediate.

`note(name, value)` records a value and returns it, or returns what it is to be replaced by. What
follows uses what `note` returned, so a changed value has its consequences, at this token and later.
The equations are those of the layers; the names are

written   what the token adds to the state      state    what the layer carries on: h, or S
output    y                                     cell     c of an LSTM, whose state is h
and the letters of the layer's file for gates and factors.
"""

from collections.abc import Callable
from functools import singledispatch
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from underhood.layers import (
    GRU,
    LSTM,
    Layer,
    LinearAttention,
    LRUInOutMLP,
    Mamba,
    MambaBlock,
    MultiHead,
    SideGatedRNN,
    Stack,
)
from underhood.layers.base.layer import append_one
from underhood.layers.base.recurrent import RecurrentLayer
from underhood.layers.gated_rnn import BilinearGates
from underhood.layers.lru import AbstractLRU
from underhood.layers.modern.core import step_memory
from underhood.layers.modern.mixer import Mixer

# Names of what the tokens do to the memory of a mixer.
MIXED = {"q": "query", "k": "key", "v": "value", "decay": "decay", "a": "erased", "b": "erasing"}
MIXED |= {"bonus": "bonus"}

Note = Callable[[str, Array], Array]
Stepped = tuple[PyTree, Array]


def under(prefix: str, note: Note) -> Note:
    """Return a note whose names begin with a prefix and a dot."""
    return lambda name, value: note(f"{prefix}.{name}", value)


@singledispatch
def named_step(layer: Layer, state: PyTree, x: Array, note: Note) -> Stepped:
    """Return the state after one more token, and the output there."""
    after, y = layer.step(state, x)
    if isinstance(after, Array):
        after = note("state", after)
    return after, note("output", y)


@named_step.register
def _(layer: RecurrentLayer, state: Array, x: Array, note: Note) -> Stepped:
    u = note("u", layer.enter(x))
    state = note("state", layer.carry(state) + note("written", layer.write(u)))
    return state, note("output", layer.read(state, u))


def product(note: Note, names: tuple[str, str, str], left: Array, right: Array) -> Array:
    """Return the product of two factors; all three have names."""
    return note(names[2], note(names[0], left) * note(names[1], right))


@named_step.register
def _(layer: BilinearGates, state: Array, x: Array, note: Note) -> Stepped:
    extended, names = append_one(jnp.asarray(x)), ("in_m", "in_x", "written")
    written = product(note, names, extended @ layer.W_in_m.T, extended @ layer.W_in_x.T)
    state = note("state", layer.carry(state) + written)
    names = ("out_m", "out_x", "gated")
    gated = product(note, names, state @ layer.W_out_m.T, state @ layer.W_out_x.T)
    return state, note("output", gated @ layer.D.T)


@named_step.register
def _(layer: SideGatedRNN, state: Array, x: Array, note: Note) -> Stepped:
    written = product(note, ("in_m", "in_x", "written"), x @ layer.W_in_m.T, x @ layer.W_in_x.T)
    state = note("state", layer.carry(state) + written)
    gated = note("gated", note("side", x @ layer.W_side.T) * state)
    return state, note("output", gated @ layer.D.T)


@named_step.register
def _(layer: AbstractLRU, state: Array, x: Array, note: Note) -> Stepped:
    u = note("u", layer.enter(x))
    state = note("state", layer.carry(state) + note("written", layer.write(u)))
    mixed = state.real @ layer.C_re.T - state.imag @ layer.C_im.T + u @ layer.D.T
    mixed = note("mixed", mixed)
    if isinstance(layer, LRUInOutMLP):
        return state, note("output", layer.after(mixed))
    gate = note("gate", jax.nn.sigmoid(mixed @ layer.W_m.T))
    return state, note("output", gate * note("value", mixed @ layer.W_x.T))


@named_step.register
def _(layer: LSTM, state: tuple[Array, Array], x: Array, note: Note) -> Stepped:
    h, c = state
    f = note("f", jax.nn.sigmoid(x @ layer.U_f.T + h @ layer.V_f.T + layer.b_f))
    candidate = note("candidate", jnp.tanh(x @ layer.U_c.T + h @ layer.V_c.T + layer.b_c))
    g = note("g", jax.nn.sigmoid(x @ layer.U_g.T + h @ layer.V_g.T + layer.b_g))
    o = note("o", jax.nn.sigmoid(x @ layer.U_o.T + h @ layer.V_o.T + layer.b_o))
    c = note("cell", f * c + note("written", g * candidate))
    h = note("state", o * jnp.tanh(c))
    return (h, c), note("output", h)


@named_step.register
def _(layer: GRU, h: Array, x: Array, note: Note) -> Stepped:
    r = note("r", jax.nn.sigmoid(x @ layer.U_r.T + h @ layer.V_r.T + layer.b_r))
    recalled = note("recalled", layer.recalled(r, h))
    candidate = note("candidate", jnp.tanh(x @ layer.U_h.T + recalled + layer.b_h))
    z = note("z", jax.nn.sigmoid(x @ layer.U_z.T + h @ layer.V_z.T + layer.b_z))
    h = note("state", (1 - z) * h + note("written", z * candidate))
    return h, note("output", h)


@named_step.register
def _(layer: Mamba, state: Array, x: Array, note: Note) -> Stepped:
    inner = note("inner", x @ layer.W_input.T + layer.b_input)
    decay, written = layer.dynamics(inner)
    state = note("state", note("decay", decay) * state + note("written", written))
    C = note("C", jnp.einsum("ohi,i->oh", layer.W_C, inner) + layer.b_C)
    side = note("side", jax.nn.sigmoid(x @ layer.W_side.T))
    return state, note("output", note("queried", C @ state) * side)


@named_step.register
def _(layer: MambaBlock, state: tuple[Array, Array], x: Array, note: Note) -> Stepped:
    before, h = state
    window = note("window", jnp.concatenate([before, (x @ layer.W_in_u.T)[None]]))
    u = note("u", jax.nn.silu(jnp.sum(layer.conv * window, axis=0) + layer.b_conv))
    decay, written, C = layer.dynamics(u)
    h = note("state", note("decay", decay) * h + note("written", written))
    queried = note("queried", h @ note("C", C) + layer.D * u)
    gate = note("gate", jax.nn.silu(x @ layer.W_in_z.T))
    return (window[1:], h), note("output", (queried * gate) @ layer.W_out.T)


@named_step.register
def _(layer: Mixer, state: tuple[Array, Array], x: Array, note: Note) -> Stepped:
    before, memory = state
    window = note("window", jnp.concatenate([before, x[None]]))
    every = layer.signals(window)
    noted: dict[str, Any] = {  # Any: arrays, or None where the layer has no such signal
        letter: None if part is None else note(MIXED[letter], part[-1])
        for letter, part in every._asdict().items()
    }
    signals = every._replace(**noted)
    memory, mixed = step_memory(memory, signals)
    memory = note("state", memory)
    # RWKV-6 reads the memory before the token enters it.
    if signals.bonus is None:
        mixed = jnp.einsum("hkv,hk->hv", memory, signals.q)
    queried, gate = note("queried", mixed), note("gate", layer.gate(window)[-1])
    now = jax.tree.map(lambda part: part[None], signals)
    return (window[1:], memory), note("output", layer.leave(queried[None], now, gate[None])[0])


@named_step.register
def _(layer: LinearAttention, state: Array, x: Array, note: Note) -> Stepped:
    value, key, query = layer.project(x)
    value, key, query = note("value", value), note("key", key), note("query", query)
    decay = layer.decay
    kept = state if decay is None else jnp.asarray(decay)[:, None] * state
    state = note("state", kept + note("written", value[:, None] * key))
    return state, note("output", state @ query)


@named_step.register
def _(layer: MultiHead, state: tuple[Array, ...], x: Array, note: Note) -> Stepped:
    pairs = [
        named_step(head, before, x, under(f"heads[{number}]", note))
        for number, (head, before) in enumerate(zip(layer.heads, state, strict=True))
    ]
    outputs = jnp.concatenate([y for _, y in pairs])
    return tuple(after for after, _ in pairs), note("output", layer.mix(outputs))


@named_step.register
def _(layer: Stack, state: tuple[PyTree, ...], x: Array, note: Note) -> Stepped:
    x = x if layer.embed is None else note("embed", layer.embed(x))
    states = []
    for number, (part, before) in enumerate(zip(layer.layers, state, strict=True)):
        after, x = named_step(part, before, x, under(f"layers[{number}]", note))
        states.append(after)
    return tuple(states), note("output", x if layer.readout is None else layer.readout(x))
