"""MambaMixer and Mamba2Mixer of transformers, and their float32 casts, switched off.

In a float64 model a MambaMixer still turns five things into float32: A_log, D, dt_proj.bias, and
for what is written to the state B and u. A Mamba2Mixer casts all that enters its scan and its norm.
So they differ from our layers, by up to 1e-6 with random weights. `keep_float64` leaves float64
tensors as they are; then the two agree to rounding.

In a whole model a block computes x + mixer(norm(x)). The RMSNorm divides x by its length, so
attention of x itself cannot be put there exactly. docs/bridges.md has the limit.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from underhood.bridges.mamba2_names import mamba2_from_mixer, mamba2_to_mixer
from underhood.bridges.mamba_names import MixerLayer, block_from_mixer, block_to_mixer
from underhood.bridges.weight_files import read_weights
from underhood.common.errors import BadInput
from underhood.layers import Mamba2, MambaBlock


# Any: a mixer of transformers, which may not be installed.
def mixer_with(layer: MixerLayer) -> Any:  # Any: see above
    """Return a MambaMixer or a Mamba2Mixer with the weights of a layer, ready to evaluate."""
    try:
        import transformers
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "transformers":
            raise
        raise BadInput(
            f"A {type(layer).__name__} becomes a mixer of transformers: "
            "pip install 'underhood[torch]'."
        ) from None
    from underhood.bridges.torch_layers import tensor_of

    if isinstance(layer, Mamba2):
        arrays = mamba2_to_mixer(layer, "hf.Mamba2")
        mixer = empty_mamba2_mixer(layer, transformers)
    else:
        arrays = block_to_mixer(layer, "hf.Mamba")
        mixer = empty_mamba_mixer(layer, transformers)
    entries = {name: tensor_of(array) for name, array in arrays.items()}
    mixer = mixer.to(entries["A_log"].dtype)
    mixer.load_state_dict(entries)
    return mixer.eval()


def empty_mamba_mixer(block: MambaBlock, transformers: Any) -> Any:  # Any: the module, a mixer
    """Return a MambaMixer of the sizes of a block."""
    from transformers.models.mamba.modeling_mamba import MambaMixer

    inner, state = block.A_log.shape
    config = transformers.MambaConfig(
        hidden_size=block.d_in,
        state_size=state,
        conv_kernel=block.conv.shape[0],
        time_step_rank=block.W_dt.shape[1],
        num_hidden_layers=1,
        vocab_size=1,
        use_bias=False,
        use_conv_bias=True,
        hidden_act="silu",
    )
    # expand is a whole number, and a block may have any number of channels.
    config.intermediate_size = inner
    return MambaMixer(config, layer_idx=0)


def empty_mamba2_mixer(layer: Mamba2, transformers: Any) -> Any:  # Any: the module, a mixer
    """Return a Mamba2Mixer of the sizes of a layer."""
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    inner = layer.heads * layer.d_v
    if inner % layer.d_in:
        raise BadInput(
            f"to_torch: a Mamba2Mixer has a whole multiple of its {layer.d_in} inputs as channels, "
            f"and this Mamba2 has {inner}; put it into a Stack, which is padded, or add heads."
        )
    config = transformers.Mamba2Config(
        hidden_size=layer.d_in,
        expand=inner // layer.d_in,
        num_heads=layer.heads,
        head_dim=layer.d_v,
        state_size=layer.d_k,
        n_groups=layer.norm_groups,
        conv_kernel=layer.conv_x.shape[0],
        layer_norm_epsilon=layer.eps,
        num_hidden_layers=1,
        # Larger than the numbers of special tokens, which nobody reads.
        vocab_size=8,
        use_bias=False,
        use_conv_bias=True,
        hidden_act="silu",
    )
    mixer = Mamba2Mixer(config, layer_idx=0)
    if norm_groups_of(mixer) != layer.norm_groups:
        raise BadInput(
            "to_torch: this transformers norms all heads together, and this Mamba2 has "
            f"norm_groups={layer.norm_groups}; install transformers 5.23 or newer."
        )
    return mixer


def norm_groups_of(mixer: Any) -> int:  # Any: a Mamba2Mixer
    """Return how many groups of channels are normed by themselves; one in older transformers."""
    size = getattr(mixer.norm, "group_size", None)
    return 1 if size is None else int(mixer.intermediate_size) // int(size)


def is_mixer(module: Any) -> bool:  # Any: whatever the caller gave
    """Tell whether a module is a MambaMixer or a Mamba2Mixer, without importing transformers."""
    kind = type(module)
    return (kind.__module__, kind.__name__) in (
        ("transformers.models.mamba.modeling_mamba", "MambaMixer"),
        ("transformers.models.mamba2.modeling_mamba2", "Mamba2Mixer"),
    )


def layer_of_mixer(mixer: Any) -> MixerLayer:  # Any: a MambaMixer or a Mamba2Mixer
    """Return the layer with the weights of a mixer; refuse what a layer here cannot do."""
    second = type(mixer).__name__ == "Mamba2Mixer"
    kind = "Mamba2" if second else "MambaBlock"
    activation = getattr(mixer, "activation", "silu")
    if activation not in ("silu", "swish"):
        raise BadInput(f"from_torch: {kind} has SiLUs, and this mixer has {activation!r}.")
    arrays = read_weights(mixer.state_dict(), "")
    if not second:
        return block_from_mixer(arrays, "hf.Mamba")
    limits = tuple(mixer.time_step_limit)
    if limits != (0.0, math.inf):
        raise BadInput(f"from_torch: Mamba2 does not limit Δ, and this mixer does, to {limits}.")
    groups, eps = int(mixer.n_groups), float(mixer.norm.variance_epsilon)
    return mamba2_from_mixer(arrays, "hf.Mamba2", groups, eps, norm_groups_of(mixer))


@contextmanager
def keep_float64() -> Iterator[None]:
    """Let no cast to float32 change a float64 tensor in this block: `.float()` and `.to(...)`."""
    import torch
    from torch.overrides import TorchFunctionMode

    class Keep(TorchFunctionMode):
        # Any: whatever PyTorch calls, with its arguments.
        def __torch_function__(
            self,
            function: Any,  # Any: see above
            types: Any,  # Any: see above
            arguments: tuple[Any, ...] = (),  # Any: see above
            options: dict[str, Any] | None = None,  # Any: see above
        ) -> Any:  # Any: see above
            options = options or {}
            wanted = (*arguments[1:], options.get("dtype"))
            casts = function is torch.Tensor.float or (
                function is torch.Tensor.to and any(kind is torch.float32 for kind in wanted)
            )
            if casts and arguments[0].dtype == torch.float64:
                return arguments[0]
            return function(*arguments, **options)

    with Keep():
        yield
