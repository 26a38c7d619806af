"""Layers of today in the classes of transformers: modules with the weights of a layer of ours.

`module_of` returns the module, how it is called on [batch, time, d], and a cache to decode with.
A module has as many outputs as inputs, so W_out gets zero rows where a layer has fewer outputs.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import torch
import transformers
from torch.overrides import TorchFunctionMode
from transformers.models.falcon_h1 import modeling_falcon_h1 as falcon_h1
from transformers.models.jamba import modeling_jamba as jamba
from transformers.models.kimi_linear import modeling_kimi_linear as kimi
from transformers.models.mamba import modeling_mamba as mamba
from transformers.models.mamba2 import modeling_mamba2 as mamba2
from transformers.models.minimax import modeling_minimax as minimax
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next
from transformers.models.recurrent_gemma import modeling_recurrent_gemma as gemma
from transformers.models.xlstm import modeling_xlstm as xlstm

import underhood as uh


class Widened(TorchFunctionMode):
    """Reroute every cast to float32 to float64, so that formulas are told apart from rounding."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        def wide(value):
            return torch.float64 if value is torch.float32 else value

        if func is torch.Tensor.float:
            return args[0].double()
        named = {name: wide(value) for name, value in (kwargs or {}).items()}
        return func(*map(wide, args), **named)


@dataclasses.dataclass
class Foreign:
    """A module; `whole` runs a batch, and `decode` runs a start and then token by token."""

    module: torch.nn.Module
    whole: Callable
    decode: Callable


def squared(layer):
    """The layer with zero rows in W_out, so that it has as many outputs as inputs."""
    missing = layer.d_in - layer.d_out
    rows = np.asarray(layer.W_out)
    more = {"W_out": np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)])}
    if isinstance(layer, uh.RGLRU):
        more["b_out"] = np.pad(np.asarray(layer.b_out), (0, missing))
    return dataclasses.replace(layer, **more)


def flat(array):
    """[heads, rows, …] as [heads·rows, …]."""
    array = np.asarray(array)
    return array.reshape(-1, *array.shape[2:])


def kernels(*parts):
    """Convolutions [width, heads, rows] of several signals as PyTorch's [channels, 1, width]."""
    channels = [np.asarray(part).reshape(len(part), -1).T for part in parts]
    return np.concatenate(channels)[:, None]


def read_out(layer):
    return np.asarray(layer.W_out).reshape(layer.d_out, -1)


def loaded(module, arrays, dtype):
    """The module with these arrays, in evaluation mode."""
    tensors = {name: torch.tensor(np.array(array)) for name, array in arrays.items()}
    module = module.to(dtype)
    module.load_state_dict(tensors)
    return module.eval()


def with_cache(module, config):
    """Calls that pass cache_params; most mixers of transformers are alike here."""

    def decode(xs, start):
        cache = transformers.DynamicCache(config=config)
        outputs = [module(xs[:, :start], cache_params=cache)]
        for t in range(start, xs.shape[1]):
            outputs.append(module(xs[:, t : t + 1], cache_params=cache))
        return torch.cat(outputs, dim=1)

    return Foreign(module, module, decode)


def with_values(layer, size):
    """A Mamba-2 with zero value rows, so that each head has `size`."""

    def padded(field, axis):
        array = np.asarray(getattr(layer, field))
        return np.pad(array, [(0, (size - layer.d_v) * (n == axis)) for n in range(array.ndim)])

    axes = {"W_z": 1, "W_x": 1, "conv_x": 2, "b_x": 1, "norm": 1, "W_out": 2}
    return dataclasses.replace(layer, **{name: padded(name, axis) for name, axis in axes.items()})


