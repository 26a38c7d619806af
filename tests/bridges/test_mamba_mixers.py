"""MambaMixer objects of transformers against our MambaBlock, both ways, in float64."""

import jax
import jax.numpy as jnp
import layer_cases as cases
import numpy as np
import pytest
from bridge_cases import drawn, equal, layer_of, outputs_as_in_mixer
from refusals import refused
from teachers import attention

import underhood as uh

torch = pytest.importorskip("torch")
mamba = pytest.importorskip("transformers.models.mamba.modeling_mamba")
transformers = pytest.importorskip("transformers")

from underhood.bridges.mamba_mixers import keep_float64  # noqa: E402

pytestmark = pytest.mark.usefixtures("x64")

BATCH = np.random.default_rng(1).normal(size=(3, 12, 4))


def drawn_mixer(**options):
    sizes = {"hidden_size": 4, "state_size": 3, "time_step_rank": 2, "num_hidden_layers": 1}
    return drawn(mamba.MambaMixer, transformers.MambaConfig(**sizes, vocab_size=5, **options))


@pytest.mark.parametrize(
    "options", [{}, {"use_conv_bias": False}, {"conv_kernel": 2}, {"expand": 3}]
)
def test_a_mixer_is_the_block_with_its_weights(options: dict) -> None:
    mixer = drawn_mixer(**options)
    block = uh.from_torch(mixer)
    assert isinstance(block, uh.MambaBlock)
    ours = outputs_as_in_mixer(block, mixer, BATCH)
    # With its casts to float32 the mixer is as far away as float32 is.
    casting = cases.relative_error(mixer(torch.tensor(BATCH)).detach().numpy(), ours)
    assert 1e-9 < casting < 1e-5


def test_a_block_comes_back_from_its_mixer() -> None:
    block = layer_of("hf.Mamba")
    mixer = uh.to_torch(block)
    assert type(mixer) is mamba.MambaMixer
    assert equal(uh.from_torch(mixer), block)


@pytest.mark.parametrize("options", [{}, {"decay": np.array([0.3, 0.8, 1.0])}, {"d_v": 2}])
def test_compiled_attention_inside_a_mixer(options: dict) -> None:
    source = attention(3, **options)
    built = uh.compile(source, "mamba_block")
    module = uh.to_torch(built)
    assert type(module.rnn) is mamba.MambaMixer
    xs = torch.tensor(BATCH[..., :3])
    expected = jax.vmap(source)(jnp.asarray(BATCH[..., :3]))
    with keep_float64(), torch.no_grad():
        assert cases.relative_error(module(xs).numpy(), expected) < 1e-12
        assert cases.relative_error(module(xs[0]).numpy(), expected[0]) < 1e-12
    with torch.no_grad():
        assert cases.relative_error(module(xs).numpy(), expected) < 1e-5
    again = uh.from_state_dict(uh.to_state_dict(built, "hf.Mamba"), "hf.Mamba")
    assert cases.relative_error(jax.vmap(again)(jnp.asarray(BATCH[..., :3])), expected) < 1e-12
    assert equal(uh.from_torch(module), again)
    with refused("streams by the cache of transformers"):
        module.initial_state(3)


def test_a_mixer_inside_a_model(tmp_path) -> None:
    config = transformers.MambaConfig(
        hidden_size=4, state_size=3, time_step_rank=2, num_hidden_layers=2, vocab_size=7
    )
    model = transformers.MambaForCausalLM(config)
    model.save_pretrained(tmp_path)
    block = uh.from_state_dict(
        tmp_path / "model.safetensors", "hf.Mamba", prefix="backbone.layers.1.mixer."
    )
    assert equal(block, uh.from_torch(model.backbone.layers[1].mixer))
    with refused("choose a mixer by prefix='backbone.layers.0.mixer.'"):
        uh.from_state_dict(tmp_path / "model.safetensors", "hf.Mamba")


def test_refused_mixers() -> None:
    biased = drawn_mixer(use_bias=True)
    torch.nn.init.ones_(biased.in_proj.bias)
    with refused("in_proj.bias … use_bias=True"):
        uh.from_torch(biased)
    with refused("SiLUs … 'gelu'"):
        uh.from_torch(drawn_mixer(hidden_act="gelu"))
