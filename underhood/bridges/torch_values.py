"""What a PyTorch module itself computes on one sequence, under the names of `trace`.

nn.LSTM, nn.GRU     run token by token: state, cell and output of every layer
MambaMixer          by forward hooks: u enters x_proj, C leaves it, the gate leaves in_proj
Mamba2Mixer         by a forward hook on in_proj: the gate
modules of ours     run token by token: state, written and output
nn.Linear           its output: embed, or output of the whole

Dropout is off while the module runs, and no gradients are kept.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from underhood.bridges.mamba_mixers import is_mixer
from underhood.bridges.torch_layers import RecurrentModule, TorchChain, TorchStack
from underhood.bridges.torch_modules import SKIPPED

Named = dict[str, Tensor]


def observe_module(module: Any, xs: Any) -> dict[str, np.ndarray]:  # Any: an nn.Module, tokens
    """Return a module's own intermediates on tokens [time, d], as NumPy arrays [time, …]."""
    if not len(xs):
        return {}
    example = next(module.parameters())
    tokens = torch.as_tensor(np.array(xs)).to(example.dtype).to(example.device)
    training = {part: part.training for part in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            named = run_parts(module, tokens)
    finally:
        for part, was_training in training.items():
            part.training = was_training
    return {name: value.cpu().numpy() for name, value in named.items()}


def modules_in(module: nn.Module) -> list[nn.Module]:
    """Return the modules that run one after the other."""
    if isinstance(module, TorchStack):
        ends = [[] if end is None else [end] for end in (module.embed, module.readout)]
        return [*ends[0], *modules_in(module.rnn), *ends[1]]
    if isinstance(module, nn.Sequential):
        kept = [part for part in module if type(part).__name__ not in SKIPPED]
        return [inner for part in kept for inner in modules_in(part)]
    return [module]


def run_parts(module: nn.Module, xs: Tensor) -> Named:
    """Return the intermediates of all parts; those of layers in a stack begin with layers[0]."""
    named: Named = {}
    layers: list[Named] = []
    parts = modules_in(module)
    for part in parts:
        if isinstance(part, nn.Linear):
            xs = part(xs)
            if not layers:
                named["embed"] = xs
        else:
            layers += run_layers(part, xs)
            xs = layers[-1]["output"]
    alone = len(layers) == len(parts) == 1 and not isinstance(module, TorchStack | TorchChain)
    for number, layer in enumerate(layers):
        named |= {(n if alone else f"layers[{number}].{n}"): v for n, v in layer.items()}
    return named | {"output": xs}


def run_layers(part: nn.Module, xs: Tensor) -> list[Named]:
    """Return the intermediates of a part, layer by layer."""
    if isinstance(part, nn.LSTM | nn.GRU):
        return run_cells(part, xs)
    if isinstance(part, RecurrentModule):
        us, state, states = part.enter(xs), part.initial_state(), []
        for x in xs:
            state, _ = part.step(state, x)
            states.append(state)
        stacked = torch.stack(states)
        read = part.read(stacked, us)
        return [{"u": us, "written": part.write(us), "state": stacked, "output": read}]
    if is_mixer(part):
        return [run_mixer(part, xs)]
    outputs = part(xs)
    return [{"output": outputs[0] if isinstance(outputs, tuple) else outputs}]


def run_cells(rnn: nn.LSTM | nn.GRU, xs: Tensor) -> list[Named]:
    """Run an nn.LSTM or an nn.GRU token by token, and keep its states."""
    carry, kept = None, []
    for x in xs:
        _, carry = rnn(x[None], carry)
        kept.append(carry if isinstance(carry, tuple) else (carry,))
    # [time, layers, hidden] of h, and of c.
    states = [torch.stack(parts) for parts in zip(*kept, strict=True)]
    layers = []
    for number in range(rnn.num_layers):
        h = states[0][:, number]
        cell = {"cell": states[1][:, number]} if len(states) > 1 else {}
        layers.append({"state": h, "output": h} | cell)
    # What the module returns, which a hook or a subclass may have changed.
    layers[-1]["output"] = rnn(xs)[0]
    return layers


def run_mixer(mixer: Any, xs: Tensor) -> Named:  # Any: a MambaMixer or a Mamba2Mixer
    """Run a mixer with hooks on the linear maps inside it."""
    named: Named = {}

    def note_gate(part: nn.Module, given: Any, result: Tensor) -> None:  # Any: PyTorch's tuple
        if type(mixer).__name__ == "MambaMixer":
            named["gate"] = F.silu(result[0].chunk(2, -1)[1])
        else:
            gate = F.silu(result[0][:, : mixer.intermediate_size])
            named["gate"] = gate.reshape(len(gate), mixer.num_heads, -1)

    def note_signals(part: nn.Module, given: Any, result: Tensor) -> None:  # Any: as above
        named["u"], named["C"] = given[0][0], result[0][:, -mixer.ssm_state_size :]

    hooks = [mixer.in_proj.register_forward_hook(note_gate)]
    if hasattr(mixer, "x_proj"):
        hooks.append(mixer.x_proj.register_forward_hook(note_signals))
    try:
        return named | {"output": mixer(xs[None])[0]}
    finally:
        for hook in hooks:
            hook.remove()
