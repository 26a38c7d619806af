"""Layers: parallel = streaming = naive, in outputs and gradients; what they refuse and why."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from naive import naive, naive_gradients

import underhood as uh
from underhood.common.decay import NU_ONE, NU_ZERO

pytestmark = pytest.mark.usefixtures("x64", "quick_compile")

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
    for (path, leaf), other in zip(leaves, expected_leaves, strict=True):
        assert relative_error(leaf, other) < CLOSE, jax.tree_util.keystr(path)


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


# --- parallel = streaming = naive


@pytest.mark.parametrize("time", [1, 2, 64, 65, 200])
@every_layer
def test_outputs_agree(name, time):
    layer, xs = make(name), sequence(time)
    expected = naive(layer, xs)
    assert expected.shape == (time, CASES[name].d_out)
    for run in (eqx.filter_jit(parallel), eqx.filter_jit(uh.stream), stepped):
        assert relative_error(run(layer, xs), expected) < CLOSE, run


# The lengths share a test because they share the naive loop's compiled token.
@every_layer
def test_gradients_agree(name):
    layer = in_jax(make(name))
    for time in (1, 5, 70):
        xs = sequence(time)
        expected = naive_gradients(layer, xs, projection(layer, time))
        for run in (parallel, uh.stream):
            assert_same_leaves(eqx.filter_jit(gradients)(run, layer, xs), expected)


def test_naive_gradients_are_those_of_the_naive_loop():
    layer, xs = in_jax(make("LRU")), sequence(5)
    by_hand = naive_gradients(layer, xs, projection(layer, 5))
    assert_same_leaves(gradients(naive, layer, xs), by_hand)


# On a CPU the recurrence is a scan; accelerators take other forms, tested here as well.
@pytest.mark.parametrize(
    "name",
    ["attention", "attention, biases and decay", "gated RNN", "side-gated RNN", "LRU", "Mamba"],
)
def test_the_forms_that_accelerators_take_agree(name, monkeypatch):
    layer, xs = in_jax(make(name)), sequence(70)
    expected = naive(layer, xs), naive_gradients(layer, xs, projection(layer, 70))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")

    # A function of its own, so that what was compiled for the CPU is not found again.
    def afresh(layer, xs):
        return parallel(layer, xs)

    assert relative_error(eqx.filter_jit(afresh)(layer, xs), expected[0]) < CLOSE
    assert_same_leaves(eqx.filter_jit(gradients)(afresh, layer, xs), expected[1])


def test_parts_that_may_be_left_out():
    rng, xs = np.random.default_rng(13), sequence(9)
    heads = uh.MultiHead([attention(rng) for _ in range(2)])
    for layer in (heads, uh.Stack(None, [heads], None)):
        assert (layer.d_in, layer.d_out) == (3, 4)
        for run in (parallel, stepped):
            assert relative_error(run(layer, xs), naive(layer, xs)) < CLOSE


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "softplus", "tanh"])
def test_every_activation(activation):
    layer, xs = lru_in_out_mlp(np.random.default_rng(0), activation), sequence(9)
    assert relative_error(layer(xs), naive(layer, xs)) < CLOSE


@pytest.mark.parametrize("width", [1, 2, 5])
def test_convolutions_shorter_and_longer_than_the_sequence(width):
    layer, xs = mamba_block(np.random.default_rng(0), width), sequence(3)
    assert relative_error(layer(xs), naive(layer, xs)) < CLOSE
    assert relative_error(stepped(layer, xs), naive(layer, xs)) < CLOSE


@every_layer
def test_sizes(name):
    layer, case = make(name), CASES[name]
    sizes = (layer.d_in, layer.d_out, layer.neurons, layer.gate_width)
    assert sizes == (D_IN, case.d_out, case.neurons, case.gate_width)


@every_layer
def test_no_tokens(name):
    layer, nothing = make(name), jnp.zeros((0, D_IN))
    assert layer(nothing).shape == uh.stream(layer, nothing).shape == (0, CASES[name].d_out)


@every_layer
def test_batches_are_vmap(name):
    layer, batch = make(name), jnp.stack([sequence(7, seed=seed) for seed in (3, 4)])
    alone = jnp.stack([naive(layer, xs) for xs in batch])
    assert relative_error(jax.jit(jax.vmap(layer))(batch), alone) < CLOSE


@pytest.mark.parametrize("allowed", [True, False])
@every_layer
def test_float32_stays_float32(name, allowed):
    # With x64 on, one float64 constant anywhere would turn the result into float64.
    def everything(layer, xs):
        start = layer.initial_state()
        slopes = eqx.filter_grad(lambda both: jnp.sum(both[0](both[1])))((layer, xs))
        return layer(xs), uh.stream(layer, xs), start, layer.step(start, xs[0]), slopes

    with jax.enable_x64(allowed):
        layer, xs = in_jax(make(name), jnp.float32), sequence(70).astype(jnp.float32)
        made = eqx.filter_eval_shape(everything, layer, xs)
        kinds = {leaf.dtype for leaf in jax.tree.leaves(made) if hasattr(leaf, "dtype")}
    assert kinds in ({jnp.dtype("float32")}, {jnp.dtype("float32"), jnp.dtype("complex64")})


# --- decays at the ends of [0, 1]


def decayed_attention(rng, decay):
    weights = (normal(rng, rows, 3) for rows in (5, 4, 4))
    return uh.LinearAttention(*weights, decay=decay)


def decayed_lru(rng, decay):
    nu = decayed_attention(rng, decay).nu
    return eqx.tree_at(lambda layer: layer.nu, lru(rng), nu)


WITH_DECAY = {
    "attention": decayed_attention,
    "gated RNN": gated_rnn,
    "side-gated RNN": side_gated_rnn,
    "LRU": decayed_lru,
}


@pytest.mark.parametrize("time", [5, 70])
@pytest.mark.parametrize("name", WITH_DECAY)
def test_decays_of_exactly_0_and_1(name, time):
    decay = np.array([0.0, 1.0, 0.5, 0.0, 1.0])
    layer = in_jax(WITH_DECAY[name](np.random.default_rng(5), decay))
    xs = sequence(time)
    np.testing.assert_array_equal(layer.decay[np.array([0, 1, 3, 4])], [0, 1, 0, 1])
    assert relative_error(eqx.filter_jit(layer)(xs), naive(layer, xs)) < CLOSE
    slopes = eqx.filter_jit(gradients)(parallel, layer, xs)
    expected = naive_gradients(layer, xs, projection(layer, time))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(slopes))
    assert_same_leaves(slopes, expected)


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["attention", "gated RNN", "side-gated RNN"])
def test_decay_is_what_was_given(name, dtype, array):
    # In float32 the second is 0 and the fifth is 1.
    given = np.array([0, 1e-300, 1e-9, 0.3, 1 - 1e-12, 1], dtype)
    layer = with_six_decays(name, array(given))
    assert layer.decay.dtype == dtype
    read = np.asarray(layer.decay, float)
    # ν is known to about eps·(1 + |ν|), and dλ/λ = log λ · dν; λ itself is rounded once more.
    inside = np.clip(given.astype(float), 1e-320, 1 - 1e-16)
    nu = np.log(-np.log(inside))
    tolerance = 2 * np.finfo(dtype).eps * (1 + np.abs(np.log(inside)) * (1 + np.abs(nu)))
    assert np.all(np.abs(read - given) <= tolerance * given)
    np.testing.assert_array_equal(read[[0, -1]], [0, 1])


def with_six_decays(name, decay):
    rng = np.random.default_rng(6)
    if name == "attention":
        return uh.LinearAttention(
            normal(rng, 6, 3), normal(rng, 4, 3), normal(rng, 4, 3), decay=decay
        )
    weights = {"W_in_m": normal(rng, 6, 4), "W_in_x": normal(rng, 6, 4), "D": normal(rng, 2, 6)}
    if name == "side-gated RNN":
        return uh.SideGatedRNN(**weights, W_side=normal(rng, 6, 4), decay=decay)
    gates = {"W_out_m": normal(rng, 6, 6), "W_out_x": normal(rng, 6, 6)}
    return uh.GatedRNN(**weights, **gates, decay=decay)


def test_nu_beyond_the_ends_is_clipped():
    layer = gated_rnn(np.random.default_rng(7))
    far = eqx.tree_at(lambda one: one.nu, layer, np.array([-1e3, NU_ONE, 0.0, NU_ZERO, 1e3]))
    np.testing.assert_array_equal(far.decay, [1, 1, np.exp(-1), 0, 0])


# --- layers without neurons


def empty_attention(rng):
    return attention(rng, d_k=0)


def valueless_attention(rng):
    return attention(rng, d_v=0)


def empty_gated_rnn(rng, hidden=0, gated=0):
    return uh.GatedRNN(
        W_in_m=normal(rng, hidden, 4),
        W_in_x=normal(rng, hidden, 4),
        decay=np.ones(hidden),
        W_out_m=normal(rng, gated, hidden),
        W_out_x=normal(rng, gated, hidden),
        D=normal(rng, 2, gated),
    )


def init_of(kind, **sizes):
    return lambda rng: kind.init(**sizes, key=jax.random.key(0))


WITHOUT_NEURONS = {
    "attention, d_k = 0": empty_attention,
    "attention, d_v = 0": valueless_attention,
    "gated RNN": empty_gated_rnn,
    "gated RNN, no gates": lambda rng: empty_gated_rnn(rng, hidden=3),
    "gated RNN, no neurons": lambda rng: empty_gated_rnn(rng, gated=3),
    "side-gated RNN": init_of(uh.SideGatedRNN, d_in=3, hidden=0, d_out=2),
    "gated RNN, init": init_of(uh.GatedRNN, d_in=3, hidden=0, gated=0, d_out=2),
    "dense gated RNN": init_of(uh.DenseGatedRNN, d_in=3, hidden=0, gated=0, d_out=2),
    "LRU": init_of(uh.LRU, d_in=3, hidden=0, d_out=2),
    "LRU in-out": init_of(uh.LRUInOut, d_in=3, hidden=0, d_out=2),
    "LRU in-out MLP": init_of(uh.LRUInOutMLP, d_in=3, hidden=0, d_out=2),
    "Mamba": init_of(uh.Mamba, d_in=3, hidden=0, d_out=2),
    "Mamba block": init_of(uh.MambaBlock, d_in=3, d_out=2, state=0),
    "LSTM": init_of(uh.LSTM, d_in=3, hidden=0),
    "GRU": init_of(uh.GRU, d_in=3, hidden=0),
}


@pytest.mark.parametrize("name", WITHOUT_NEURONS)
def test_layers_without_neurons_run(name):
    layer = in_jax(WITHOUT_NEURONS[name](np.random.default_rng(8)))
    for time in (1, 70):
        xs = sequence(time)
        for run in (parallel, uh.stream):
            assert relative_error(eqx.filter_jit(run)(layer, xs), naive(layer, xs)) < CLOSE
    expected = naive_gradients(layer, xs, projection(layer, 70))
    assert_same_leaves(eqx.filter_jit(gradients)(parallel, layer, xs), expected)


# --- other people's LSTM and GRU


def test_lstm_is_the_one_of_equinox():
    layer, xs = lstm(np.random.default_rng(9)), sequence(40)
    cell = eqx.nn.LSTMCell(3, 5, key=jax.random.key(0))
    # Equinox packs the gates as input, forget, candidate, output; the paper calls the first g.
    packed = [np.concatenate([getattr(layer, f"{s}_{g}") for g in "gfco"]) for s in "UVb"]
    cell = eqx.tree_at(lambda c: (c.weight_ih, c.weight_hh, c.bias), cell, packed)
    state, outputs = (jnp.zeros(5), jnp.zeros(5)), []
    for x in xs:
        state = cell(x, state)
        outputs.append(state[0])
    assert relative_error(layer(xs), jnp.stack(outputs)) < CLOSE


def test_gru_resets_before_the_product():
    layer, xs = gru(np.random.default_rng(10)), np.asarray(sequence(40))

    def sigma(z):
        return 0.5 + 0.5 * np.tanh(z / 2)

    h, outputs = np.zeros(5), []
    for x in xs:
        r = sigma(x @ layer.U_r.T + h @ layer.V_r.T + layer.b_r)
        z = sigma(x @ layer.U_z.T + h @ layer.V_z.T + layer.b_z)
        candidate = np.tanh(x @ layer.U_h.T + (r * h) @ layer.V_h.T + layer.b_h)
        h = h + z * (candidate - h)
        outputs.append(h)
    assert relative_error(layer(jnp.asarray(xs)), np.stack(outputs)) < CLOSE


def equinox_gru(layer, xs):
    """`equinox.nn.GRUCell` with the weights of one of our layers."""
    # Its update gate weighs the old state, h' = u⊙h + (1 − u)⊙h̃, where ours weighs the candidate:
    # u = 1 − z = σ(−·), so the weights of z change sign.
    # Its candidate is tanh(U x + b + r⊙(V h + bias_n)). Our bias is not reset, so it is b, and
    # bias_n is 0.
    signs = {"r": 1, "z": -1, "h": 1}
    packed = [
        np.concatenate([sign * getattr(layer, f"{symbol}_{gate}") for gate, sign in signs.items()])
        for symbol in "UVb"
    ]
    cell = eqx.nn.GRUCell(3, 5, key=jax.random.key(0))
    cell = eqx.tree_at(
        lambda c: (c.weight_ih, c.weight_hh, c.bias, c.bias_n), cell, (*packed, np.zeros(5))
    )
    state, outputs = jnp.zeros(5), []
    for x in xs:
        state = cell(x, state)
        outputs.append(state)
    return jnp.stack(outputs)


def test_gru_is_the_one_of_equinox_where_they_must_agree():
    layer, xs = gru(np.random.default_rng(11)), sequence(40)
    # diag(v)(r⊙h) = r⊙(diag(v) h): then it does not matter on which side of V_h the reset acts.
    diagonal = eqx.tree_at(lambda one: one.V_h, layer, np.diag(np.diag(layer.V_h)))
    assert relative_error(diagonal(xs), equinox_gru(diagonal, xs)) < CLOSE
    # And where V_h is full the two differ, so the comparison above can fail.
    assert relative_error(layer(xs), equinox_gru(layer, xs)) > 1e-3


# --- init


COMPLEX = {
    **dict.fromkeys(("nu", "theta_log", "gamma_log"), (5,)),
    **dict.fromkeys(("B_re", "B_im"), (5, 3)),
    **dict.fromkeys(("C_re", "C_im"), (2, 5)),
    "D": (2, 3),
}
GATES = {
    **dict.fromkeys(("W_in_m", "W_in_x"), (5, 4)),
    **dict.fromkeys(("W_out_m", "W_out_x"), (6, 5)),
    "D": (2, 6),
}


def gate_shapes(letters):
    shapes = {"U": (5, 3), "V": (5, 5), "b": (5,)}
    return {f"{symbol}_{gate}": shapes[symbol] for gate in letters for symbol in "UVb"}


INITS = {
    "LinearAttention": (
        lambda key: uh.LinearAttention.init(d_in=3, d_v=2, d_k=4, key=key),
        {"W_V": (2, 3), "W_K": (4, 3), "W_Q": (4, 3)},
    ),
    "LinearAttention, square": (
        lambda key: uh.LinearAttention.init(d_in=3, key=key),
        {"W_V": (3, 3), "W_K": (3, 3), "W_Q": (3, 3)},
    ),
    "MultiHead": (
        lambda key: uh.MultiHead.init(d_in=3, heads=2, d_v=2, d_k=4, key=key),
        {
            **{
                f"heads[{i}].{W}": (rows, 3)
                for i in (0, 1)
                for W, rows in (("W_V", 2), ("W_K", 4), ("W_Q", 4))
            },
            "W_O": (4, 4),
        },
    ),
    "GatedRNN": (
        lambda key: uh.GatedRNN.init(d_in=3, hidden=5, gated=6, d_out=2, key=key),
        {**GATES, "nu": (5,)},
    ),
    "DenseGatedRNN": (
        lambda key: uh.DenseGatedRNN.init(d_in=3, hidden=5, gated=6, d_out=2, key=key),
        {**GATES, "A": (5, 5)},
    ),
    "SideGatedRNN": (
        lambda key: uh.SideGatedRNN.init(d_in=3, hidden=5, d_out=2, key=key),
        {**dict.fromkeys(("W_in_m", "W_in_x", "W_side"), (5, 3)), "nu": (5,), "D": (2, 5)},
    ),
    "LRU": (
        lambda key: uh.LRU.init(d_in=3, hidden=5, d_out=2, key=key),
        {**COMPLEX, **dict.fromkeys(("W_m", "W_x"), (2, 2))},
    ),
    "LRUInOut": (
        lambda key: uh.LRUInOut.init(d_in=3, hidden=5, d_out=2, key=key),
        {
            **COMPLEX,
            **dict.fromkeys(("W_in_m", "W_in_x"), (3, 3)),
            **dict.fromkeys(("W_m", "W_x"), (2, 2)),
        },
    ),
    "LRUInOutMLP": (
        lambda key: uh.LRUInOutMLP.init(d_in=3, hidden=5, d_out=2, key=key),
        {
            **COMPLEX,
            **dict.fromkeys(("W_in_1", "W_in_2"), (3, 3)),
            **dict.fromkeys(("W_out_1", "W_out_2"), (2, 2)),
        },
    ),
    "Mamba": (
        lambda key: uh.Mamba.init(d_in=3, hidden=5, d_out=2, inner=4, key=key),
        {
            "W_input": (4, 3),
            **dict.fromkeys(("b_input", "W_delta"), (4,)),
            "b_delta": (),
            "W_A": (5, 4),
            "b_A": (5,),
            "W_B": (5, 4, 4),
            "b_B": (5, 4),
            "W_C": (2, 5, 4),
            "b_C": (2, 5),
            "W_side": (2, 3),
        },
    ),
    "MambaBlock": (
        lambda key: uh.MambaBlock.init(d_in=3, d_out=2, inner=4, state=5, width=6, rank=2, key=key),
        {
            **dict.fromkeys(("W_in_u", "W_in_z"), (4, 3)),
            "conv": (6, 4),
            **dict.fromkeys(("b_conv", "b_dt", "D"), (4,)),
            "W_x_dt": (2, 4),
            **dict.fromkeys(("W_x_B", "W_x_C"), (5, 4)),
            "W_dt": (4, 2),
            "A_log": (4, 5),
            "W_out": (2, 4),
        },
    ),
    "LSTM": (lambda key: uh.LSTM.init(d_in=3, hidden=5, key=key), gate_shapes("fcgo")),
    "GRU": (lambda key: uh.GRU.init(d_in=3, hidden=5, key=key), gate_shapes("rhz")),
    "Stack": (
        lambda key: uh.Stack.init(
            lambda width, *, key: uh.GRU.init(d_in=width, hidden=width, key=key),
            d_in=4,
            hidden=5,
            d_out=2,
            depth=2,
            key=key,
        ),
        {
            "embed.W": (5, 4),
            "embed.b": (5,),
            **{
                f"layers[{i}].{symbol}_{gate}": {"b": (5,)}.get(symbol, (5, 5))
                for i in (0, 1)
                for symbol in "UVb"
                for gate in "rhz"
            },
            "readout.W": (2, 5),
        },
    ),
}


def named_arrays(layer):
    leaves = jax.tree_util.tree_leaves_with_path(layer)
    return {jax.tree_util.keystr(path).lstrip("."): leaf for path, leaf in leaves}


@pytest.mark.parametrize("name", INITS)
def test_init_has_the_documented_shapes_and_runs(name):
    init, shapes = INITS[name]
    layer = init(jax.random.key(0))
    assert {path: leaf.shape for path, leaf in named_arrays(layer).items()} == shapes
    xs = sequence(6, d_in=layer.d_in)
    assert relative_error(eqx.filter_jit(layer)(xs), naive(layer, xs)) < CLOSE


# What starts the same whatever the key: biases at zero, and Mamba's documented Δ, A and D.
NOT_RANDOM = {
    "LSTM": [f"b_{gate}" for gate in "fcgo"],
    "GRU": [f"b_{gate}" for gate in "rhz"],
    "Stack": ["embed.b", *(f"layers[{i}].b_{gate}" for i in (0, 1) for gate in "rhz")],
    "Mamba": ["b_input", "W_delta", "b_delta", "b_A", "b_B"],
    "MambaBlock": ["b_conv", "A_log", "D"],
}


@pytest.mark.parametrize("name", INITS)
def test_init_depends_on_its_key_alone(name):
    init, _ = INITS[name]
    first, again, other = (named_arrays(init(jax.random.key(seed))) for seed in (0, 0, 1))
    for path, leaf in first.items():
        np.testing.assert_array_equal(leaf, again[path])
    # Entry by entry, because a matrix may be the sum of a random diagonal and random noise.
    fixed = {path for path, leaf in first.items() if np.any(leaf == other[path])}
    assert fixed == set(NOT_RANDOM.get(name, []))


def test_every_public_layer_is_in_the_tables():
    kinds = {
        kind
        for kind in vars(uh).values()
        if isinstance(kind, type) and issubclass(kind, uh.Layer) and kind is not uh.Layer
    }
    assert {type(make(name)) for name in CASES} == kinds
    assert {type(init(jax.random.key(0))) for init, _ in INITS.values()} == kinds


@every_layer
def test_layers_are_frozen(name):
    layer = make(name)
    for field in dataclasses.fields(layer):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(layer, field.name, getattr(layer, field.name))


# --- refusals


@every_layer
@pytest.mark.parametrize("shape", [(D_IN,), (5, D_IN + 1), (2, 5, D_IN), ()])
def test_wrong_input_shapes_are_refused(name, shape, unhooked):
    layer = make(name)
    for run in (parallel, uh.stream, eqx.filter_jit(parallel)):
        with pytest.raises(uh.BadInput, match=r"\[time, 3\].*jax\.vmap") as caught:
            run(layer, jnp.ones(shape))
        assert str(shape) in str(caught.value)
        assert "\n" not in str(caught.value)


def W(*shape):
    return np.ones(shape)


HEAD = uh.LinearAttention(W(2, 3), W(4, 3), W(4, 3))


def gated_with(**changes):
    weights = {
        "W_in_m": W(5, 4),
        "W_in_x": W(5, 4),
        "decay": W(5),
        "W_out_m": W(6, 5),
        "W_out_x": W(6, 5),
        "D": W(2, 6),
    }
    return lambda: uh.GatedRNN(**(weights | changes))


def gru_with(**changes):
    return lambda: uh.GRU(**(gates_of(np.random.default_rng(0), "rhz") | changes))


def mamba_with(**changes):
    fields = {
        field.name: getattr(make("Mamba"), field.name) for field in dataclasses.fields(uh.Mamba)
    }
    return lambda: uh.Mamba(**(fields | changes))


# What is built, and every fragment that the one line must hold.
REFUSED = {
    "rank": (
        lambda: uh.LinearAttention(W(3), W(4, 3), W(4, 3)),
        ["LinearAttention", "W_V", "(3,)", "[d_v, d_in]"],
    ),
    "rank of a bias": (gru_with(b_r=W(5, 1)), ["GRU", "b_r", "(5, 1)", "[hidden]"]),
    "rank of a scalar": (mamba_with(b_delta=W(1)), ["Mamba", "b_delta", "(1,)"]),
    "rank of a tensor": (mamba_with(W_B=W(5, 16)), ["W_B", "(5, 16)", "[hidden, inner, inner]"]),
    "every size": (
        lambda: uh.LinearAttention(W(2, 3), W(4, 5), W(6, 7), b_V=W(8), b_K=W(4)),
        [
            "W_K has shape (4, 5)",
            "W_Q has shape (6, 7)",
            "b_V has shape (8,)",
            "d_in",
            "d_k",
            "d_v",
        ],
    ),
    "sizes of gates": (
        gated_with(W_in_x=W(5, 3), W_out_x=W(7, 5), D=W(2, 5)),
        ["GatedRNN", "W_in_x", "W_out_x has shape (7, 5)", "D has shape (2, 5)"],
    ),
    "square matrices": (gru_with(V_h=W(5, 4)), ["V_h", "(5, 4)", "hidden is 5"]),
    "length of the decay": (gated_with(decay=W(4)), ["GatedRNN", "(4,)", "hidden is 5"]),
    "problems of every kind": (
        lambda: uh.LinearAttention(
            W(3), [[1.0]], np.full((4, 3), np.nan), b_V=np.ones(2, int), b_K=np.ones(2, object)
        ),
        [
            "W_V has shape (3,)",
            "W_K is a list",
            "W_Q holds NaN",
            "b_V holds int64",
            "b_K holds Python",
        ],
    ),
    "NaN": (gru_with(U_z=np.full((5, 3), np.nan)), ["GRU", "U_z", "NaN"]),
    "infinity": (gru_with(U_z=np.full((5, 3), -np.inf)), ["GRU", "U_z", "infinite"]),
    "NaN in JAX": (lambda: uh.Affine(jnp.full((2, 2), jnp.nan)), ["Affine", "W holds NaN"]),
    "NaN decay": (gated_with(decay=np.array([1, 1, np.nan, 1, 1])), ["GatedRNN", "decay", "NaN"]),
    "integers": (gated_with(D=np.ones((2, 6), int)), ["D holds int64", "astype(float)"]),
    "integer decay": (gated_with(decay=np.ones(5, int)), ["decay holds int64", "astype(float)"]),
    "booleans": (gated_with(D=np.ones((2, 6), bool)), ["D holds bool"]),
    "complex numbers": (gated_with(D=W(2, 6) * 1j), ["D holds complex128"]),
    "objects": (gated_with(D=np.ones((2, 6), object)), ["D holds Python objects"]),
    "lists": (gru_with(b_h=[0.0] * 5), ["GRU", "b_h is a list", "array"]),
    "a list for the decay": (gated_with(decay=[1.0] * 5), ["decay is a list", "array"]),
    "a number": (gru_with(b_h=0.0), ["b_h is a float", "array"]),
    "decay above 1": (gated_with(decay=W(5) * 1.5), ["GatedRNN", "decay", "[0, 1]", "1.5"]),
    "decay below 0": (
        lambda: uh.LinearAttention(W(2, 3), W(4, 3), W(4, 3), decay=np.array([-0.25, 1])),
        ["LinearAttention", "decay", "[0, 1]", "-0.25"],
    ),
    "decay just above 1": (gated_with(decay=W(5) + 1e-15), ["decay", "[0, 1]"]),
    "no heads": (lambda: uh.MultiHead([]), ["MultiHead", "at least one head"]),
    "a head of another kind": (
        lambda: uh.MultiHead([HEAD, make("GRU")]),
        ["MultiHead", "head 1", "GRU", "LinearAttention"],
    ),
    "heads of different inputs": (
        lambda: uh.MultiHead([HEAD, uh.LinearAttention(W(2, 4), W(2, 4), W(2, 4))]),
        ["MultiHead", "[3, 4]"],
    ),
    "size of W_O": (lambda: uh.MultiHead([HEAD], W(2, 3)), ["MultiHead", "W_O", "(2, 3)", "2"]),
    "NaN in W_O": (lambda: uh.MultiHead([HEAD], W(2, 2) * np.nan), ["MultiHead", "W_O", "NaN"]),
    "rank of W_O": (lambda: uh.MultiHead([HEAD], W(2)), ["MultiHead", "W_O", "(2,)"]),
    "a list for W_O": (lambda: uh.MultiHead([HEAD], [[1.0, 1.0]]), ["MultiHead", "W_O is a list"]),
    "no layers": (lambda: uh.Stack(None, [], None), ["Stack", "at least one layer"]),
    "a layer that is none": (
        lambda: uh.Stack(None, [W(2, 2)], None),
        ["Stack", "layer 0", "ndarray"],
    ),
    "an embedding that is none": (lambda: uh.Stack(W(3, 3), [HEAD], None), ["Stack", "embed"]),
    "a readout that is none": (lambda: uh.Stack(None, [HEAD], W(2, 2)), ["Stack", "readout"]),
    "layers that do not fit": (
        lambda: uh.Stack(uh.Affine(W(3, 7)), [HEAD, HEAD], None),
        ["Stack", "layer 0 gives 2", "layer 1 takes 3"],
    ),
    "a readout that does not fit": (
        lambda: uh.Stack(None, [HEAD], uh.Affine(W(1, 3))),
        ["Stack", "layer 0 gives 2", "readout takes 3"],
    ),
    "bias of an affine map": (lambda: uh.Affine(W(2, 3), W(3)), ["Affine", "b has shape (3,)"]),
    "an unknown activation": (
        lambda: lru_in_out_mlp(np.random.default_rng(0), "rellu"),
        ["LRUInOutMLP", "'rellu'", "relu, gelu, silu, softplus, tanh"],
    ),
    "a matrix left out": (lambda: uh.LinearAttention(None, W(4, 3), W(4, 3)), ["W_V"]),
    "a bias left out": (gru_with(b_r=None), ["GRU", "b_r"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_constructors_refuse_in_one_line(name, unhooked):
    build, fragments = REFUSED[name]
    with pytest.raises(uh.BadInput) as caught:
        build()
    message = str(caught.value)
    assert "\n" not in message
    assert [fragment for fragment in fragments if fragment not in message] == []


def test_misspelt_weights_are_refused(unhooked):
    with pytest.raises(TypeError, match="W_inm"):
        gated_with(W_inm=W(5, 4))()


# --- networks that need float64


def linearised(array):
    """A network that says it needs float64, its weights as `array` makes them."""
    layer = stack(np.random.default_rng(12))
    marked = uh.Stack(layer.embed, layer.layers, layer.readout, needs_x64=True)
    return jax.tree.map(array, marked)


ARRAYS = pytest.mark.parametrize("array", [np.asarray, jnp.asarray], ids=["numpy", "jax"])

RUNS = {
    "call": parallel,
    "jit": eqx.filter_jit(parallel),
    "jit, weights closed over": lambda layer, xs: jax.jit(lambda xs: layer(xs))(xs),
    "vmap": lambda layer, xs: jax.vmap(layer)(xs[None]),
    "stream": uh.stream,
    "initial_state": lambda layer, xs: layer.initial_state(),
}


@ARRAYS
@pytest.mark.parametrize("name", RUNS)
def test_weights_for_float64_refuse_to_run_in_float32(name, array):
    layer, xs = linearised(array), np.ones((4, D_IN), np.float32)
    with jax.enable_x64(False), pytest.raises(uh.BadInput, match="enable_x64") as caught:
        RUNS[name](layer, jnp.asarray(xs))
    assert "\n" not in str(caught.value)


@ARRAYS
def test_weights_for_float64_refuse_to_step_in_float32(array):
    # The state may come from a call inside enable_x64, so initial_state is no guard for step.
    layer = linearised(array)
    state = layer.initial_state()
    with jax.enable_x64(False), pytest.raises(uh.BadInput, match="enable_x64"):
        layer.step(state, jnp.ones(D_IN))


@ARRAYS
def test_weights_for_float64_run_in_float64(array):
    layer, xs = linearised(array), sequence(9)
    for run in (parallel, eqx.filter_jit(parallel), uh.stream):
        assert relative_error(run(layer, xs), naive(layer, xs)) < CLOSE


def test_the_same_weights_unmarked_run_in_float32():
    layer = stack(np.random.default_rng(12))
    with jax.enable_x64(False):
        outputs = layer(jnp.ones((4, D_IN)))
    assert outputs.dtype == jnp.float32
    assert relative_error(outputs.astype(float), naive(layer, jnp.ones((4, D_IN)))) < 1e-5
