"""Attention maps: maps times values, and what stands outside, are the layer's own outputs."""

import equinox as eqx
import jax
import jax.numpy as jnp
import layer_cases as cases
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from refusals import refused

import underhood as uh
from underhood.layers.modern.parts import project_heads

pytestmark = pytest.mark.usefixtures("x64")

GRUS = ("GRU", "GRU, reset after", "GRU, reset after, one bias")
WITHOUT = ("LRU", "LRU in-out", "LRU in-out MLP", "LSTM", *GRUS, "stack")
MAPPED = [name for name in cases.CASES if name not in WITHOUT]


@pytest.mark.parametrize("name", MAPPED)
def test_maps_times_values_are_the_layer(name):
    layer = cases.make(name)
    for time in (1, 2, 40):
        xs = cases.sequence(time)
        mapped = uh.attention_map(layer, xs)
        assert mapped.maps.shape[1:] == (time, time)
        assert np.all(mapped.maps == np.tril(mapped.maps))
        expected = eqx.filter_jit(layer)(xs)
        assert cases.relative_error(mapped.outputs, expected) < cases.CLOSE
        assert mapped.mixed.shape == mapped.values.shape


KINDS = (uh.Mamba2, uh.GatedDeltaNet, uh.DeltaNet, uh.KDA, uh.GLA, uh.HGRN2, uh.RWKV6, uh.RWKV7)
KINDS += (uh.RetNet, uh.Lightning, uh.MLSTM)
# Where each kind has its decay, and the bias that makes it exactly 1 or nearly 0.
GATES = {
    "A_log": (-np.inf, 6.0),
    "b_a": (np.inf, -600.0),
    "w_0": (-np.inf, 6.0),
    "b_f": (200, -200),
}


@settings(max_examples=15)
@given(
    kind=st.sampled_from(KINDS),
    time=st.integers(1, 12),
    heads=st.integers(1, 3),
    d_k=st.integers(1, 3),
    d_v=st.integers(2, 3),
    end=st.sampled_from([None, 0, 1]),
    seed=st.integers(0, 99),
)
def test_maps_of_random_layers_with_gates_at_their_ends(kind, time, heads, d_k, d_v, end, seed):
    key = jax.random.key(seed)
    layer = kind.init(d_in=2, d_out=2, heads=heads, d_k=d_k, d_v=d_v, key=key)
    if end is not None:
        for name in GATES:
            if hasattr(layer, name):
                full = jnp.full_like(getattr(layer, name), GATES[name][end])
                layer = eqx.tree_at(lambda layer, name=name: getattr(layer, name), layer, full)
    assert_maps_stream(layer, time, seed)


def assert_maps_stream(layer, time, seed):
    xs = jax.random.normal(jax.random.key(seed + 1), (time, 2))
    mapped = uh.attention_map(layer, xs)
    assert np.all(np.isfinite(mapped.maps))
    # Token by token, which shares no code with the maps. A norm divides by √eps at most.
    streamed = eqx.filter_jit(uh.stream)(layer, xs)
    assert np.max(np.abs(mapped.outputs - streamed)) < 1e-12 * max(1, np.max(np.abs(streamed)))


# Layers with a map per channel or output; the weights that put their gates at an end.
CHANNELS = {
    uh.RGLRU: ("inner", "Lambda", (-700.0, 100.0)),
    uh.MinGRU: ("hidden", "W_z", (0.0, 1e4)),
    uh.JambaBlock: ("inner", "A_log", (-np.inf, 6.0)),
    uh.MambaBlock: ("inner", "A_log", (-np.inf, 6.0)),
    uh.GatedRNN: ("hidden gated", "nu", (-np.inf, np.inf)),
    uh.SideGatedRNN: ("hidden", "nu", (-np.inf, np.inf)),
    uh.DenseGatedRNN: ("hidden gated", "A", (1.0, 0.0)),
}


@settings(max_examples=15)
@given(
    kind=st.sampled_from(list(CHANNELS)),
    time=st.integers(1, 6),
    size=st.integers(1, 3),
    end=st.sampled_from([None, 0, 1]),
    seed=st.integers(0, 99),
)
def test_maps_per_channel_with_gates_at_their_ends(kind, time, size, end, seed):
    names, field, ends = CHANNELS[kind]
    sizes = dict.fromkeys(names.split(), size)
    layer = kind.init(d_in=2, d_out=2, key=jax.random.key(seed), **sizes)
    if end is not None:
        weights = getattr(layer, field)
        full = weights * ends[end] if kind is uh.MinGRU else jnp.full_like(weights, ends[end])
        layer = eqx.tree_at(lambda layer: getattr(layer, field), layer, full)
    assert_maps_stream(layer, time, seed)


