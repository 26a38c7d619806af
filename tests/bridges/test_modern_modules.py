"""Layers of today in the classes of transformers: their maps, and compiled attention inside them.

"Widened" is float64 with the casts to float32 rerouted; "as it is" keeps the casts.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import layer_cases as cases
import numpy as np
import pytest
from equations.prototype_errors import LIMITS
from refusals import refused
from teachers import attention

import underhood as uh

torch = pytest.importorskip("torch")
pytest.importorskip("transformers.models.kimi_linear")

from modern_cases import (  # noqa: E402
    Widened,
    divided_as_pytorch_rounds,
    module_of,
    squared,
)

pytestmark = pytest.mark.usefixtures("x64")

HEADS = {"d_in": 6, "d_out": 6, "heads": 2, "d_k": 3, "d_v": 3}
LOW_RANK = HEADS | {"rank": 3}
BLOCK = {"d_in": 6, "d_out": 6, "inner": 12, "state": 3, "width": 4, "rank": 2}


def shared_heads(layer):
    """Mamba-2 with one group: all heads have the same B and C."""
    fields = ("W_B", "W_C", "b_B", "b_C")
    same = {name: np.repeat(np.asarray(getattr(layer, name))[:1], 2, axis=0) for name in fields}
    same |= {
        name: np.repeat(np.asarray(getattr(layer, name))[:, :1], 2, axis=1)
        for name in ("conv_B", "conv_C")
    }
    return dataclasses.replace(layer, **same)


def drawn(kind, ranges=None, **sizes):
    layer = cases.modern(kind, ranges, **sizes)(np.random.default_rng(3))
    return shared_heads(layer) if kind is uh.Mamba2 else layer


RANDOM = {
    "MambaMixer": drawn(uh.MambaBlock, {"A_log": (-2, 1)}, **BLOCK),
    "Mamba2Mixer": drawn(uh.Mamba2, {"A_log": (-2, 0)}, **HEADS, width=4),
    "FalconH1Mixer": dataclasses.replace(
        drawn(uh.Mamba2, {"A_log": (-2, 0)}, **HEADS, width=4), norm=None
    ),
    "Qwen3NextGatedDeltaNet": drawn(
        uh.GatedDeltaNet, {"A_log": (-2, 0)}, **HEADS, width=4, eps=1e-6
    ),
    "KimiLinearDeltaAttention": drawn(uh.KDA, {"A_log": (-2, 0)}, **LOW_RANK, width=4, eps=1e-5),
    "JambaMambaMixer": drawn(uh.JambaBlock, {"A_log": (-2, 1)}, **BLOCK),
    "RecurrentGemmaRecurrentBlock": drawn(uh.RGLRU, d_in=6, d_out=6, inner=8, width=4),
    "xLSTMLayer": drawn(uh.MLSTM, {"b_f": (1, 4)}, **HEADS),
    "MiniMaxLightningAttention": drawn(uh.Lightning, **HEADS, index=70),
}
BATCH = np.random.default_rng(1).normal(size=(2, 20, 6))


def run(call, *arguments, wide=True):
    with torch.no_grad():
        if not wide:
            return call(*arguments).numpy()
        with Widened():
            return call(*arguments).numpy()


@pytest.mark.parametrize("name", RANDOM)
def test_maps_of_modules_are_their_own_forward_passes(name):
    foreign = module_of(RANDOM[name])
    assert type(foreign.module).__name__ == name
    again = uh.from_torch(foreign.module)
    assert jax.tree.structure(again) == jax.tree.structure(RANDOM[name])
    assert eqx.tree_equal(jax.tree.map(np.asarray, RANDOM[name]), again)
    outputs = np.stack([uh.attention_map(foreign.module, xs).outputs for xs in BATCH])
    xs = torch.tensor(BATCH)
    assert cases.relative_error(run(foreign.whole, xs), outputs) < 1e-12
    assert cases.relative_error(run(foreign.decode, xs, 7), outputs) < 1e-12
    # MiniMax and Falcon-H1 without a norm may have no cast that matters.
    limit = 1e-5 if name == "xLSTMLayer" else 1e-6
    assert cases.relative_error(run(foreign.whole, xs, wide=False), outputs) < limit
    assert cases.relative_error(run(foreign.decode, xs, 7, wide=False), outputs) < limit


TARGETS = {
    "mamba_block": "MambaMixer",
    "falcon_h1": "FalconH1Mixer",
    "mamba2": "Mamba2Mixer",
    "gated_deltanet": "Qwen3NextGatedDeltaNet",
    "kda": "KimiLinearDeltaAttention",
    "jamba": "JambaMambaMixer",
    "rg_lru": "RecurrentGemmaRecurrentBlock",
    "mlstm": "xLSTMLayer",
    "lightning": "MiniMaxLightningAttention",
}


def compiled(target, dtype, time):
    """Attention, tokens with the constant, and the module that computes it."""
    d = 2 if target == "rg_lru" else 4
    source = attention(d)
    layer = squared(uh.compile(source, target, dtype=dtype, length=time).layer.layers[0])
    options = {}
    if target == "rg_lru":
        layer, options = divided_as_pytorch_rounds(layer), {"first": 1}
    xs = np.random.default_rng(2).normal(size=(2, time, d))
    tokens = np.concatenate([xs, np.ones((2, time, 1))], axis=-1).astype(dtype)
    expected = jax.vmap(source)(jnp.asarray(tokens[..., :-1], jnp.float64))
    foreign = module_of(layer, getattr(torch, dtype), **options)
    return expected, torch.tensor(tokens), foreign


# What the modules reach in float32 at 32 tokens is below ten times the prototypes.
SHORT = {"rg_lru": 1e-4, "mlstm": LIMITS["mlstm"]["float32", 32]}
each_compiled = pytest.mark.parametrize(
    ("target", "time"), [(target, time) for target in TARGETS for time in (32, 256)]
)


@each_compiled
def test_compiled_attention_inside_a_module(target, time):
    expected, tokens, foreign = compiled(target, "float64", time)
    assert type(foreign.module).__name__ == TARGETS[target]
    d = expected.shape[-1]
    for outputs in (run(foreign.whole, tokens), run(foreign.decode, tokens, 9)):
        assert cases.relative_error(outputs[..., :d], expected) < LIMITS[target]["float64", time]
        # Rows that were added give nothing.
        assert not np.any(outputs[..., d:])


@each_compiled
def test_compiled_attention_in_float32_as_the_module_is(target, time):
    expected, tokens, foreign = compiled(target, "float32", time)
    d = expected.shape[-1]
    limit = SHORT.get(target, 1e-6) if time == 32 else LIMITS[target]["float32", time]
    for outputs in (
        run(foreign.whole, tokens, wide=False),
        run(foreign.decode, tokens, 9, wide=False),
    ):
        assert outputs.dtype == np.float32
        assert cases.relative_error(outputs[..., :d], expected) < limit


def test_what_a_layer_has_no_place_for_is_refused():
    foreign = module_of(RANDOM["xLSTMLayer"])
    foreign.module.config.weight_mode = "fused"
    with refused("from_torch: this xLSTMLayer has fused weights"):
        uh.attention_map(foreign.module, BATCH[0])
    with refused("attention_map: LSTM has no map of its own"):
        uh.attention_map(torch.nn.LSTM(3, 3, batch_first=True), BATCH[0])
