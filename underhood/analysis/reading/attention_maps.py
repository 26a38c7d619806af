"""`attention_map`: the matrices by which a layer mixes its tokens, exactly.

At its core a recurrent layer computes o_t = Σ_{s≤t} A_ts v_s with a matrix A that depends on the
tokens, per head or per channel. What stands around the core acts on each token alone, or on a few
neighbours, and is named in `outside`.

attention, heads     A_ts = q_t·k_s, one per value row with decay: λ^{t−s} q_t·k_s; values v
gated RNN            y_o = Σ_s A^o_ts·1: a gated RNN multiplies two sums over the past, and no core
                     has values apart from the query, so A^o_ts = Σ_m D_om (W_out_m h_t)_m
                     (W_out_x λ^{t−s} g_s)_m, and the value is 1
dense gated RNN      the same with A^{t−s} g_s in the place of λ^{t−s} g_s
side-gated RNN       A^o_ts = Σ_n D_on (W_side x_t)_n λ_n^{t−s} g_sn, and the value is 1
LRU                  A_ts = Re λ^{t−s} and −Im λ^{t−s}: no token in it, so the layer is refused
Mamba                A_ts = Σ_n C_on(x_t) (∏ Ā)_ts,n (Δ B(x_s) x_s)_n, and the value is 1
layers of today      `layers/modern`: the core's own map and values
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from underhood.analysis.reading.map_refusals import refusal, refuse_tokens
from underhood.common.arrays import Weight
from underhood.common.errors import BadInput
from underhood.common.foreign import read_foreign
from underhood.layers import (
    MLSTM,
    RGLRU,
    DenseGatedRNN,
    GatedRNN,
    JambaBlock,
    LinearAttention,
    Mamba,
    Mamba2,
    MambaBlock,
    MinGRU,
    MultiHead,
    SideGatedRNN,
)
from underhood.layers.mamba import SelectiveBlock
from underhood.layers.modern.core import decay_products, memory_map
from underhood.layers.modern.mixer import Mixer

Maps = Float[Array, "maps time time2"]
Values = Float[Array, "maps time width"]


@dataclass(frozen=True)
class AttentionMap:
    """The maps of a layer on one sequence: the core gives maps @ values.

    maps     [heads or channels, time, time], zero above the diagonal
    values   [heads or channels, time, width]
    outside  names of what stands outside the maps
    outputs  what the layer returns, computed from the maps
    """

    maps: Float[np.ndarray, "maps time time2"]
    values: Float[np.ndarray, "maps time width"]
    outside: tuple[str, ...]
    outputs: Float[np.ndarray, "time d_out"]

    @property
    def mixed(self) -> Float[np.ndarray, "maps time width"]:
        """What the core gives: maps @ values."""
        return self.maps @ self.values


@dataclass(frozen=True)
class Core:
    """Maps and values, and what turns what they give [maps, time, width] into outputs."""

    maps: Maps
    values: Values
    outside: tuple[str, ...]
    leave: Callable[[Values], Float[Array, "time d_out"]]


def attention_map(layer: object, xs: Weight) -> AttentionMap:
    """Return the matrices by which a layer mixes the tokens of one sequence, in float64.

    layer  attention, a gated RNN, Mamba, or a layer of `layers/modern`; or a module of PyTorch or
           transformers that `from_torch` reads as one of them
    xs     [time, d_in]
    """
    layer = read_foreign(layer)
    if not isinstance(layer, Mapped):
        raise BadInput(refusal(layer))
    if any(isinstance(part, jax.core.Tracer) for part in (xs, *jax.tree.leaves(layer))):
        raise BadInput("attention_map returns NumPy arrays: call it outside jit, grad and vmap.")
    layer.check_sequence(xs)
    refuse_tokens(xs)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), layer)
        maps, values, outside, outputs = mixed_tokens(wide, jnp.asarray(xs, jnp.float64))
    made = AttentionMap(np.asarray(maps), np.asarray(values), outside, np.asarray(outputs))
    parts = [made.maps, made.values, made.outputs]
    if isinstance(layer, MLSTM):
        # Its map is divided by the normaliser, which the layer does after its sums.
        with jax.enable_x64(True):
            parts.append(np.asarray(eqx.filter_jit(wide)(jnp.asarray(xs, jnp.float64))))
    if not all(np.all(np.isfinite(part)) for part in parts):
        raise BadInput("attention_map: the maps are not finite; scale the tokens or weights down.")
    return made


Mapped = (
    LinearAttention
    | MultiHead
    | GatedRNN
    | DenseGatedRNN
    | SideGatedRNN
    | Mamba
    | SelectiveBlock
    | Mixer
    | MLSTM
    | RGLRU
    | MinGRU
)


# One program instead of a hundred small ones.
@eqx.filter_jit
def mixed_tokens(
    layer: Mapped, xs: Float[Array, "time d_in"]
) -> tuple[Maps, Values, tuple[str, ...], Float[Array, "time d_out"]]:
    """Return maps, values, the names of what stands outside, and the layer's outputs."""
    core = core_of(layer, xs)
    return core.maps, core.values, core.outside, core.leave(core.maps @ core.values)


