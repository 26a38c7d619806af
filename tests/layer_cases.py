"""One table of layers for the tests, and how they are run and compared."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import underhood as uh
from underhood.layers.base.shapes import annotated_arrays

# Rounding in float64 over 200 steps stays near 1e-14; 1e-12 leaves room for sums of 200 terms.
CLOSE = 1e-12


def shapes(text):
    """{"W": (2, 3), "U": (2, 3), "b": ()} from "W U [2 3], b []"."""
    named = re.findall(r"([\w. ]+) \[([\d ]*)\]", text)
    return {name: tuple(map(int, n.split())) for names, n in named for name in names.split()}


def normal(rng, *shape):
    return rng.normal(size=shape) / np.sqrt(max(shape[-1], 1))


def weights(rng, text, size=1.0):
    return {name: size * normal(rng, *shape) for name, shape in shapes(text).items()}


# --- One table of layers: every size differs from the others, every optional weight is there.


def attention(rng, d_v=2, d_k=4, d_in=3, biased=False, decayed=False):
    rows = {"V": d_v, "K": d_k, "Q": d_k}
    drawn = {f"W_{letter}": normal(rng, size, d_in) for letter, size in rows.items()}
    biases = {f"b_{letter}": normal(rng, size) for letter, size in rows.items() if biased}
    decay = rng.uniform(0.3, 1, d_v) if decayed else None
    return uh.LinearAttention(**drawn, **biases, decay=decay)


def multi_head_alike(rng):
    return uh.MultiHead([attention(rng, decayed=True) for _ in range(3)], normal(rng, 5, 6))


def multi_head_mixed(rng):
    return uh.MultiHead([attention(rng, 2, 4, biased=True), attention(rng, 3, 1, decayed=True)])


BILINEAR = "W_in_m W_in_x [5 4], W_out_m W_out_x [6 5], D [2 6]"


def gated_rnn(rng, decay=None):
    decay = rng.uniform(0.1, 1, 5) if decay is None else decay
    return uh.GatedRNN(**weights(rng, BILINEAR), decay=decay)


def dense_gated_rnn(rng):
    # Eigenvalues near 0.8, so that 200 steps neither explode nor forget everything.
    A = np.diag(rng.uniform(0.6, 0.9, 5)) + 0.1 * normal(rng, 5, 5)
    return uh.DenseGatedRNN(**weights(rng, BILINEAR), A=A)


def side_gated_rnn(rng, decay=None):
    decay = rng.uniform(0.1, 1, 5) if decay is None else decay
    return uh.SideGatedRNN(**weights(rng, "W_in_m W_in_x W_side [5 3], D [2 5]"), decay=decay)


def complex_core(rng, u):
    ranges = {"nu": (-4, 1), "theta_log": (-2, 2), "gamma_log": (-2, 0.5)}
    matrices = weights(rng, f"B_re B_im [5 {u}], C_re C_im [4 5], D [4 {u}]")
    return matrices | {name: rng.uniform(*ends, 5) for name, ends in ranges.items()}


def lru(rng):
    return uh.LRU(**complex_core(rng, u=3), **weights(rng, "W_m W_x [2 4]"))


def lru_in_out(rng):
    gates = weights(rng, "W_in_m W_in_x [6 3], W_m W_x [2 4]")
    return uh.LRUInOut(**gates, **complex_core(rng, u=6))


def lru_in_out_mlp(rng, activation):
    gates = weights(rng, "W_in_1 [7 3], W_in_2 [6 7], W_out_1 [8 4], W_out_2 [2 8]")
    return uh.LRUInOutMLP(**gates, **complex_core(rng, u=6), activation=activation)


def mamba(rng):
    # Δ near 1 and A near −1 keep Ā = exp(ΔA) below 1 nearly always, as the layer's init does.
    near_zero = weights(rng, "b_input [4], W_delta [4], W_A [5 4]", size=0.1)
    rest = weights(
        rng, "W_input [4 3], W_B [5 4 4], b_B [5 4], W_C [2 5 4], b_C [2 5], W_side [2 3]"
    )
    return uh.Mamba(**near_zero, **rest, b_delta=np.asarray(0.8), b_A=-rng.uniform(0.05, 1, 5))


def mamba_block(rng, width=3):
    gates = weights(rng, f"W_in_u W_in_z [4 3], conv [{width} 4], b_conv b_dt D [4], W_out [2 4]")
    selection = weights(rng, "W_x_dt [2 4], W_x_B W_x_C [3 4], W_dt [4 2]")
    return uh.MambaBlock(**gates, **selection, A_log=rng.uniform(-2, 1, (4, 3)))


def gates_of(rng, letters, hidden=5, d_in=3):
    sizes = f"U_{{0}} [{hidden} {d_in}], V_{{0}} [{hidden} {hidden}], b_{{0}} [{hidden}]"
    return weights(rng, ", ".join(sizes.format(gate) for gate in letters))


def lstm(rng, **sizes):
    return uh.LSTM(**gates_of(rng, "fcgo", **sizes))


def gru(rng, **sizes):
    return uh.GRU(**gates_of(rng, "rhz", **sizes))


def gru_after(rng, biased=True):
    c_h = normal(rng, 5) if biased else None
    return uh.GRU(**gates_of(rng, "rhz"), c_h=c_h, reset="after")


def stack(rng):
    """A nonlinear layer that can only be scanned, then one that runs in parallel."""
    embed = uh.Affine(normal(rng, 3, 3), normal(rng, 3))
    return uh.Stack(embed, [gru(rng, hidden=3), gated_rnn(rng)], uh.Affine(normal(rng, 4, 2)))


# --- layers of today: two heads, keys of size 4, values of size 5


HEADS = {"d_in": 3, "d_out": 2, "heads": 2, "d_k": 4, "d_v": 5}
BLOCK = {"d_in": 3, "d_out": 2, "inner": 4, "state": 3, "rank": 2, "width": 3}
SHORT = HEADS | {"width": 3}


def modern(kind, ranges=None, **options):
    """Random weights in every array; some from a range, so that gates stay open enough."""
    numbers = ("index", "norm_groups")
    sizes = {n: size for n, size in options.items() if isinstance(size, int) and n not in numbers}
    settings = {name: options[name] for name in options if name not in sizes}

    def draw(rng):
        fields = {
            array.field: rng.uniform(*(ranges or {})[array.field], shape)
            if array.field in (ranges or {})
            else normal(rng, *shape)
            for array in annotated_arrays(kind)
            for shape in [tuple(sizes[axis] for axis in array.dimensions)]
        }
        return kind(**fields, **settings)

    return draw


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
    "GRU, reset after": Case(gru_after, 5, 5, 5),
    "GRU, reset after, one bias": Case(lambda rng: gru_after(rng, biased=False), 5, 5, 5),
    "stack": Case(stack, 4, 8, 9),
    "Mamba-2": Case(
        modern(uh.Mamba2, {"A_log": (-2, 0)}, **SHORT, eps=0.1, norm_groups=2), 2, 40, 10
    ),
    "DeltaNet": Case(modern(uh.DeltaNet, **SHORT, eps=0.1), 2, 40, 10),
    "gated DeltaNet": Case(
        modern(uh.GatedDeltaNet, {"A_log": (-3, 0)}, **SHORT, eps=0.1), 2, 40, 10
    ),
    "KDA": Case(modern(uh.KDA, {"A_log": (-3, 0)}, **SHORT, rank=3, eps=0.1), 2, 40, 10),
    "GLA": Case(modern(uh.GLA, **HEADS, rank=3, eps=0.1), 2, 40, 10),
    "RetNet": Case(modern(uh.RetNet, **HEADS, eps=0.1), 2, 40, 10),
    "lightning": Case(modern(uh.Lightning, **HEADS, index=3, eps=0.1), 2, 40, 10),
    "HGRN2": Case(modern(uh.HGRN2, **HEADS, eps=0.1), 2, 40, 10),
    "RWKV-6": Case(modern(uh.RWKV6, {"w_0": (-5, 0)}, **HEADS, rank=3, eps=0.1), 2, 40, 10),
    "RWKV-7": Case(modern(uh.RWKV7, **HEADS, rank=3, eps=0.1), 2, 40, 10),
    "mLSTM": Case(
        modern(uh.MLSTM, {"b_f": (1, 4), "b_i": (2, 2.5), "W_q": (-0.1, 0.1)}, **HEADS, eps=0.1),
        2,
        40,
        10,
    ),
    "RG-LRU": Case(modern(uh.RGLRU, **{"d_in": 3, "d_out": 2, "inner": 5, "width": 3}), 2, 5, 5),
    "Jamba block": Case(modern(uh.JambaBlock, {"A_log": (-2, 1)}, **BLOCK, eps=0.1), 2, 12, 4),
    "minGRU": Case(modern(uh.MinGRU, **{"d_in": 3, "d_out": 2, "hidden": 5}), 2, 5, 5),
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
    largest = np.max(np.abs(expected), initial=1e-300)
    return np.max(np.abs(value - expected), initial=0.0) / largest


def assert_same_leaves(tree, expected):
    """Leaf by leaf, so that a large one does not hide a small one."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    assert leaves
    for (path, leaf), wanted in zip(leaves, jax.tree.leaves(expected), strict=True):
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
