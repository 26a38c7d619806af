"""Other frameworks: state dicts of PyTorch, transformers and Flax, and PyTorch modules."""

from underhood.bridges.state_dicts import from_state_dict, to_state_dict
from underhood.bridges.torch_modules import from_torch, own_values, to_torch