def mamba2_module(layer, dtype):
    if layer.norm is not None and layer.heads * layer.d_v % layer.d_in:
        # expand, the ratio of the two, must be a whole number.
        assert layer.heads == 1
        layer = with_values(layer, layer.d_in)
    heads, d_k, d_v, width = layer.heads, layer.d_k, layer.d_v, len(layer.conv_x)
    # Heads have B and C of their own, unless all are the same.
    alike = all(np.array_equal(W[0], W[h]) for W in (layer.W_B, layer.W_C) for h in range(heads))
    groups = 1 if alike else heads
    of_groups = slice(0, 1) if alike else slice(None)
    arrays = {
        "in_proj.weight": np.concatenate(
            [
                flat(layer.W_z),
                flat(layer.W_x),
                flat(layer.W_B[of_groups]),
                flat(layer.W_C[of_groups]),
                layer.W_dt,
            ]
        ),
        "conv1d.weight": kernels(
            layer.conv_x, layer.conv_B[:, of_groups], layer.conv_C[:, of_groups]
        ),
        "conv1d.bias": np.concatenate(
            [flat(layer.b_x), flat(layer.b_B[of_groups]), flat(layer.b_C[of_groups])]
        ),
        "dt_bias": layer.dt_bias,
        "A_log": layer.A_log,
        "D": layer.D,
        "out_proj.weight": read_out(layer),
    }
    shared = {"hidden_size": layer.d_in, "num_hidden_layers": 1, "vocab_size": 5}
    if layer.norm is None:
        config = transformers.FalconH1Config(
            **shared,
            mamba_d_ssm=heads * d_v,
            mamba_n_heads=heads,
            mamba_d_head=d_v,
            mamba_n_groups=groups,
            mamba_d_state=d_k,
            mamba_d_conv=width,
            mamba_rms_norm=False,
            num_attention_heads=1,
            num_key_value_heads=1,
        )
        module = falcon_h1.FalconH1Mixer(config, 0)
        # Only the model registers this buffer.
        module.register_buffer("mup_vector", falcon_h1.compute_mup_vector(config), persistent=False)
    else:
        arrays["norm.weight"] = flat(layer.norm)
        config = transformers.Mamba2Config(
            **shared,
            num_heads=heads,
            head_dim=d_v,
            state_size=d_k,
            n_groups=groups,
            conv_kernel=width,
            expand=heads * d_v // layer.d_in,
            layer_norm_epsilon=layer.eps,
        )
        module = mamba2.Mamba2Mixer(config, 0)
    return with_cache(loaded(module, arrays, dtype), config)


def delta_module(layer, dtype):
    heads = layer.heads
    rows = (layer.W_q, layer.W_k, layer.W_v, layer.W_z)
    config = transformers.Qwen3NextConfig(
        hidden_size=layer.d_in,
        linear_num_key_heads=heads,
        linear_num_value_heads=heads,
        linear_key_head_dim=layer.d_k,
        linear_value_head_dim=layer.d_v,
        linear_conv_kernel_dim=len(layer.conv_k),
        rms_norm_eps=layer.eps,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
    )
    arrays = {
        "in_proj_qkvz.weight": flat(np.concatenate([np.asarray(W) for W in rows], axis=1)),
        "in_proj_ba.weight": flat(np.stack([layer.W_b, layer.W_a], axis=1)),
        "conv1d.weight": kernels(layer.conv_q, layer.conv_k, layer.conv_v),
        "dt_bias": layer.dt_bias,
        "A_log": layer.A_log,
        "norm.weight": layer.norm,
        "out_proj.weight": read_out(layer),
    }
    module = loaded(qwen3_next.Qwen3NextGatedDeltaNet(config, 0), arrays, dtype)
    return with_cache(module, config)


def kda_module(layer, dtype):
    size = layer.d_v
    assert layer.d_k == size

    def ranked(W, axis):
        short = [(0, size - n if place == axis else 0) for place, n in enumerate(W.shape)]
        return np.pad(np.asarray(W), short)

    config = transformers.KimiLinearConfig(
        hidden_size=layer.d_in,
        linear_num_heads=layer.heads,
        linear_head_dim=size,
        linear_conv_kernel_dim=len(layer.conv_k),
        rms_norm_eps=layer.eps,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
    )
    arrays = {
        "q_proj.weight": flat(layer.W_q),
        "k_proj.weight": flat(layer.W_k),
        "v_proj.weight": flat(layer.W_v),
        "b_proj.weight": layer.W_b,
        "conv1d.weight": kernels(layer.conv_q, layer.conv_k, layer.conv_v),
        "forget_gate.f_a_proj.weight": ranked(layer.W_f1, 0),
        "forget_gate.f_b_proj.weight": flat(ranked(layer.W_f2, 2)),
        "forget_gate.dt_bias": flat(layer.dt_bias),
        "forget_gate.A_log": np.asarray(layer.A_log)[None, None, :, None],
        "g_a_proj.weight": ranked(layer.W_g1, 0),
        "g_b_proj.weight": flat(ranked(layer.W_g2, 2)),
        "o_norm.weight": layer.norm,
        "o_proj.weight": read_out(layer),
    }
    module = loaded(kimi.KimiLinearDeltaAttention(config, 0), arrays, dtype)
    return with_cache(module, config)


