"""`from_torch` and `to_torch`: modules of PyTorch as layers, and layers as modules.

nn.LSTM, nn.GRU    LSTM, GRU with reset="after"; several layers are a Stack
nn.Linear          Affine
nn.Sequential      a Stack: a Linear or none, then LSTMs and GRUs, then a Linear or none. An nn.LSTM
                   passes on its outputs, not the tuple that it returns in PyTorch
MambaMixer         MambaBlock, which may stand in a stack; it needs transformers
Mamba2Mixer        Mamba2, likewise
others of today    `modern_modules.py`: gated DeltaNet, KDA, RG-LRU, mLSTM and others
others of ours     `torch_layers.py`: gated RNNs, side-gated RNNs, LRUs, and stacks of them

PyTorch is imported when one of the two is called.
"""

from collections.abc import Iterable
from types import ModuleType
from typing import Any

import equinox as eqx
import numpy as np

from underhood.bridges.mamba_mixers import is_mixer, layer_of_mixer, mixer_with
from underhood.bridges.mamba_names import MixerLayer, is_mixer_stack, mixer_of, squared
from underhood.bridges.modern_modules import is_modern, layer_of_modern
from underhood.bridges.state_dicts import Imported, from_state_dict, to_state_dict
from underhood.bridges.weight_files import read_weights
from underhood.common.decay import decay_from_nu
from underhood.common.errors import BadInput, kind_of
from underhood.layers import GRU, LSTM, Affine, GatedRNN, Layer, SideGatedRNN, Stack

# What is put into a Sequential and changes nothing outside training.
SKIPPED = ("Identity", "Dropout")


def import_torch() -> ModuleType:
    """Return the module of our modules, or refuse in one line if PyTorch is missing."""
    try:
        from underhood.bridges import torch_layers
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "torch":
            raise
        raise BadInput(
            "from_torch and to_torch need PyTorch: pip install 'underhood[torch]'; "
            "from_state_dict and to_state_dict do without it."
        ) from None
    return torch_layers


def from_torch(module: Any) -> Imported:  # Any: a torch.nn.Module, which may not be installed
    """Return the layer with the weights of a PyTorch module, as NumPy arrays.

    module  nn.LSTM, nn.GRU, nn.Linear, nn.Sequential of them, a MambaMixer, a Mamba2Mixer or
            another mixer of transformers (`modern_modules.py`), or what `to_torch` made

    Layers take one sequence [time, d]. Dropout counts as it does outside training: not at all.
    """
    ours = import_torch()
    from torch import nn

    if isinstance(module, ours.TorchStack):
        layers = layers_of(from_torch(module.rnn))
        # Only a network that needs float64 has such a readout.
        needs_x64 = isinstance(module.readout, ours.SummedByParts)
        ends = affine_of(module.embed), affine_of(module.readout)
        return Stack(ends[0], layers, ends[1], needs_x64=needs_x64)
    if is_mixer(module):
        return layer_of_mixer(module)
    if is_modern(module):
        return layer_of_modern(module)
    if isinstance(module, ours.RecurrentModule):
        return layer_of_module(module)
    if isinstance(module, nn.Sequential):
        return stack_of([part for part in module if type(part).__name__ not in SKIPPED])
    for kind in ("LSTM", "GRU", "RNN", "Linear"):
        if isinstance(module, getattr(nn, kind)):
            return from_state_dict(module.state_dict(), f"torch.{kind}")
    if "quantized" in type(module).__module__:
        raise BadInput(
            f"from_torch: this {type(module).__name__} is quantised; give the module before it was."
        )
    raise BadInput(
        "from_torch takes an nn.LSTM, an nn.GRU, an nn.Linear or an nn.Sequential of them, or a "
        f"mixer of transformers, not {kind_of(module)}; give the part of your module that "
        "is one, or use from_state_dict(module.state_dict(), kind='torch.LSTM', prefix='rnn.')."
    )


def own_values(module: Any, xs: Any) -> dict[str, Any]:  # Any: an nn.Module, tokens, arrays
    """Return what a module itself computes on one sequence, under the names of `trace`."""
    import_torch()
    from underhood.bridges import torch_values

    return dict(torch_values.observe_module(module, xs))


def layers_of(part: Imported) -> tuple[Layer, ...]:
    """Return the recurrent layers of what was read."""
    if isinstance(part, Stack) and part.embed is None and part.readout is None:
        return part.layers
    assert isinstance(part, Layer)
    return (part,)


def affine_of(module: Any) -> Affine | None:  # Any: an nn.Linear or None
    """Return the embedding or the readout of a stack."""
    affine = None if module is None else from_torch(module)
    assert isinstance(affine, Affine | None)
    return affine


def stack_of(modules: list[Any]) -> Imported:  # Any: torch modules
    """Return the layers of a Sequential as one Stack."""
    if not modules:
        raise BadInput("from_torch: this nn.Sequential is empty.")
    parts = [from_torch(module) for module in modules]
    if len(parts) == 1:
        return parts[0]
    embed = parts[0] if isinstance(parts[0], Affine) else None
    readout = parts[-1] if isinstance(parts[-1], Affine) else None
    parts = parts[embed is not None : len(parts) - (readout is not None)]
    if not parts or any(isinstance(part, Affine) for part in parts):
        raise BadInput(
            "from_torch: an nn.Sequential may have one Linear before its LSTMs and GRUs and one "
            "after them; multiply Linears that follow each other into one."
        )
    return Stack(embed, [layer for part in parts for layer in layers_of(part)], readout)