@singledispatch
def core_of(layer: Mapped, xs: Float[Array, "time d_in"]) -> Core:
    """Return the core of a layer; every kind has its rule below."""
    raise BadInput(refusal(layer))


@core_of.register
def _(layer: LinearAttention, xs: Float[Array, "time d_in"]) -> Core:
    values, keys, queries = layer.project(xs)
    scores = jnp.tril(queries @ keys.T)
    if layer.nu is None:
        return Core(scores[None], values[None], (), lambda mixed: mixed[0])
    decays = jnp.broadcast_to(jnp.asarray(layer.decay), values.shape)
    # A row of the memory has a decay of its own, so every value row has a map.
    maps = scores * jnp.moveaxis(decay_products(decays).after, -1, 0)
    return Core(maps, values.T[..., None], (), lambda mixed: mixed[..., 0].T)


@core_of.register
def _(layer: MultiHead, xs: Float[Array, "time d_in"]) -> Core:
    cores = [core_of(head, xs) for head in layer.heads]
    width = max(core.values.shape[-1] for core in cores)
    ends = np.cumsum([len(core.maps) for core in cores])[:-1]

    def padded(core: Core) -> Values:
        return jnp.pad(core.values, ((0, 0), (0, 0), (0, width - core.values.shape[-1])))

    def leave(mixed: Values) -> Float[Array, "time d_out"]:
        parts = jnp.split(mixed, ends)
        read = [
            core.leave(part[..., : core.values.shape[-1]])
            for core, part in zip(cores, parts, strict=True)
        ]
        return layer.mix(jnp.concatenate(read, axis=-1))

    maps = jnp.concatenate([core.maps for core in cores])
    outside = () if layer.W_O is None else ("W_O",)
    return Core(maps, jnp.concatenate([padded(core) for core in cores]), outside, leave)


@core_of.register
def _(layer: GatedRNN | DenseGatedRNN, xs: Float[Array, "time d_in"]) -> Core:
    written = layer.write(xs)
    reads = layer.states(written) @ layer.W_out_m.T
    # y_to = Σ_n (Σ_m D_om (W_out_m h_t)_m W_out_x_mn) h_tn, and h_tn = Σ_s ∏λ g_sn.
    query = jnp.einsum("om,tm,mn->otn", layer.D, reads, layer.W_out_x)
    maps = jnp.einsum("otn,tsn->ots", query, carried_on(layer, written))
    return Core(maps, ones_for(maps), ("W_out_m h_t, which reads the state too",), by_output)


def carried_on(
    layer: GatedRNN | DenseGatedRNN, written: Float[Array, "time hidden"]
) -> Float[Array, "time time hidden"]:
    """Return what is left at t of what was written at s ≤ t."""
    if isinstance(layer, GatedRNN):
        return decay_products(jnp.broadcast_to(layer.decay, written.shape)).after * written
    time = jnp.arange(len(written))
    # powers[lag, s] = A^lag g_s
    _, powers = jax.lax.scan(lambda now, _: (layer.carry(now), now), written, time)
    return jnp.where(jnp.tri(len(time))[..., None] > 0, powers[time[:, None] - time, time], 0.0)


@core_of.register
def _(layer: SideGatedRNN, xs: Float[Array, "time d_in"]) -> Core:
    written = layer.write(xs)
    decays = jnp.broadcast_to(jnp.asarray(layer.decay), written.shape)
    products = decay_products(decays).after
    maps = jnp.einsum("on,tn,tsn,sn->ots", layer.D, xs @ layer.W_side.T, products, written)
    return Core(maps, ones_for(maps), (), by_output)