def block_arrays(layer):
    """The weights that Mamba's block and Jamba's have in common."""
    return {
        "in_proj.weight": np.concatenate([layer.W_in_u, layer.W_in_z]),
        "conv1d.weight": np.asarray(layer.conv).T[:, None],
        "conv1d.bias": layer.b_conv,
        "x_proj.weight": np.concatenate([layer.W_x_dt, layer.W_x_B, layer.W_x_C]),
        "dt_proj.weight": layer.W_dt,
        "dt_proj.bias": layer.b_dt,
        "A_log": layer.A_log,
        "D": layer.D,
        "out_proj.weight": layer.W_out,
    }


def mamba_module(layer, dtype):
    inner, state = layer.A_log.shape
    config = transformers.MambaConfig(
        hidden_size=layer.d_in,
        state_size=state,
        conv_kernel=len(layer.conv),
        expand=inner // layer.d_in,
        time_step_rank=layer.W_dt.shape[1],
        num_hidden_layers=1,
        vocab_size=5,
    )
    return with_cache(loaded(mamba.MambaMixer(config, 0), block_arrays(layer), dtype), config)


def jamba_module(layer, dtype):
    inner, state = layer.A_log.shape
    config = transformers.JambaConfig(
        hidden_size=layer.d_in,
        mamba_d_state=state,
        mamba_d_conv=len(layer.conv),
        mamba_expand=inner // layer.d_in,
        mamba_dt_rank=layer.W_dt.shape[1],
        rms_norm_eps=layer.eps,
        num_hidden_layers=1,
        attn_layer_period=2,
        attn_layer_offset=1,
    )
    norms = {
        "dt_layernorm.weight": layer.norm_dt,
        "b_layernorm.weight": layer.norm_B,
        "c_layernorm.weight": layer.norm_C,
    }
    arrays = block_arrays(layer) | norms
    return with_cache(loaded(jamba.JambaMambaMixer(config, 0), arrays, dtype), config)


def gemma_module(layer, dtype, first=0):
    """first  the position of the first token; RecurrentGemma writes position 0 whole."""
    inner = layer.neurons
    config = transformers.RecurrentGemmaConfig(
        hidden_size=layer.d_in,
        lru_width=inner,
        num_attention_heads=1,
        num_key_value_heads=1,
        conv1d_width=len(layer.conv),
        num_hidden_layers=1,
        vocab_size=5,
        intermediate_size=4,
    )
    arrays = {
        "linear_x.weight": layer.W_x,
        "linear_x.bias": layer.b_x,
        "linear_y.weight": layer.W_y,
        "linear_y.bias": layer.b_y,
        "conv_1d.weight": np.asarray(layer.conv).T[:, None],
        "conv_1d.bias": layer.b_conv,
        "rg_lru.input_gate_weight": np.asarray(layer.W_i).T[None],
        "rg_lru.input_gate_bias": np.asarray(layer.b_i)[None],
        "rg_lru.recurrent_gate_weight": np.asarray(layer.W_r).T[None],
        "rg_lru.recurrent_gate_bias": np.asarray(layer.b_r)[None],
        "rg_lru.recurrent_param": layer.Lambda,
        "linear_out.weight": layer.W_out,
        "linear_out.bias": layer.b_out,
    }
    module = loaded(gemma.RecurrentGemmaRecurrentBlock(config, 0), arrays, dtype)

    def run(xs, start=0, use_cache=False):
        positions = torch.arange(start + first, start + first + xs.shape[1])
        batch = positions.expand(len(xs), -1)
        return module(xs, batch, None, use_cache=use_cache)[0]

    def decode(xs, start):
        module.conv1d_state = None
        outputs = [run(xs[:, :start], use_cache=True)]
        outputs += [run(xs[:, t : t + 1], t, use_cache=True) for t in range(start, xs.shape[1])]
        return torch.cat(outputs, dim=1)

    return Foreign(module, run, decode)


