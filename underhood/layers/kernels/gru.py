"""The GRU's walk through time in one kernel, and its gradient in another.

    r = σ(e_r + V_r h),  z = σ(e_z + V_z h),  e = U x_t + b is given
    h̃ = tanh(e_h + V_h (r⊙h))        reset="before"
    h̃ = tanh(e_h + r⊙(V_h h + c_h))  reset="after"
    h' = (1 − z)⊙h + z⊙h̃

Backward, with η = ∂loss/∂h' in all, ∂a for the sums inside σ and tanh, and q = V_h h + c_h:

    ∂a_z = η⊙(h̃ − h)⊙z(1−z),  ∂a_h = η⊙z⊙(1−h̃²)
    before:  ρ = V_hᵀ∂a_h,       ∂a_r = ρ⊙h⊙r(1−r),    η ← (1−z)⊙η + ρ⊙r + V_rᵀ∂a_r + V_zᵀ∂a_z
    after:   ∂q = ∂a_h⊙r,        ∂a_r = ∂a_h⊙q⊙r(1−r), η ← (1−z)⊙η + V_hᵀ∂q + V_rᵀ∂a_r + V_zᵀ∂a_z

Gates are numbered 0 r, 1 z, 2 h̃, and stand side by side in arrays [time, batch, 3·hidden]; beside
them in the same array 3 q, which reset="before" leaves at zero.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from underhood.layers.kernels.blocks import (
    Ref,
    block_product,
    like,
    pad_to,
    power_above,
    rounded_up,
)
from underhood.layers.kernels.walks import WalkTiles, gate_sigmoid, sum_over_time

GRU_GATES = 3
KEPT_GATES = 4


def gru_walk_kernel(
    entering: Ref, V: Ref, c_h: Ref, states: Ref, gates: Ref, *, after: bool, tiles: WalkTiles
) -> None:
    time, width = states.shape[0], states.shape[2]
    sequences, columns = tiles.places(width, KEPT_GATES)
    V_r, V_z, V_h = (V[gate].T for gate in range(GRU_GATES))
    constant = c_h[:][None, :]

    def advance(t: Array, h: Array) -> Array:
        e_r, e_z, e_h = (entering[t, sequences, part] for part in columns[:GRU_GATES])
        r = gate_sigmoid(e_r + block_product(h, V_r, tiles.interpret))
        z = gate_sigmoid(e_z + block_product(h, V_z, tiles.interpret))
        read = block_product(h if after else r * h, V_h, tiles.interpret)
        if after:
            read = read + constant
            gates[t, sequences, columns[3]] = read
            read = r * read
        candidate = jnp.tanh(e_h + read)
        h = (1.0 - z) * h + z * candidate
        for part, gate in zip(columns[:GRU_GATES], (r, z, candidate), strict=True):
            gates[t, sequences, part] = gate
        states[t, sequences, :] = h
        return h

    jax.lax.fori_loop(0, time, advance, jnp.zeros((tiles.sequences, width), jnp.float32))


def gru_return_kernel(
    slopes: Ref,
    V_turned: Ref,
    states: Ref,
    gates: Ref,
    result: Ref,
    *,
    after: bool,
    tiles: WalkTiles,
) -> None:
    time, width = states.shape[0], states.shape[2]
    sequences, columns = tiles.places(width, KEPT_GATES)
    V_r, V_z, V_h = (V_turned[gate].T for gate in range(GRU_GATES))

    def retreat(number: Array, by_h: Array) -> Array:
        t = time - 1 - number
        by_h = by_h + slopes[t, sequences, :]
        r, z, candidate = (gates[t, sequences, part] for part in columns[:GRU_GATES])
        begun = jnp.minimum(t, 1).astype(jnp.float32)
        h = begun * states[jnp.maximum(t - 1, 0), sequences, :]
        by_z = by_h * (candidate - h) * z * (1.0 - z)
        by_candidate = by_h * z * (1.0 - candidate * candidate)
        if after:
            read = gates[t, sequences, columns[3]]
            by_r = by_candidate * read * r * (1.0 - r)
            earlier = block_product(by_candidate * r, V_h, tiles.interpret)
        else:
            by_product = block_product(by_candidate, V_h, tiles.interpret)
            by_r = by_product * h * r * (1.0 - r)
            earlier = by_product * r
        for part, by_sum in zip(columns, (by_r, by_z, by_candidate), strict=False):
            result[t, sequences, part] = by_sum
        earlier = earlier + block_product(by_r, V_r, tiles.interpret)
        return (1.0 - z) * by_h + earlier + block_product(by_z, V_z, tiles.interpret)

    jax.lax.fori_loop(0, time, retreat, jnp.zeros((tiles.sequences, width), jnp.float32))


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def gru_states(
    entering: Float[Array, "time batch gates hidden"],
    V: Float[Array, "gates hidden hidden"],
    c_h: Float[Array, " hidden"],
    after: bool,
    tiles: WalkTiles,
) -> Float[Array, "time batch hidden"]:
    """Return h at all times, given U x + b and V of r, z and h̃; after: the reset's place."""
    return gru_forward(entering, V, c_h, after, tiles)[0]


def gru_forward(
    entering: Array, V: Array, c_h: Array, after: bool, tiles: WalkTiles
) -> tuple[Array, tuple[Array, Array, Array]]:
    time, batch, gates, hidden = entering.shape
    rows, width = rounded_up(batch, tiles.sequences), power_above(hidden)
    wide = pad_to(entering, time, rows, gates, width).reshape(time, rows, gates * width)
    states, kept = tiles.launch(
        partial(gru_walk_kernel, after=after),
        rows,
        (like(time, rows, width), like(time, rows, KEPT_GATES * width)),
    )(wide, pad_to(V, gates, width, width), pad_to(c_h, width))
    return states[:, :batch, :hidden], (V, states, kept)


def gru_backward(
    after: bool,
    tiles: WalkTiles,
    kept: tuple[Array, ...],
    slopes: Float[Array, "time batch hidden"],
) -> tuple[Array, Array, Array]:
    V, states, gates = kept
    (time, rows, width), (count, hidden, _) = states.shape, V.shape
    turned = jnp.swapaxes(pad_to(V, count, width, width), 1, 2)
    by_sums = tiles.launch(
        partial(gru_return_kernel, after=after), rows, like(time, rows, count * width)
    )(pad_to(slopes, time, rows, width), turned, states, gates)
    r, by_candidate = gates[..., :width], by_sums[..., 2 * width :]
    by_read = by_candidate * r if after else by_candidate
    by_V = sum_over_time(by_sums[..., : 2 * width], states, tiles.products)
    # What V_h multiplies: h_{t−1}, or r_t⊙h_{t−1}.
    before = jnp.concatenate([jnp.zeros_like(states[:1]), states[:-1]])
    shown = before if after else r * before
    by_V_h = sum_over_time(by_read[1:], shown[1:], tiles.products, shifted=False)
    by_V = jnp.concatenate([by_V, by_V_h]).reshape(count, width, width)
    by_entering = by_sums.reshape(time, rows, count, width)[:, : slopes.shape[1], :, :hidden]
    by_constant = (
        by_read[:, : slopes.shape[1], :hidden].sum((0, 1)) if after else jnp.zeros_like(V[0, 0])
    )
    return by_entering, by_V[:, :hidden, :hidden], by_constant


gru_states.defvjp(gru_forward, gru_backward)
