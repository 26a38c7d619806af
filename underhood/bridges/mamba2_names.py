"""State dicts of the Mamba2Mixer of transformers, as a Mamba2.

With inner = heads·d_v channels, G groups of heads that share B and C, and `state` = d_k:

in_proj.weight  [2·inner + 2·G·state + heads, d]   W_z, W_x, W_B, W_C, W_dt, one under the other
conv1d.weight   [inner + 2·G·state, 1, width]      conv_x, conv_B, conv_C; conv1d.bias is b_x, b_B,
                                                   b_C
dt_bias, A_log, D [heads]                          the same
norm.weight     [inner]                            norm; each group is normed by itself
out_proj.weight [d, inner]                         W_out

Shapes tell G·state but not G, so the caller gives G. Heads of a group get equal W_B and W_C here.
What a state dict does not say is as transformers has it by default: SiLU, eps = 1e-5, no limits on
Δ. A_log = −inf, a decay of exactly 1, is written as −800, which gives the same decay.
"""

import numpy as np

from underhood.bridges.entries import check_shapes, in_memory_order
from underhood.bridges.mamba_names import check_entries, refuse_model_names
from underhood.bridges.weight_files import NamedArrays
from underhood.common.errors import BadInput
from underhood.common.numbers import whole_problems
from underhood.layers import Mamba2

MAMBA2_ENTRIES = {
    "in_proj.weight": 2,
    "conv1d.weight": 3,
    "dt_bias": 1,
    "A_log": 1,
    "D": 1,
    "norm.weight": 1,
    "out_proj.weight": 2,
}
# exp of it is 0 in float32 and in float64, and it is finite.
LOG_ZERO = -800.0
# Fields of heads that must be equal inside a group.
SHARED = ("W_B", "W_C", "conv_B", "conv_C", "b_B", "b_C")


def mamba2_from_mixer(
    arrays: NamedArrays, about: str, groups: int = 1, eps: float = 1e-5, norm_groups: int = 0
) -> Mamba2:
    """Return the layer with the weights of a mixer.

    groups       of heads that share B and C, n_groups in transformers
    norm_groups  groups that are normed by themselves; as many as `groups` unless given
    """
    refuse_model_names(arrays, about)
    if "dt_proj.weight" in arrays or "x_proj.weight" in arrays:
        raise BadInput(f"{about}: dt_proj or x_proj is the first Mamba's; use kind='hf.Mamba'.")
    check_entries(arrays, MAMBA2_ENTRIES, "Mamba2", about)
    heads, inner = len(arrays["A_log"]), len(arrays["norm.weight"])
    channels, _, width = arrays["conv1d.weight"].shape
    state, rest = divmod(channels - inner, 2 * groups)
    if inner % heads or heads % groups or rest or state < 1:
        raise BadInput(
            f"{about}: {heads} heads, {inner} channels and {channels} convolutions do not make "
            f"{groups} groups; pass groups=, n_groups of the configuration."
        )
    # All but the input size is known, also if a matrix is transposed.
    rows, shape = inner + channels + heads, arrays["in_proj.weight"].shape
    d = shape[0] if shape[1] == rows != shape[0] else shape[1]
    expected: dict[str, tuple[int, ...]] = {
        "in_proj.weight": (rows, d),
        "conv1d.weight": (channels, 1, width),
        "dt_bias": (heads,),
        "D": (heads,),
        "out_proj.weight": (d, inner),
        "conv1d.bias": (channels,),
    }
    check_shapes(arrays, expected, about=about)
    d_v, places = inner // heads, np.cumsum([inner, inner, groups * state, groups * state])
    W_z, W_x, W_B, W_C, W_dt = np.split(arrays["in_proj.weight"], places)
    kernels = arrays["conv1d.weight"][:, 0].T
    conv = np.split(kernels, places[1:3] - inner, axis=1)
    b = np.split(arrays.get("conv1d.bias", np.zeros_like(kernels[0])), places[1:3] - inner)
    repeats = heads // groups

    def of_groups(part: np.ndarray, axis: int = 0) -> np.ndarray:
        """Return rows of groups as rows of heads: a group's, once for each of its heads."""
        split = part.reshape(*part.shape[:axis], groups, state, *part.shape[axis + 1 :])
        return np.repeat(split, repeats, axis=axis)

    fields = {
        "W_z": W_z.reshape(heads, d_v, d),
        "W_x": W_x.reshape(heads, d_v, d),
        "W_B": of_groups(W_B),
        "W_C": of_groups(W_C),
        "W_dt": W_dt,
        "conv_x": conv[0].reshape(width, heads, d_v),
        "conv_B": of_groups(conv[1], 1),
        "conv_C": of_groups(conv[2], 1),
        "b_x": b[0].reshape(heads, d_v),
        "b_B": of_groups(b[1]),
        "b_C": of_groups(b[2]),
        "dt_bias": arrays["dt_bias"],
        "A_log": arrays["A_log"],
        "D": arrays["D"],
        "norm": arrays["norm.weight"].reshape(heads, d_v),
        "W_out": arrays["out_proj.weight"].reshape(d, heads, d_v),
    }
    made = {name: in_memory_order(array) for name, array in fields.items()}
    return Mamba2(**made, eps=eps, norm_groups=norm_groups or groups)


