"""Our layers as modules of PyTorch: the same equations, parameters and names.

A module takes xs [time, d] or [batch, time, d]. `step(state, x)` takes one token [d] or [batch, d]
and returns the state after it and the output there, in constant memory; `initial_state` makes the
state before the first token. All is differentiable. Only `torch_modules.py` imports this file, when
it is first needed, because it needs PyTorch.
"""

import dataclasses
from typing import Any

import equinox as eqx
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from underhood.bridges.mamba_mixers import is_mixer
from underhood.common.decay import NU_ONE, NU_ZERO
from underhood.common.errors import BadInput
from underhood.layers import LRU, GatedRNN, Layer, LRUInOut, LRUInOutMLP, SideGatedRNN

TORCH_ACTIVATIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "softplus": F.softplus,
    "tanh": torch.tanh,
}


def tensor_of(array: Any) -> Tensor:  # Any: an array of NumPy or JAX
    """Return a copy of an array as a tensor of the same precision."""
    return torch.from_numpy(np.array(array, order="C"))


class RecurrentModule(nn.Module):
    """h_t = λ⊙h_{t−1} + write(u_t), y_t = read(h_t, u_t), with u = enter(x)."""

    def __init__(self, layer: Layer):
        super().__init__()
        self.kind = type(layer)
        for field in dataclasses.fields(layer):
            value = getattr(layer, field.name)
            if eqx.is_array(value):
                self.register_parameter(field.name, nn.Parameter(tensor_of(value)))
            else:
                setattr(self, field.name, value)

    def decay(self) -> Tensor:
        """Return |λ| = exp(−exp ν)."""
        return torch.exp(-torch.exp(torch.clamp(self.nu, NU_ONE, NU_ZERO)))

    def eigenvalues(self) -> Tensor:
        """Return λ; real unless a module says otherwise."""
        return self.decay()

    def enter(self, xs: Tensor) -> Tensor:
        return xs

    def write(self, us: Tensor) -> Tensor:
        raise NotImplementedError

    def read(self, states: Tensor, us: Tensor) -> Tensor:
        raise NotImplementedError

    def initial_state(self, *batch: int) -> Tensor:
        """Return zeros [*batch, hidden]."""
        eigenvalues = self.eigenvalues()
        return eigenvalues.new_zeros(*batch, len(eigenvalues))

    def forward(self, xs: Tensor) -> Tensor:
        us, eigenvalues = self.enter(xs), self.eigenvalues()
        states, state = [], self.initial_state(*xs.shape[:-2])
        for written in self.write(us).unbind(-2):
            state = eigenvalues * state + written
            states.append(state)
        # Without a token there is nothing to stack.
        stacked = torch.stack(states, -2) if states else self.write(us) * eigenvalues
        return self.read(stacked, us)

    def step(self, state: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        u = self.enter(x)
        state = self.eigenvalues() * state + self.write(u)
        return state, self.read(state, u)


class TorchGatedRNN(RecurrentModule):
    """GatedRNN in PyTorch."""

    def write(self, us: Tensor) -> Tensor:
        extended = torch.cat([us, torch.ones_like(us[..., :1])], -1)
        return (extended @ self.W_in_m.T) * (extended @ self.W_in_x.T)

    def read(self, states: Tensor, us: Tensor) -> Tensor:
        return ((states @ self.W_out_m.T) * (states @ self.W_out_x.T)) @ self.D.T


class TorchSideGatedRNN(RecurrentModule):
    """SideGatedRNN in PyTorch."""

    def write(self, us: Tensor) -> Tensor:
        return (us @ self.W_in_m.T) * (us @ self.W_in_x.T)

    def read(self, states: Tensor, us: Tensor) -> Tensor:
        return ((us @ self.W_side.T) * states) @ self.D.T


class TorchLRU(RecurrentModule):
    """LRU in PyTorch: the complex recurrence, then a gated linear unit."""

    def eigenvalues(self) -> Tensor:
        return torch.polar(self.decay(), torch.exp(self.theta_log))

    def write(self, us: Tensor) -> Tensor:
        gamma = torch.exp(self.gamma_log)
        return torch.complex(gamma * (us @ self.B_re.T), gamma * (us @ self.B_im.T))

    def after(self, mixed: Tensor) -> Tensor:
        return torch.sigmoid(mixed @ self.W_m.T) * (mixed @ self.W_x.T)

    def read(self, states: Tensor, us: Tensor) -> Tensor:
        recurrent = states.real @ self.C_re.T - states.imag @ self.C_im.T
        return self.after(recurrent + us @ self.D.T)


class TorchLRUInOut(TorchLRU):
    """LRUInOut in PyTorch."""

    def enter(self, xs: Tensor) -> Tensor:
        return torch.sigmoid(xs @ self.W_in_m.T) * (xs @ self.W_in_x.T)


class TorchLRUInOutMLP(TorchLRU):
    """LRUInOutMLP in PyTorch."""

    def enter(self, xs: Tensor) -> Tensor:
        return TORCH_ACTIVATIONS[self.activation](xs @ self.W_in_1.T) @ self.W_in_2.T

    def after(self, mixed: Tensor) -> Tensor:
        return TORCH_ACTIVATIONS[self.activation](mixed @ self.W_out_1.T) @ self.W_out_2.T


MODULES: dict[type, type[RecurrentModule]] = {
    GatedRNN: TorchGatedRNN,
    SideGatedRNN: TorchSideGatedRNN,
    LRU: TorchLRU,
    LRUInOut: TorchLRUInOut,
    LRUInOutMLP: TorchLRUInOutMLP,
}


class TorchChain(nn.Sequential):
    """Our modules one after the other, with a state for each."""

    def initial_state(self, *batch: int) -> tuple[Tensor, ...]:
        return tuple(module.initial_state(*batch) for module in self)

    def step(self, state: tuple[Tensor, ...], x: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        after = []
        for module, before in zip(self, state, strict=True):
            now, x = module.step(before, x)
            after.append(now)
        return tuple(after), x


class SummedByParts(nn.Linear):
    """W h + b, summed as Σ_i S_i (h_i − h_{i+1}) with S_i = w_1 + … + w_i, where h_{n+1} = 0.

    The readout of a linearised network has weights of size ε⁻² that cancel. Neighbours are nearly
    equal, so their differences round little, and any order of the sum is good. The parameters are
    those of an nn.Linear.
    """

    def forward(self, h: Tensor) -> Tensor:
        differences = h - F.pad(h[..., 1:], (0, 1))
        return F.linear(differences, torch.cumsum(self.weight, 1), self.bias)


class TorchStack(nn.Module):
    """Stack in PyTorch: `embed`, then `rnn` (an nn.LSTM, an nn.GRU or a chain), then `readout`."""

    def __init__(self, embed: nn.Linear | None, rnn: nn.Module, readout: nn.Linear | None):
        super().__init__()
        self.embed, self.rnn, self.readout = embed, rnn, readout

    def forward(self, xs: Tensor) -> Tensor:
        xs = xs if self.embed is None else self.embed(xs)
        # A mixer knows batches only.
        alone = xs.dim() == 2 and is_mixer(self.rnn)
        outputs = self.rnn(xs[None])[0] if alone else self.rnn(xs)
        # torch's own also return their last state.
        outputs = outputs[0] if isinstance(outputs, tuple) else outputs
        return outputs if self.readout is None else self.readout(outputs)

    def check_streaming(self) -> None:
        if is_mixer(self.rnn):
            raise BadInput("A mixer streams by the cache of transformers, not by step.")

    # Any: what the modules inside have as a state.
    def initial_state(self, *batch: int) -> Any:  # Any: see above
        """Return the state before the first token; at most one axis of batch for nn.LSTM."""
        self.check_streaming()
        if isinstance(self.rnn, TorchChain):
            return self.rnn.initial_state(*batch)
        shape = (self.rnn.num_layers, *batch, self.rnn.hidden_size)
        zeros = self.rnn.weight_hh_l0.new_zeros(shape)
        return (zeros, zeros) if isinstance(self.rnn, nn.LSTM) else zeros

    def step(self, state: Any, x: Tensor) -> tuple[Any, Tensor]:  # Any: see above
        self.check_streaming()
        x = x if self.embed is None else self.embed(x)
        if isinstance(self.rnn, TorchChain):
            state, y = self.rnn.step(state, x)
        else:
            outputs, state = self.rnn(x.unsqueeze(-2), state)
            y = outputs.squeeze(-2)
        return state, y if self.readout is None else self.readout(y)
