"""Mamba2Mixer objects of transformers against our Mamba2, both ways, in float64."""

import contextlib
import dataclasses

import jax
import jax.numpy as jnp
import layer_cases as cases
import numpy as np
import pytest
from bridge_cases import drawn, equal, mamba2, outputs_as_in_mixer
from refusals import every_refusal
from teachers import attention

import underhood as uh

torch = pytest.importorskip("torch")
mixers = pytest.importorskip("transformers.models.mamba2.modeling_mamba2")
transformers = pytest.importorskip("transformers")

from transformers.cache_utils import DynamicCache  # noqa: E402

from underhood.bridges.mamba_mixers import keep_float64  # noqa: E402

pytestmark = pytest.mark.usefixtures("x64")

BATCH = np.random.default_rng(1).normal(size=(2, 12, 6))
SIZES = {"hidden_size": 6, "num_heads": 4, "head_dim": 3, "state_size": 3, "chunk_size": 8}


def config_of(**options):
    sizes = SIZES | {"num_hidden_layers": 1, "vocab_size": 8, "n_groups": 1} | options
    return transformers.Mamba2Config(**sizes)


def drawn_mixer(**options):
    return drawn(mixers.Mamba2Mixer, config_of(**options))


@pytest.mark.parametrize(
    "options",
    [{}, {"n_groups": 2, "layer_norm_epsilon": 1e-2}, {"n_groups": 4, "use_conv_bias": False}],
)
def test_a_mixer_is_the_layer_with_its_weights(options: dict) -> None:
    mixer = drawn_mixer(**options)
    layer = uh.from_torch(mixer)
    assert isinstance(layer, uh.Mamba2)
    assert layer.norm_groups == mixer.n_groups
    xs = torch.tensor(BATCH)
    ours = outputs_as_in_mixer(layer, mixer, BATCH)
    # With its casts to float32 the mixer is as far away as float32 is.
    with torch.no_grad():
        assert 1e-10 < cases.relative_error(mixer(xs).numpy(), ours) < 1e-6
    # The steps with the mixer's own cache.
    for precision, bound in ((keep_float64(), 1e-12), (contextlib.nullcontext(), 1e-6)):
        with torch.no_grad(), precision:
            cache = DynamicCache(config=config_of(**options))
            ys = [mixer(xs[:, :5], cache_params=cache)]
            ys += [mixer(xs[:, t : t + 1], cache_params=cache) for t in range(5, 12)]
        assert cases.relative_error(torch.cat(ys, 1).numpy(), ours) < bound


@pytest.mark.parametrize("groups", [1, 2])
def test_a_layer_comes_back_from_its_mixer(groups: int) -> None:
    layer = mamba2(np.random.default_rng(0), groups)
    mixer = uh.to_torch(layer)
    assert type(mixer) is mixers.Mamba2Mixer
    assert equal(uh.from_torch(mixer), layer)
    entries = uh.to_state_dict(layer, "hf.Mamba2")
    assert equal(uh.from_state_dict(entries, "hf.Mamba2", groups=groups), layer)


@pytest.mark.parametrize("options", [{}, {"order": 2}, {"order": 2, "dtype": "float32"}])
def test_compiled_attention_inside_a_mixer(options: dict) -> None:
    source = attention(3, decay=np.array([0.3, 1.0, 1.0]))
    built = uh.compile(source, "mamba2", **options)
    module = uh.to_torch(built)
    assert type(module.rnn) is mixers.Mamba2Mixer
    xs = BATCH[..., :3]
    expected = jax.vmap(source)(jnp.asarray(xs))
    dtype = module.rnn.A_log.dtype
    tokens, bound = torch.tensor(xs).to(dtype), 1e-12 if dtype == torch.float64 else 1e-5
    with keep_float64(), torch.no_grad():
        assert cases.relative_error(module(tokens).numpy(), expected) < bound
    again = uh.from_torch(module)
    assert cases.relative_error(jax.vmap(again)(jnp.asarray(xs)), expected) < bound


def whole_block(built, R: float):
    """A Mamba2Block: tokens in the channels 0 to 2, R in channel 3, the outputs in 8 to 10."""
    (layer,) = built.layer.layers
    size = 16
    fields = {field.name: getattr(layer, field.name) for field in dataclasses.fields(layer)}
    for name in ("W_z", "W_x", "W_B", "W_C", "W_dt"):
        narrow = np.asarray(fields[name])
        wide = np.zeros((*narrow.shape[:-1], size))
        # The norm of the block divides by R/√size, but for what is of order |x|²/R².
        wide[..., :3] = narrow[..., :3] * R / np.sqrt(size)
        wide[..., 3] = narrow[..., 3] / np.sqrt(size)
        fields[name] = wide
    fields["W_out"] = np.zeros((size, layer.heads, layer.d_v))
    fields["W_out"][8:11] = layer.W_out
    mixer = uh.to_torch(uh.Stack(None, [uh.Mamba2(**fields)], None)).rnn
    sizes = {"hidden_size": size, "expand": mixer.intermediate_size // size, "state_size": 6}
    sizes |= {"num_heads": mixer.num_heads, "head_dim": mixer.head_dim, "n_groups": mixer.n_groups}
    eps = {"layer_norm_epsilon": mixer.norm.variance_epsilon}
    config = config_of(**sizes, **eps, residual_in_fp32=False)
    block = mixers.Mamba2Block(config, 0).double().eval()
    block.mixer.load_state_dict(mixer.state_dict())
    return block


def test_a_whole_block_is_a_limit_of_order_two() -> None:
    source = attention(3)
    built = uh.compile(source, "mamba2", order=2)
    expected = np.asarray(source(jnp.asarray(BATCH[0, :, :3])))
    errors = []
    for R in (1e3, 1e4, 1e8):
        stream = torch.zeros(1, 12, 16, dtype=torch.float64)
        stream[0, :, :3], stream[..., 3] = torch.tensor(BATCH[0, :, :3]), R
        with keep_float64(), torch.no_grad():
            outputs = whole_block(built, R)(stream)[0, :, 8:11].numpy()
        errors.append(cases.relative_error(outputs, expected))
    assert 80 < errors[0] / errors[1] < 120
    assert errors[2] < 1e-12


REFUSED = {
    "Mamba2 has no bias there": lambda: uh.from_torch(biased_mixer()),
    "SiLUs … 'gelu'": lambda: uh.from_torch(drawn_mixer(hidden_act="gelu")),
    "does not limit Δ … (0.1, 1.0)": lambda: uh.from_torch(drawn_mixer(time_step_limit=(0.1, 1.0))),
    "whole multiple of its 3 inputs … 8": lambda: uh.to_torch(
        uh.Mamba2.init(d_in=3, d_out=3, heads=1, d_k=2, d_v=8, key=jax.random.key(0))
    ),
    "has no norm (Falcon-H1)": lambda: uh.to_torch(uh.compile(attention(3), "falcon_h1")),
}


def biased_mixer():
    mixer = drawn_mixer(use_bias=True)
    torch.nn.init.ones_(mixer.in_proj.bias)
    return mixer


test_refused_mixers = every_refusal(REFUSED)
