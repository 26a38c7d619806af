"""One table of layers for the tests, and how they are run and compared."""

from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import underhood as uh

# Rounding in float64 over 200 steps stays near 1e-14; 1e-12 leaves room for sums of 200 terms.
CLOSE = 1e-12


# --- One table of layers: every size differs from the others, every optional weight is there.


def normal(rng, *shape):
    return rng.normal(size=shape) / np.sqrt(max(shape[-1], 1) if shape else 1)


def attention(rng, d_v=2, d_k=4, d_in=3, biased=False, decayed=False):
    weights = [normal(rng, rows, d_in) for rows in (d_v, d_k, d_k)]
    biases = {f"b_{letter}": normal(rng, len(W)) for letter, W in zip("VKQ", weights, strict=True)}
    return uh.LinearAttention(
        *weights,
        **(biases if biased else {}),
        decay=rng.uniform(0.3, 1, d_v) if decayed else None,
    )


def multi_head_alike(rng):
    return uh.MultiHead([attention(rng, decayed=True) for _ in range(3)], normal(rng, 5, 6))


def multi_head_mixed(rng):
    heads = [attention(rng, 2, 4, biased=True), attention(rng, 3, 1, decayed=True)]
    return uh.MultiHead(heads)


def bilinear_gates(rng):
    return {
        "W_in_m": normal(rng, 5, 4),
        "W_in_x": normal(rng, 5, 4),
        "W_out_m": normal(rng, 6, 5),
        "W_out_x": normal(rng, 6, 5),
        "D": normal(rng, 2, 6),
    }


def gated_rnn(rng, decay=None):
    decay = rng.uniform(0.1, 1, 5) if decay is None else decay
    return uh.GatedRNN(**bilinear_gates(rng), decay=decay)


def dense_gated_rnn(rng):
    # Eigenvalues near 0.8, so that 200 steps neither explode nor forget everything.
    A = np.diag(rng.uniform(0.6, 0.9, 5)) + 0.1 * normal(rng, 5, 5)
    return uh.DenseGatedRNN(**bilinear_gates(rng), A=A)


def side_gated_rnn(rng, decay=None):
    return uh.SideGatedRNN(
        W_in_m=normal(rng, 5, 3),
        W_in_x=normal(rng, 5, 3),
        decay=rng.uniform(0.1, 1, 5) if decay is None else decay,
        W_side=normal(rng, 5, 3),
        D=normal(rng, 2, 5),
    )


def complex_core(rng, u, hidden=5, mixed=4):
    return {
        "nu": rng.uniform(-4, 1, hidden),
        "theta_log": rng.uniform(-2, 2, hidden),
        "gamma_log": rng.uniform(-2, 0.5, hidden),
        "B_re": normal(rng, hidden, u),
        "B_im": normal(rng, hidden, u),
        "C_re": normal(rng, mixed, hidden),
        "C_im": normal(rng, mixed, hidden),
        "D": normal(rng, mixed, u),
    }


def lru(rng):
    return uh.LRU(**complex_core(rng, u=3), W_m=normal(rng, 2, 4), W_x=normal(rng, 2, 4))


def lru_in_out(rng):
    return uh.LRUInOut(
        W_in_m=normal(rng, 6, 3),
        W_in_x=normal(rng, 6, 3),
        **complex_core(rng, u=6),
        W_m=normal(rng, 2, 4),
        W_x=normal(rng, 2, 4),
    )


def lru_in_out_mlp(rng, activation):
    return uh.LRUInOutMLP(
        W_in_1=normal(rng, 7, 3),
        W_in_2=normal(rng, 6, 7),
        **complex_core(rng, u=6),
        W_out_1=normal(rng, 8, 4),
        W_out_2=normal(rng, 2, 8),
        activation=activation,
    )


def mamba(rng):
    return uh.Mamba(
        W_input=normal(rng, 4, 3),
        b_input=0.3 * normal(rng, 4),
        # Δ near 1 and A near −1 keep Ā = exp(ΔA) below 1 nearly always, as the layer's init does.
        W_delta=0.1 * normal(rng, 4),
        b_delta=np.asarray(0.8),
        W_A=0.1 * normal(rng, 5, 4),
        b_A=-rng.uniform(0.05, 1, 5),
        W_B=normal(rng, 5, 4, 4),
        b_B=normal(rng, 5, 4),
        W_C=normal(rng, 2, 5, 4),
        b_C=normal(rng, 2, 5),
        W_side=normal(rng, 2, 3),
    )