def read_mamba2(arrays: NamedArrays, about: str, groups: int | None) -> Mamba2:
    """Return the layer of a state dict; without `groups` all heads share B and C."""
    problems = [] if groups is None else whole_problems(groups=groups)
    if problems:
        raise BadInput(f"{about}: {problems[0]}.")
    return mamba2_from_mixer(arrays, about, groups or 1)


def mamba2_to_mixer(layer: Mamba2, about: str) -> NamedArrays:
    """Return the entries of a mixer with as many groups as the layer has norms."""
    if layer.norm is None:
        raise BadInput(f"{about} norms what it read, and this Mamba2 has no norm (Falcon-H1).")
    if layer.d_in != layer.d_out:
        raise BadInput(
            f"{about} has as many outputs as inputs, and this Mamba2 has {layer.d_in} inputs and "
            f"{layer.d_out} outputs; put it into a Stack, which is padded."
        )
    parts = {name: np.asarray(getattr(layer, name)) for name in MAMBA2_FIELDS}
    if np.any(np.isposinf(parts["A_log"])):
        raise BadInput(f"{about}: A_log is +inf, a decay of 0, and the mixer would give NaN.")
    groups = layer.norm_groups
    shared = {name: one_per_group(name, parts[name], groups, about) for name in SHARED}
    d = layer.d_in

    def packed(*names: str) -> np.ndarray:
        arrays = [shared.get(name, parts[name]) for name in names]
        if names[0].startswith("conv"):
            return np.concatenate([array.reshape(len(array), -1) for array in arrays], axis=1)
        if names[0].startswith("b_"):
            return np.concatenate([array.ravel() for array in arrays])
        return np.concatenate([array.reshape(-1, d) for array in arrays])

    entries = {
        "in_proj.weight": packed("W_z", "W_x", "W_B", "W_C", "W_dt"),
        "conv1d.weight": packed("conv_x", "conv_B", "conv_C").T[:, None],
        "conv1d.bias": packed("b_x", "b_B", "b_C"),
        "dt_bias": parts["dt_bias"],
        "A_log": np.maximum(parts["A_log"], np.asarray(LOG_ZERO, parts["A_log"].dtype)),
        "D": parts["D"],
        "norm.weight": parts["norm"].ravel(),
        "out_proj.weight": parts["W_out"].reshape(d, -1),
    }
    return {name: in_memory_order(array) for name, array in entries.items()}


MAMBA2_FIELDS = (
    *("W_z", "W_x", "W_B", "W_C", "W_dt", "conv_x", "conv_B", "conv_C", "b_x", "b_B", "b_C"),
    *("dt_bias", "A_log", "D", "norm", "W_out"),
)


def one_per_group(name: str, part: np.ndarray, groups: int, about: str) -> np.ndarray:
    """Return what the heads of each group share, [groups, …] or [width, groups, …]."""
    axis = 1 if name.startswith("conv") else 0
    heads = part.shape[axis]
    split = part.reshape(*part.shape[:axis], groups, heads // groups, *part.shape[axis + 1 :])
    first = np.take(split, [0], axis=axis + 1)
    if not np.array_equal(np.broadcast_to(first, split.shape), split):
        raise BadInput(
            f"{about}: heads of a group share B and C, and {name} differs inside one of "
            f"{groups} groups; a Mamba2 with norm_groups={heads} has a group for each head."
        )
    return np.squeeze(first, axis=axis + 1)
