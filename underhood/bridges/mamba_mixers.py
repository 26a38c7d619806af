"""The MambaMixer of transformers, made of a MambaBlock; and its float32 casts, switched off.

In a float64 model the mixer still turns five things into float32: A_log, D, dt_proj.bias, and for
what is written to the state B and u. So it differs from the block, by up to 1e-7 with random
weights. `keep_float64` lets `.float()` leave float64 tensors as they are; then the two agree to
rounding.

In the whole MambaForCausalLM a block computes x + mixer(norm(x)). The RMSNorm divides x by its
length, so attention of x itself cannot be put there; attention of norm(x) can, and the x that is
added must be subtracted by whoever reads.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from underhood.bridges.mamba_names import block_to_mixer
from underhood.common.errors import BadInput
from underhood.layers import MambaBlock


# Any: a transformers MambaMixer, which may not be installed.
def mixer_with(block: MambaBlock) -> Any:  # Any: see above
    """Return a MambaMixer with the weights of a block, ready to evaluate."""
    try:
        from transformers import MambaConfig
        from transformers.models.mamba.modeling_mamba import MambaMixer
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "transformers":
            raise
        raise BadInput(
            "A MambaBlock becomes a MambaMixer of transformers: pip install 'underhood[torch]'."
        ) from None
    from underhood.bridges.torch_layers import tensor_of

    entries = {name: tensor_of(a) for name, a in block_to_mixer(block, "hf.Mamba").items()}
    inner, state = block.A_log.shape
    config = MambaConfig(
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
    mixer = MambaMixer(config, layer_idx=0).to(entries["A_log"].dtype)
    mixer.load_state_dict(entries)
    return mixer.eval()


def is_mixer(module: Any) -> bool:  # Any: whatever the caller gave
    """Tell whether a module is a MambaMixer, without importing transformers."""
    kind = type(module)
    return kind.__name__ == "MambaMixer" and kind.__module__.startswith(
        "transformers.models.mamba."
    )


def check_mixer(mixer: Any) -> None:  # Any: a MambaMixer
    """Refuse a mixer whose state dict does not say all that it computes."""
    activation = getattr(mixer, "activation", "silu")
    if activation not in ("silu", "swish"):
        raise BadInput(f"from_torch: MambaBlock has SiLUs, and this mixer has {activation!r}.")


@contextmanager
def keep_float64() -> Iterator[None]:
    """Let Tensor.float() leave float64 tensors as they are, in all of PyTorch, in this block."""
    import torch

    cast = torch.Tensor.float

    # Any: the options that Tensor.float takes.
    def keep(tensor: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        if tensor.dtype == torch.float64:
            return tensor
        return cast(tensor, *arguments, **options)

    torch.Tensor.float = keep
    try:
        yield
    finally:
        torch.Tensor.float = cast