def test_the_maps_are_the_published_formulas():
    """A = tril(P)(I + tril(diag(β)N, −1))⁻¹ diag(β) for the gated delta rule; and mLSTM's."""
    layer, xs = cases.make("gated DeltaNet"), cases.sequence(20)
    signals = layer.signals(xs)
    beta = jax.nn.sigmoid(xs @ layer.W_b.T)
    log_decay = np.cumsum(np.log(np.asarray(signals.decay[..., 0])), axis=0)
    for h in range(layer.heads):
        k = np.asarray(signals.k[:, h]) / np.asarray(beta[:, h])[:, None]
        gamma = np.exp(log_decay[:, None, h] - log_decay[None, :, h])
        P, N = gamma * (np.asarray(signals.q[:, h]) @ k.T), gamma * (k @ k.T)
        B = np.diag(np.asarray(beta[:, h]))
        expected = np.tril(P) @ np.linalg.inv(np.eye(20) + np.tril(B @ N, -1)) @ B
        # Written in P and N with √d_k inside q.
        assert cases.relative_error(uh.attention_map(layer, xs).maps[h], expected) < 1e-11
    layer = cases.make("mLSTM")
    forget, enter = (np.asarray(gate) for gate in layer.gates(xs))
    log_D = np.cumsum(forget, 0)[:, None] - np.cumsum(forget, 0)[None] + enter[None]
    log_D = np.where(np.tri(20, dtype=bool)[..., None], log_D, -np.inf)
    m = np.maximum(log_D.max(axis=1), np.cumsum(forget, 0))
    q, k = (np.asarray(project_heads(xs, W)) for W in (layer.W_q, layer.W_k))
    P = np.einsum("thk,shk->tsh", q, k) / 2 * np.exp(log_D - m[:, None])
    divisor = np.maximum(np.abs(P.sum(axis=1)), np.exp(-m)) + 1e-6
    expected = np.moveaxis(P / divisor[:, None], -1, 0)
    assert cases.relative_error(uh.attention_map(layer, xs).maps, expected) < 1e-11


@pytest.mark.parametrize("name", WITHOUT)
def test_layers_without_a_map_are_refused_in_a_line(name, unhooked):
    layer = cases.make(name)
    with refused(f"attention_map: {type(layer).__name__} has no map of its own"):
        uh.attention_map(layer, cases.sequence(3))


def test_an_mlstm_whose_outputs_overflow_is_refused(unhooked):
    """Its map divides by the normaliser, which hides that the layer's sums are infinite."""
    large = jax.tree.map(lambda W: 1e120 * np.asarray(W, float), cases.make("mLSTM"))
    with refused("the maps are not finite"):
        uh.attention_map(large, np.random.default_rng(0).normal(size=(4, 3)))


def test_what_is_no_sequence_is_refused(unhooked):
    layer = cases.make("GLA")
    for wrong in (np.ones((2, 3, 3)), np.ones((3, 4)), "abc"):
        with pytest.raises(uh.BadInput):
            uh.attention_map(layer, wrong)
    with refused("attention_map: the sequence has no tokens"):
        uh.attention_map(layer, np.ones((0, 3)))
    with refused("attention_map: ndarray has no map"):
        uh.attention_map(np.eye(3), np.ones((2, 3)))
    for wrong, reason in (
        (np.array([[1.0, np.nan, 0]]), "hold NaN or infinite"),
        (np.ones((2, 3), complex), "the tokens are complex128; give real numbers"),
        (np.array([["a", "b", "c"]]), "the tokens are <U1"),
        (np.array([[None] * 3]), "the tokens are object"),
        (1e300 * np.ones((2, 3)), "the maps are not finite; scale"),
    ):
        with refused(f"attention_map: … {reason}"):
            uh.attention_map(uh.LinearAttention.init(d_in=3, key=jax.random.key(0)), wrong)
    with refused("call it outside jit"):
        jax.jit(lambda xs: uh.attention_map(layer, xs))(np.ones((2, 3)))
    with refused("GLA is a class; give a layer"):
        uh.attention_map(uh.GLA, np.ones((2, 3)))
    mapped = uh.attention_map(layer, np.eye(3, dtype=bool))
    assert np.array_equal(mapped.outputs, uh.attention_map(layer, np.eye(3)).outputs)