def mamba_block(rng, width=3):
    return uh.MambaBlock(
        W_in_u=normal(rng, 4, 3),
        W_in_z=normal(rng, 4, 3),
        conv=normal(rng, width, 4),
        b_conv=normal(rng, 4),
        W_x_dt=normal(rng, 2, 4),
        W_x_B=normal(rng, 3, 4),
        W_x_C=normal(rng, 3, 4),
        W_dt=normal(rng, 4, 2),
        b_dt=normal(rng, 4),
        A_log=rng.uniform(-2, 1, (4, 3)),
        D=normal(rng, 4),
        W_out=normal(rng, 2, 4),
    )


def gates_of(rng, letters, hidden=5, d_in=3):
    shapes = {"U": (hidden, d_in), "V": (hidden, hidden), "b": (hidden,)}
    return {
        f"{symbol}_{gate}": normal(rng, *shapes[symbol]) for gate in letters for symbol in "UVb"
    }


def lstm(rng, **sizes):
    return uh.LSTM(**gates_of(rng, "fcgo", **sizes))


def gru(rng, **sizes):
    return uh.GRU(**gates_of(rng, "rhz", **sizes))


def stack(rng):
    """A nonlinear layer that can only be scanned, then one that runs in parallel."""
    return uh.Stack(
        uh.Affine(normal(rng, 3, 3), normal(rng, 3)),
        [gru(rng, hidden=3), gated_rnn(rng)],
        uh.Affine(normal(rng, 4, 2)),
    )


@dataclass(frozen=True)
class Case:
    """How to make a layer, and the sizes that it must report."""

    make: Callable
    d_out: int
    neurons: int
    gate_width: int


CASES = {
    "attention": Case(attention, 2, 8, 8),
    "attention, biases and decay": Case(
        lambda rng: attention(rng, biased=True, decayed=True), 2, 8, 8
    ),
    "heads, W_O": Case(multi_head_alike, 5, 24, 24),
    "heads of different sizes": Case(multi_head_mixed, 5, 11, 11),
    "gated RNN": Case(gated_rnn, 2, 5, 6),
    "side-gated RNN": Case(side_gated_rnn, 2, 5, 5),
    "dense gated RNN": Case(dense_gated_rnn, 2, 5, 6),
    "LRU": Case(lru, 2, 5, 2),
    "LRU in-out": Case(lru_in_out, 2, 5, 8),
    "LRU in-out MLP": Case(lambda rng: lru_in_out_mlp(rng, "relu"), 2, 5, 15),
    "Mamba": Case(mamba, 2, 5, 2),
    "Mamba block": Case(mamba_block, 2, 12, 4),
    "LSTM": Case(lstm, 5, 5, 5),
    "GRU": Case(gru, 5, 5, 5),
    "stack": Case(stack, 4, 8, 9),
}
D_IN = 3

every_layer = pytest.mark.parametrize("name", CASES)


def make(name):
    """A layer with NumPy weights, as constructions and files give them."""
    return CASES[name].make(np.random.default_rng(sum(name.encode())))


def sequence(time, d_in=D_IN, seed=1):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(time, d_in)))


def in_jax(layer, dtype=float):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), layer)


def relative_error(value, expected):
    """Largest difference over largest entry; 0 where there are no entries."""
    # In NumPy, which compiles nothing for every new shape.
    value, expected = np.asarray(value), np.asarray(expected)
    assert value.shape == expected.shape
    if expected.size == 0:
        return 0.0
    return np.max(np.abs(value - expected)) / max(np.max(np.abs(expected)), 1e-300)


def assert_same_leaves(tree, expected):
    """Leaf by leaf, so that a large one does not hide a small one."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    expected_leaves = jax.tree.leaves(expected)
    assert leaves
    for (path, leaf), wanted in zip(leaves, expected_leaves, strict=True):
        assert relative_error(leaf, wanted) < CLOSE, jax.tree_util.keystr(path)


def parallel(layer, xs):
    return layer(xs)


def stepped(layer, xs):
    """The loop that a user would write."""
    state, outputs = layer.initial_state(), []
    for x in np.asarray(xs):
        state, y = one_step(layer, state, jnp.asarray(x))
        outputs.append(np.asarray(y))
    return jnp.asarray(np.stack(outputs))


@eqx.filter_jit
def one_step(layer, state, x):
    return layer.step(state, x)


def projection(layer, time):
    return jnp.asarray(np.random.default_rng(2).normal(size=(time, layer.d_out)))


def gradients(run, layer, xs):
    """With respect to all weights and the inputs, of a random projection of the outputs."""
    weights = projection(layer, len(xs))
    return eqx.filter_grad(lambda both: jnp.sum(run(*both) * weights))((layer, xs))