def layer_of_module(module: Any) -> Layer:  # Any: a RecurrentModule
    """Return the layer that a module of ours was made of, with its present weights."""
    arrays: dict[str, Any] = dict(read_weights(module.state_dict(), ""))
    if module.kind not in (GatedRNN, SideGatedRNN):
        activation = getattr(module, "activation", None)
        return module.kind(**arrays, **({"activation": activation} if activation else {}))
    # These two take λ and store ν; ν itself is kept to the last bit.
    nu = arrays.pop("nu")
    layer = module.kind(**arrays, decay=np.asarray(decay_from_nu(nu)))
    return eqx.tree_at(lambda layer: layer.nu, layer, nu)


def to_torch(what: Any) -> Any:  # Any: a layer or what has a .layer; a torch.nn.Module
    """Return a PyTorch module that computes the same function.

    what  a construction; an LSTM, GRU, GatedRNN, SideGatedRNN or LRU; a Stack of them; an Affine;
          a MambaBlock or a Mamba2, alone or in a Stack

    LSTM, GRU and Affine become nn.LSTM, nn.GRU (batch_first=True) and nn.Linear. A MambaBlock
    becomes a MambaMixer of transformers, and a Mamba2 a Mamba2Mixer. The others become modules with
    `forward(xs)` over [time, d] or [batch, time, d] and `step(state, x)`. Weights keep their
    precision, and a network that was built for float64 needs it in PyTorch too.
    """
    ours = import_torch()
    layer = getattr(what, "layer", what)
    if isinstance(layer, MixerLayer):
        return mixer_with(layer)
    if is_mixer_stack(layer):
        layer = squared(layer)
        ends = [None if end is None else to_torch(end) for end in (layer.embed, layer.readout)]
        return ours.TorchStack(ends[0], mixer_with(mixer_of(layer)), ends[1])
    if isinstance(layer, Stack):
        ends = [None if end is None else to_torch(end) for end in (layer.embed, layer.readout)]
        kinds = {type(part) for part in layer.layers}
        if kinds not in ({LSTM}, {GRU}):
            chain = ours.TorchChain(*(module_of(part, ours) for part in layer.layers))
            return ours.TorchStack(ends[0], chain, ends[1])
        kind = f"torch.{kinds.pop().__name__}"
        arrays = to_state_dict(layer, kind)
        rnn = {name.removeprefix("rnn."): array for name, array in arrays.items()}
        if "readout.weight" in arrays:
            # Padded, if the layers had different widths.
            ends[1] = module_with(rnn, "torch.Linear", prefix="readout.")
            if kind == "torch.LSTM" and layer.needs_x64 and len(layer.layers) == 1:
                # Its neurons are ordered so that neighbours cancel, but matrix products sum in an
                # order of their own.
                ends[1] = by_parts(ends[1])
        return ours.TorchStack(ends[0], module_with(rnn, kind), ends[1])
    if isinstance(layer, Affine):
        return module_with(to_state_dict(layer, "torch.Linear"), "torch.Linear")
    if isinstance(layer, LSTM | GRU):
        kind = f"torch.{type(layer).__name__}"
        return module_with(to_state_dict(layer, kind), kind)
    return module_of(layer, ours)


def module_of(layer: Any, ours: ModuleType) -> Any:  # Any: as in to_torch
    """Return a module of ours, or refuse a layer that has none."""
    if type(layer) in ours.MODULES:
        return ours.MODULES[type(layer)](layer)
    names = ", ".join(kind.__name__ for kind in ours.MODULES)
    raise BadInput(
        f"to_torch takes a construction, an LSTM, GRU or Affine, {names}, or a Stack (of LSTMs "
        f"alone, of GRUs alone, or of the others), not {kind_of(layer)}; compile attention "
        "first."
    )


# Any: entries of a state dict, and a torch.nn.Module.
def module_with(arrays: dict[str, Any], kind: str, prefix: str = "") -> Any:
    """Return an nn.LSTM, nn.GRU or nn.Linear with these weights."""
    import torch

    ours = import_torch()
    named = {
        name.removeprefix(prefix): ours.tensor_of(array)
        for name, array in arrays.items()
        if name.startswith(prefix) and "." not in name.removeprefix(prefix)
    }
    dtype = next(iter(named.values())).dtype
    if kind == "torch.Linear":
        d_out, d_in = named["weight"].shape
        module = torch.nn.Linear(d_in, d_out, bias="bias" in named, dtype=dtype)
    else:
        depth, hidden = count_layers(named), named["weight_hh_l0"].shape[1]
        make = getattr(torch.nn, kind.removeprefix("torch."))
        d_in = named["weight_ih_l0"].shape[1]
        module = make(d_in, hidden, depth, batch_first=True, dtype=dtype)
    module.load_state_dict(named)
    return module


def by_parts(linear: Any) -> Any:  # Any: an nn.Linear
    """Return the same map, summed by parts."""
    ours = import_torch()
    d_out, n = linear.weight.shape
    dtype = linear.weight.dtype
    module = ours.SummedByParts(n, d_out, bias=linear.bias is not None, dtype=dtype)
    module.load_state_dict(linear.state_dict())
    return module


def count_layers(names: Iterable[str]) -> int:
    return sum(name.startswith("weight_hh_l") for name in names)