def divided_as_pytorch_rounds(layer):
    """The layer with a readout for PyTorch's √(1 − exp(2 log a)), which cancels for a near 1."""
    Lambda = torch.tensor(np.asarray(layer.Lambda))
    log_a = -8.0 * torch.sigmoid(torch.zeros_like(Lambda)) * torch.nn.functional.softplus(Lambda)
    theirs = torch.sqrt(1 - torch.exp(2 * log_a)).numpy()
    ours = np.sqrt(-np.expm1(2 * log_a.numpy().astype(float)))
    return dataclasses.replace(layer, W_out=(layer.W_out * (ours / theirs)).astype(theirs.dtype))


def mlstm_module(layer, dtype):
    heads, hidden = layer.heads, layer.d_in
    config = transformers.xLSTMConfig(
        hidden_size=hidden,
        num_heads=heads,
        num_hidden_layers=1,
        num_blocks=1,
        # int(hidden·factor) must not fall short.
        qk_dim_factor=math.nextafter(heads * layer.d_k / hidden, math.inf),
        v_dim_factor=math.nextafter(heads * layer.d_v / hidden, math.inf),
        gate_soft_cap=layer.cap,
        norm_eps=layer.eps,
        autocast_kernel_dtype="float32",
        chunk_size=16,
        vocab_size=5,
    )
    arrays = {
        "q.weight": flat(layer.W_q),
        "k.weight": flat(layer.W_k),
        "v.weight": flat(layer.W_v),
        "igate_preact.weight": layer.W_i,
        "igate_preact.bias": layer.b_i,
        "fgate_preact.weight": layer.W_f,
        "fgate_preact.bias": layer.b_f,
        "ogate_preact.weight": flat(layer.W_o),
        "multihead_norm.weight": flat(layer.norm),
        "out_proj.weight": read_out(layer),
    }
    module = loaded(xlstm.xLSTMLayer(config), arrays, dtype)

    def decode(xs, start):
        y, state = module(xs[:, :start])
        outputs = [y]
        for t in range(start, xs.shape[1]):
            y, state = module(xs[:, t : t + 1], state)
            outputs.append(y)
        return torch.cat(outputs, dim=1)

    return Foreign(module, lambda xs: module(xs)[0], decode)


def lightning_module(layer, dtype):
    size = layer.d_v
    assert layer.d_k == size
    config = transformers.MiniMaxConfig(
        hidden_size=layer.d_in,
        num_attention_heads=layer.heads,
        num_key_value_heads=layer.heads,
        head_dim=size,
        num_hidden_layers=layer.depth,
        layer_types=["linear_attention"] * layer.depth,
        block_size=8,
        hidden_act="silu",
        vocab_size=5,
    )
    rows = [np.asarray(W) for W in (layer.W_q, layer.W_k, layer.W_v)]
    with torch.no_grad():
        # Its decays are made in the default precision.
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        module = minimax.MiniMaxLightningAttention(config, layer.index)
        torch.set_default_dtype(before)
    arrays = {
        "qkv_proj.weight": flat(np.concatenate(rows, axis=1)),
        "output_gate.weight": flat(layer.W_z),
        "norm.weight": flat(layer.norm),
        "out_proj.weight": read_out(layer),
    }
    buffers = {name: buffer.numpy() for name, buffer in module.named_buffers()}
    module = loaded(module, arrays | buffers, dtype)

    def decode(xs, start):
        cache = minimax.MiniMaxCache()
        parts = [xs[:, :start], *(xs[:, t : t + 1] for t in range(start, xs.shape[1]))]
        outputs = [module(part, None, None, past_key_values=cache)[0] for part in parts]
        return torch.cat(outputs, dim=1)

    return Foreign(module, lambda xs: module(xs, None, None)[0], decode)


MODULES = {
    uh.MambaBlock: mamba_module,
    uh.Mamba2: mamba2_module,
    uh.GatedDeltaNet: delta_module,
    uh.KDA: kda_module,
    uh.JambaBlock: jamba_module,
    uh.RGLRU: gemma_module,
    uh.MLSTM: mlstm_module,
    uh.Lightning: lightning_module,
}


def module_of(layer, dtype=torch.float64, **options):
    return MODULES[type(layer)](layer, dtype, **options)