@core_of.register
def _(layer: Mamba, xs: Float[Array, "time d_in"]) -> Core:
    inner = xs @ layer.W_input.T + layer.b_input
    decay, written = layer.dynamics(inner)
    C = jnp.einsum("ohi,ti->oth", layer.W_C, inner) + jnp.asarray(layer.b_C)[:, None]
    maps = jnp.einsum("otn,tsn,sn->ots", C, decay_products(decay).after, written)
    gate = jax.nn.sigmoid(xs @ layer.W_side.T)
    return Core(maps, ones_for(maps), ("σ(W_side x)",), lambda mixed: by_output(mixed) * gate)


@core_of.register
def _(layer: MambaBlock, xs: Float[Array, "time d_in"]) -> Core:
    us = layer.values(xs)
    decay, _, C = layer.dynamics(us)
    products = decay_products(decay).after
    # What is written is Δ u B; the values are u, so the map takes the rest.
    delta = jax.nn.softplus((us @ layer.W_x_dt.T) @ layer.W_dt.T + layer.b_dt)
    maps = jnp.einsum("tn,tscn,sc,sn->cts", C, products, delta, us @ layer.W_x_B.T)
    return block_core(layer, maps, us, xs, ("D x", "convolution", "gate", "W_out"))


@core_of.register
def _(layer: JambaBlock, xs: Float[Array, "time d_in"]) -> Core:
    outside = ("D x", "convolution", "norms of δ, B and C", "gate", "W_out")
    return block_core(layer, layer.core_map(xs), layer.values(xs), xs, outside)


def block_core(
    layer: SelectiveBlock, maps: Maps, us: Array, xs: Array, outside: tuple[str, ...]
) -> Core:
    return Core(maps, us.T[..., None], outside, lambda mixed: layer.leave(by_output(mixed), us, xs))


def ones_for(maps: Maps) -> Values:
    return jnp.ones((*maps.shape[:2], 1))


def by_output(mixed: Values) -> Float[Array, "time d_out"]:
    """Return outputs, one per map."""
    return mixed[..., 0].T


@core_of.register
def _(layer: Mixer, xs: Float[Array, "time d_in"]) -> Core:
    signals, gate = layer.signals(xs), layer.gate(xs)

    def leave(mixed: Values) -> Float[Array, "time d_out"]:
        return layer.leave(jnp.swapaxes(mixed, 0, 1), signals, gate)

    outside: tuple[str, ...] = ("D x",) if isinstance(layer, Mamba2) else ()
    outside += ("bonus r·(r_k⊙k) v",) if hasattr(layer, "r_k") else ()
    outside += ("convolution",) if hasattr(layer, "conv_v") or hasattr(layer, "conv_x") else ()
    outside += ("token shift",) if hasattr(layer, "mu_r") else ()
    outside += () if getattr(layer, "norm", None) is None else ("norm",)
    outside += ("gate",) if type(layer).gate is not Mixer.gate else ()
    values = jnp.swapaxes(signals.v, 0, 1)
    return Core(memory_map(signals), values, (*outside, "W_out"), leave)


@core_of.register
def _(layer: MLSTM, xs: Float[Array, "time d_in"]) -> Core:
    values = jnp.einsum("td,hvd->htv", xs, jnp.asarray(layer.W_v))

    def leave(mixed: Values) -> Float[Array, "time d_out"]:
        return layer.leave(jnp.swapaxes(mixed, 0, 1), xs)

    return Core(layer.core_map(xs), values, ("norm", "gate", "W_out"), leave)


@core_of.register
def _(layer: RGLRU, xs: Float[Array, "time d_in"]) -> Core:
    values = layer.signals(xs)[2].T[..., None]
    outside = ("convolution", "gate", "W_out", "b_out")
    return Core(
        layer.core_map(xs), values, outside, lambda mixed: layer.leave(by_output(mixed), xs)
    )


@core_of.register
def _(layer: MinGRU, xs: Float[Array, "time d_in"]) -> Core:
    values = layer.signals(xs)[2].T[..., None]
    return Core(
        layer.core_map(xs), values, ("g", "W_out"), lambda mixed: layer.leave(by_output(mixed))
    )
