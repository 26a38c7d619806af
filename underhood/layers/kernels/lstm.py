"""The LSTM's walk through time in one kernel, and its gradient in another.

    a = e_t + V h_{t−1} for the gates f, g, o and the candidate c̃;  e_t = U x_t + b is given
    c_t = f⊙c_{t−1} + g⊙c̃,  h_t = o⊙tanh(c_t)

A program walks a block of sequences through all times. V stays on the chip, h and c never leave
it; the gates are stored for the gradient. Backward, with η_t = ∂loss/∂h_t in all:

    ∂a_o = η⊙tanh(c)⊙o(1−o),  γ = γ' + η⊙o⊙(1−tanh²c),  γ' the share of c_t in c_{t+1}
    ∂a_f = γ⊙c_{t−1}⊙f(1−f),  ∂a_g = γ⊙c̃⊙g(1−g),  ∂a_c = γ⊙g⊙(1−c̃²),  η_{t−1} += Vᵀ∂a

Gates are numbered 0 f, 1 g, 2 o, 3 c̃, and stand side by side in arrays [time, batch, 4·hidden].
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

LSTM_GATES = 4
SIGMOID_GATES = 3


def lstm_walk_kernel(
    entering: Ref, V: Ref, states: Ref, cells: Ref, gates: Ref, *, tiles: WalkTiles
) -> None:
    time, width = states.shape[0], states.shape[2]
    sequences, columns = tiles.places(width, LSTM_GATES)
    weights = [V[gate].T for gate in range(LSTM_GATES)]

    def advance(t: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        h, c = now
        sums = [
            entering[t, sequences, part] + block_product(h, weight, tiles.interpret)
            for part, weight in zip(columns, weights, strict=True)
        ]
        f, g, o = (gate_sigmoid(total) for total in sums[:SIGMOID_GATES])
        candidate = jnp.tanh(sums[SIGMOID_GATES])
        c = f * c + g * candidate
        h = o * jnp.tanh(c)
        for part, gate in zip(columns, (f, g, o, candidate), strict=True):
            gates[t, sequences, part] = gate
        states[t, sequences, :], cells[t, sequences, :] = h, c
        return h, c

    zeros = jnp.zeros((tiles.sequences, width), jnp.float32)
    jax.lax.fori_loop(0, time, advance, (zeros, zeros))


def lstm_return_kernel(
    slopes: Ref, V_turned: Ref, cells: Ref, gates: Ref, result: Ref, *, tiles: WalkTiles
) -> None:
    time, width = cells.shape[0], cells.shape[2]
    sequences, columns = tiles.places(width, LSTM_GATES)
    weights = [V_turned[gate].T for gate in range(LSTM_GATES)]

    def retreat(number: Array, carried: tuple[Array, Array]) -> tuple[Array, Array]:
        t = time - 1 - number
        by_h, by_c = carried
        by_h = by_h + slopes[t, sequences, :]
        f, g, o, candidate = (gates[t, sequences, part] for part in columns)
        squashed = jnp.tanh(cells[t, sequences, :])
        by_c = by_c + by_h * o * (1.0 - squashed * squashed)
        begun = jnp.minimum(t, 1).astype(jnp.float32)
        before = begun * cells[jnp.maximum(t - 1, 0), sequences, :]
        by_sums = (
            by_c * before * f * (1.0 - f),
            by_c * candidate * g * (1.0 - g),
            by_h * squashed * o * (1.0 - o),
            by_c * g * (1.0 - candidate * candidate),
        )
        for part, by_sum in zip(columns, by_sums, strict=True):
            result[t, sequences, part] = by_sum
        by_h = jnp.zeros_like(by_c)
        for by_sum, weight in zip(by_sums, weights, strict=True):
            by_h += block_product(by_sum, weight, tiles.interpret)
        return by_h, by_c * f

    zeros = jnp.zeros((tiles.sequences, width), jnp.float32)
    jax.lax.fori_loop(0, time, retreat, (zeros, zeros))


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def lstm_states(
    entering: Float[Array, "time batch gates hidden"],
    V: Float[Array, "gates hidden hidden"],
    tiles: WalkTiles,
) -> Float[Array, "time batch hidden"]:
    """Return h at all times, given U x + b and V of the four gates."""
    return lstm_forward(entering, V, tiles)[0]


def lstm_forward(
    entering: Array, V: Array, tiles: WalkTiles
) -> tuple[Array, tuple[Array, Array, Array, Array]]:
    time, batch, gates, hidden = entering.shape
    rows, width = rounded_up(batch, tiles.sequences), power_above(hidden)
    wide = pad_to(entering, time, rows, gates, width).reshape(time, rows, gates * width)
    square = like(time, rows, width)
    states, cells, after = tiles.launch(
        lstm_walk_kernel, rows, (square, square, like(time, rows, gates * width))
    )(wide, pad_to(V, gates, width, width))
    return states[:, :batch, :hidden], (V, states, cells, after)


def lstm_backward(
    tiles: WalkTiles, kept: tuple[Array, ...], slopes: Float[Array, "time batch hidden"]
) -> tuple[Array, Array]:
    V, states, cells, after = kept
    (time, rows, width), (gates, hidden, _) = states.shape, V.shape
    turned = jnp.swapaxes(pad_to(V, gates, width, width), 1, 2)
    by_sums = tiles.launch(lstm_return_kernel, rows, like(time, rows, gates * width))(
        pad_to(slopes, time, rows, width), turned, cells, after
    )
    by_V = sum_over_time(by_sums, states, tiles.products).reshape(gates, width, width)
    by_entering = by_sums.reshape(time, rows, gates, width)[:, : slopes.shape[1], :, :hidden]
    return by_entering, by_V[:, :hidden, :hidden]


lstm_states.defvjp(lstm_forward, lstm_backward)
