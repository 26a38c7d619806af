"""underhood: the attention under the hood of recurrent networks.

`compile` turns linear self-attention into a recurrent network that computes the same function;
`train` finds such networks by gradient descent on `tasks`;
`save` and `load` keep networks in files. One sequence at a time: batches are the caller's vmap.
"""

from underhood import tasks
from underhood.constructions import (
    Construction,
    ImpossibleConstruction,
    Role,
    attention_from_linear_rnn,
    compile,
)
from underhood.layers import (
    GRU,
    LRU,
    LSTM,
    Affine,
    BadInput,
    DenseGatedRNN,
    GatedRNN,
    Layer,
    LinearAttention,
    LRUInOut,
    LRUInOutMLP,
    Mamba,
    MambaBlock,
    MultiHead,
    SideGatedRNN,
    Stack,
    linear_recurrence,
    load,
    save,
    stream,
)
from underhood.training import Recipe, Run, train

__version__ = "0.1.0"

__all__ = [
    "GRU",
    "LRU",
    "LSTM",
    "Affine",
    "BadInput",
    "Construction",
    "DenseGatedRNN",
    "GatedRNN",
    "ImpossibleConstruction",
    "LRUInOut",
    "LRUInOutMLP",
    "Layer",
    "LinearAttention",
    "Mamba",
    "MambaBlock",
    "MultiHead",
    "Recipe",
    "Role",
    "Run",
    "SideGatedRNN",
    "Stack",
    "attention_from_linear_rnn",
    "compile",
    "linear_recurrence",
    "load",
    "save",
    "stream",
    "tasks",
    "train",
]
