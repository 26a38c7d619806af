"""Modules of transformers as layers of today: their weights under our names.

FalconH1Mixer                                           Mamba2
Qwen3NextGatedDeltaNet                                  GatedDeltaNet
KimiLinearDeltaAttention                                KDA
RecurrentGemmaRecurrentBlock                            RGLRU
xLSTMLayer                                              MLSTM
JambaMambaMixer                                         JambaBlock
MiniMaxLightningAttention                               Lightning

A module is known by the name of its class, so nothing is imported. What a layer of ours has no
place for is refused in one line.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from underhood.bridges.mamba_names import block_fields
from underhood.bridges.weight_files import NamedArrays, read_weights
from underhood.common.errors import BadInput
from underhood.layers import (
    KDA,
    MLSTM,
    RGLRU,
    GatedDeltaNet,
    JambaBlock,
    Layer,
    Lightning,
    Mamba2,
)


def is_modern(module: Any) -> bool:  # Any: whatever the caller gave
    """Tell whether a module is one of those above, without importing transformers."""
    kind = type(module)
    return kind.__module__.startswith("transformers.") and kind.__name__ in MODULE_READERS


def layer_of_modern(module: Any) -> Layer:  # Any: a module of transformers
    """Return the layer with the weights of a module."""
    return MODULE_READERS[type(module).__name__](module, read_weights(module.state_dict(), ""))


def refuse_unless(holds: bool, module: Any, reason: str) -> None:  # Any: the same
    if not holds:
        raise BadInput(f"from_torch: this {type(module).__name__} {reason}.")


def check_activation(module: Any, name: str = "silu") -> None:  # Any: the same
    refuse_unless(module.activation == name, module, f"has {module.activation!r}, not {name!r}")


def by_heads(rows: np.ndarray, heads: int) -> np.ndarray:
    """Return rows [heads·size, …] as [heads, size, …]."""
    return rows.reshape(heads, -1, *rows.shape[1:])


def kernel_of(channels: np.ndarray, heads: int) -> np.ndarray:
    """Return convolutions [heads·size, width] as [width, heads, size]."""
    return np.moveaxis(by_heads(channels, heads), -1, 0)


def readout_of(W_out: np.ndarray, heads: int) -> np.ndarray:
    """Return a readout [d, heads·size] as [d, heads, size]."""
    return W_out.reshape(len(W_out), heads, -1)


def read_falcon_h1(module: Any, arrays: NamedArrays) -> Mamba2:  # Any: by its name
    """Return the mixer; a group of B and C serves several heads."""
    check_activation(module)
    heads, size, state = module.num_heads, module.head_dim, module.ssm_state_size
    groups, inner, conv = module.n_groups, heads * size, arrays["conv1d.weight"][:, 0].T
    normed = "norm.weight" in arrays
    refuse_unless(groups == 1 or not normed, module, f"norms {groups} groups apart; use one group")
    refuse_unless(not module.use_bias, module, "has biases in its projections")
    # Falcon-H1 multiplies its inputs and what it projects by fixed numbers.
    rows = arrays["in_proj.weight"] * getattr(module, "ssm_in_multiplier", 1.0)
    if hasattr(module, "mup_vector"):
        rows = rows * module.mup_vector.detach().numpy().reshape(-1, 1)
    z, x, B, C, dt = np.split(rows, np.cumsum([inner, inner, groups * state, groups * state]))
    bias = arrays.get("conv1d.bias", np.zeros(conv.shape[1]))
    parts = np.cumsum([inner, groups * state])

    def shared(matrix: np.ndarray) -> np.ndarray:
        return np.repeat(by_heads(matrix, groups), heads // groups, axis=0)

    conv_x, conv_B, conv_C = np.split(conv.T, parts)
    b_x, b_B, b_C = np.split(bias, parts)
    return Mamba2(
        W_z=by_heads(z, heads),
        W_x=by_heads(x, heads),
        W_B=shared(B),
        W_C=shared(C),
        W_dt=dt,
        conv_x=kernel_of(conv_x, heads),
        conv_B=np.moveaxis(shared(conv_B), -1, 0),
        conv_C=np.moveaxis(shared(conv_C), -1, 0),
        b_x=by_heads(b_x, heads),
        b_B=shared(b_B),
        b_C=shared(b_C),
        dt_bias=arrays["dt_bias"],
        A_log=arrays["A_log"],
        D=arrays["D"],
        norm=by_heads(arrays["norm.weight"], heads) if normed else None,
        W_out=arrays["out_proj.weight"].reshape(-1, heads, size),
        eps=float(module.layer_norm_epsilon),
    )


def read_qwen3_next(module: Any, arrays: NamedArrays) -> GatedDeltaNet:  # Any: by its name
    """Return the mixer; a key head that serves several value heads is repeated."""
    check_activation(module)
    keys, values, d_k, d_v = (
        getattr(module, name) for name in ("num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim")
    )
    shared = values // keys
    rows = arrays["in_proj_qkvz.weight"].reshape(keys, 2 * d_k + 2 * shared * d_v, -1)
    q, k, v, z = np.split(rows, np.cumsum([d_k, d_k, shared * d_v]), axis=1)
    width = rows.shape[-1]
    b, a = np.split(arrays["in_proj_ba.weight"].reshape(keys, 2 * shared, width), 2, axis=1)
    conv_q, conv_k, conv_v = np.split(
        arrays["conv1d.weight"][:, 0], np.cumsum([keys * d_k, keys * d_k])
    )
    return GatedDeltaNet(
        W_q=np.repeat(q, shared, axis=0),
        W_k=np.repeat(k, shared, axis=0),
        W_v=v.reshape(values, d_v, width),
        W_b=b.reshape(values, width),
        conv_q=np.moveaxis(np.repeat(by_heads(conv_q, keys), shared, axis=0), -1, 0),
        conv_k=np.moveaxis(np.repeat(by_heads(conv_k, keys), shared, axis=0), -1, 0),
        conv_v=kernel_of(conv_v, values),
        norm=arrays["norm.weight"],
        W_out=arrays["out_proj.weight"].reshape(-1, values, d_v),
        eps=float(module.layer_norm_epsilon),
        W_a=a.reshape(values, width),
        A_log=arrays["A_log"],
        dt_bias=arrays["dt_bias"],
        W_z=z.reshape(values, d_v, width),
    )


def read_kimi(module: Any, arrays: NamedArrays) -> KDA:  # Any: a KimiLinearDeltaAttention
    check_activation(module)
    heads = module.num_heads
    parts = np.split(arrays["conv1d.weight"][:, 0], 3)
    conv_q, conv_k, conv_v = (kernel_of(part, heads) for part in parts)
    return KDA(
        W_q=by_heads(arrays["q_proj.weight"], heads),
        W_k=by_heads(arrays["k_proj.weight"], heads),
        W_v=by_heads(arrays["v_proj.weight"], heads),
        W_b=arrays["b_proj.weight"],
        conv_q=conv_q,
        conv_k=conv_k,
        conv_v=conv_v,
        norm=arrays["o_norm.weight"],
        W_out=readout_of(arrays["o_proj.weight"], heads),
        eps=float(module.layer_norm_epsilon),
        W_f1=arrays["forget_gate.f_a_proj.weight"],
        W_f2=by_heads(arrays["forget_gate.f_b_proj.weight"], heads),
        A_log=arrays["forget_gate.A_log"].reshape(heads),
        dt_bias=by_heads(arrays["forget_gate.dt_bias"], heads),
        W_g1=arrays["g_a_proj.weight"],
        W_g2=by_heads(arrays["g_b_proj.weight"], heads),
    )


def read_recurrent_gemma(module: Any, arrays: NamedArrays) -> RGLRU:  # Any: by its name
    """Return the block, whose positions begin at 0; its gates are block-diagonal."""
    name = getattr(module.act_fn, "__name__", type(module.act_fn).__name__)
    tanh = "tanh" in f"{name} {module.act_fn}".lower()
    refuse_unless(tanh, module, f"has the activation {name}, not gelu_pytorch_tanh")

    def square(blocks: np.ndarray) -> np.ndarray:
        whole = np.zeros((module.lru_width, module.lru_width), blocks.dtype)
        size = blocks.shape[1]
        for place, block in enumerate(blocks):
            here = slice(place * size, (place + 1) * size)
            whole[here, here] = block.T
        return whole

    return RGLRU(
        W_x=arrays["linear_x.weight"],
        b_x=arrays["linear_x.bias"],
        W_y=arrays["linear_y.weight"],
        b_y=arrays["linear_y.bias"],
        conv=arrays["conv_1d.weight"][:, 0].T,
        b_conv=arrays["conv_1d.bias"],
        W_i=square(arrays["rg_lru.input_gate_weight"]),
        b_i=arrays["rg_lru.input_gate_bias"].ravel(),
        W_r=square(arrays["rg_lru.recurrent_gate_weight"]),
        b_r=arrays["rg_lru.recurrent_gate_bias"].ravel(),
        Lambda=arrays["rg_lru.recurrent_param"],
        W_out=arrays["linear_out.weight"],
        b_out=arrays["linear_out.bias"],
    )


def read_xlstm(module: Any, arrays: NamedArrays) -> MLSTM:  # Any: an xLSTMLayer
    config = module.config
    single = config.weight_mode == "single" and not config.use_bias
    refuse_unless(single, module, "has fused weights or biases; use weight_mode='single'")
    heads = config.num_heads
    return MLSTM(
        W_q=by_heads(arrays["q.weight"], heads),
        W_k=by_heads(arrays["k.weight"], heads),
        W_v=by_heads(arrays["v.weight"], heads),
        W_i=arrays["igate_preact.weight"],
        b_i=arrays["igate_preact.bias"],
        W_f=arrays["fgate_preact.weight"],
        b_f=arrays["fgate_preact.bias"],
        W_o=by_heads(arrays["ogate_preact.weight"], heads),
        norm=by_heads(arrays["multihead_norm.weight"], heads),
        W_out=readout_of(arrays["out_proj.weight"], heads),
        cap=config.gate_soft_cap,
        eps=float(config.norm_eps),
    )


def read_jamba(module: Any, arrays: NamedArrays) -> JambaBlock:  # Any: a JambaMambaMixer
    check_activation(module)
    refuse_unless(not module.use_bias, module, "has biases in its projections")
    fields = block_fields(arrays, module.time_step_rank, module.ssm_state_size)
    return JambaBlock(
        **fields,
        b_conv=arrays.get("conv1d.bias", np.zeros(len(fields["W_in_u"]))),
        norm_dt=arrays["dt_layernorm.weight"],
        norm_B=arrays["b_layernorm.weight"],
        norm_C=arrays["c_layernorm.weight"],
        eps=float(module.b_layernorm.variance_epsilon),
    )


def read_minimax(module: Any, arrays: NamedArrays) -> Lightning:  # Any: MiniMaxLightningAttention
    heads = module.num_attention_heads
    W_q, W_k, W_v = np.split(by_heads(arrays["qkv_proj.weight"], heads), 3, axis=1)
    return Lightning(
        W_q=W_q,
        W_k=W_k,
        W_v=W_v,
        W_z=by_heads(arrays["output_gate.weight"], heads),
        norm=by_heads(arrays["norm.weight"], heads),
        W_out=readout_of(arrays["out_proj.weight"], heads),
        index=module.layer_idx,
        depth=module.num_hidden_layers,
        eps=float(module.norm.variance_epsilon),
    )


MODULE_READERS: dict[str, Callable[[Any, NamedArrays], Layer]] = {  # Any: a module of transformers
    "FalconH1Mixer": read_falcon_h1,
    "Qwen3NextGatedDeltaNet": read_qwen3_next,
    "KimiLinearDeltaAttention": read_kimi,
    "RecurrentGemmaRecurrentBlock": read_recurrent_gemma,
    "xLSTMLayer": read_xlstm,
    "JambaMambaMixer": read_jamba,
    "MiniMaxLightningAttention": read_minimax,
}
