"""Forms of an LSTM on data, on an NVIDIA GPU: states at all times, and the gradient by the weights.

equations  the layer by XLA, 64 members in one program
Pallas     `layers/kernels/lstm.py`, with the products of `products.py`
CUDA       `layers/kernels/lstm_walk.cuh`
cuDNN      `jax.experimental.rnn.lstm`, one member after the other, because it knows no members

A line per form and size: microseconds per member for states alone and for states and gradient, and
the largest relative error of the gradient against float64. T = 32, batch 64, four inputs.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import rnn

import underhood as uh
from underhood.layers import batch_outputs
from underhood.layers.kernels import choice
from underhood.layers.kernels.lstm_walk import plain_states, walk_states

TIME, BATCH, D, MEMBERS = 32, 64, 4, 64
WIDTHS = (20, 32, 64)
REPEATS = 20


def microseconds(function, *given) -> float:
    """Median time of a call, per member."""
    jax.block_until_ready(function(*given))
    taken = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        jax.block_until_ready(function(*given))
        taken.append(time.perf_counter() - began)
    return 1e6 * float(np.median(taken)) / MEMBERS


def layers_of(width: int) -> uh.LSTM:
    def init(key):
        return uh.LSTM.init(d_in=D, hidden=width, key=key)

    return jax.vmap(init)(jax.random.split(jax.random.key(0), MEMBERS))


def stacked(layer: uh.LSTM) -> jax.Array:
    """W of `walk_states`."""
    parts = [
        jnp.concatenate([layer_part(layer, "V", g), layer_part(layer, "U", g), bias(layer, g)], 1)
        for g in "fgoc"
    ]
    return jnp.stack(parts)


def layer_part(layer: uh.LSTM, symbol: str, gate: str) -> jax.Array:
    return getattr(layer, f"{symbol}_{gate}")


def bias(layer: uh.LSTM, gate: str) -> jax.Array:
    return layer_part(layer, "b", gate)[:, None]


def forms():
    """Return functions from a member's layer and sequences to its states."""
    return {
        "equations": lambda layer, xs: batch_outputs(layer, xs, backend="gpu"),
        "Pallas": lambda layer, xs: batch_outputs(layer, xs, backend="nvidia"),
        "CUDA": lambda layer, xs: walk_states(stacked(layer), xs),
    }


def total(states_of, layer, xs):
    return 0.5 * jnp.mean(states_of(layer, xs) ** 2)


def show_cudnn(width: int, xs: jax.Array) -> None:
    weights = rnn.init_lstm_weight(jax.random.key(0), D, width, 1, False)
    nothing = jnp.zeros((1, BATCH, width))
    lengths = jnp.full((BATCH,), TIME, jnp.int32)

    def states_of(weights, xs):
        return rnn.lstm(xs, nothing, nothing, weights, lengths, D, width, 1, 0.0, False)[0]

    def each(function):
        return jax.jit(
            lambda members, xs: [function(w, x) for w, x in zip(members, xs, strict=True)]
        )

    members = [weights] * MEMBERS
    forward = microseconds(each(states_of), members, list(xs))
    both = microseconds(
        each(jax.grad(lambda w, x: 0.5 * jnp.mean(states_of(w, x) ** 2))), members, list(xs)
    )
    print(f"n={width:3d} {'cuDNN':10s} {forward:8.2f} us states {both:8.2f} us with gradient")


def main() -> None:
    if choice.default_backend() != choice.KERNELS:
        raise SystemExit("benchmarks/gpu/lstm.py needs an NVIDIA GPU.")
    jax.config.update("jax_default_matmul_precision", "highest")
    print(jax.devices()[0].device_kind, f"jax {jax.__version__}")
    for width in WIDTHS:
        layers = layers_of(width)
        xs = jax.random.normal(jax.random.key(1), (MEMBERS, BATCH, TIME, D))
        first = jax.tree.map(lambda leaf: np.asarray(leaf[0], np.float64), layers)
        with jax.enable_x64(True):
            W, data = stacked(first), jnp.asarray(np.asarray(xs[0], np.float64))
            exact = jax.grad(lambda W, xs: 0.5 * jnp.mean(plain_states(W, xs) ** 2))(W, data)
            exact = np.asarray(exact)
        for name, states_of in forms().items():
            forward = jax.jit(jax.vmap(states_of))
            slopes = jax.jit(jax.vmap(jax.grad(lambda layer, x, of=states_of: total(of, layer, x))))
            taken = microseconds(forward, layers, xs), microseconds(slopes, layers, xs)
            found_slopes = np.asarray(
                stacked(jax.tree.map(lambda leaf: leaf[0], slopes(layers, xs)))
            )
            error = np.max(np.abs(found_slopes - exact)) / np.max(np.abs(exact))
            print(
                f"n={width:3d} {name:10s} {taken[0]:8.2f} us states {taken[1]:8.2f} us with "
                f"gradient, error {error:.1e}",
                flush=True,
            )
        try:
            show_cudnn(width, xs)
        except Exception as error:  # a build of JAX without cuDNN says so in several ways
            print(f"n={width:3d} cuDNN: {error}")


if __name__ == "__main__":
    main()
