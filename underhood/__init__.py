"""underhood: the attention under the hood of recurrent networks.

`compile` turns linear self-attention into a recurrent network that computes the same function;
`train` finds such networks by gradient descent on `tasks`;
`prune`, `polish`, `reduce`, `polynomial` and `decompile` look inside them, and `attention_score`
inside any layer;
`save` and `load` keep networks in files. One sequence at a time: batches are the caller's vmap.
"""

from underhood import tasks
from underhood.analysis import (
    AttentionScore,
    Certificate,
    Decompilation,
    Merged,
    MomentForm,
    Polished,
    Polynomial,
    Probes,
    Pruned,
    Reduced,
    attention_score,
    decompile,
    merge,
    moment_form,
    polish,
    polynomial,
    probe,
    prune,
    reduce,
    roles,
)
from underhood.common.errors import BadInput
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
from underhood.sweeps import Study
from underhood.training import Recipe, Run, train

__version__ = "0.1.0"

__all__ = [
    "GRU",
    "LRU",
    "LSTM",
    "Affine",
    "AttentionScore",
    "BadInput",
    "Certificate",
    "Construction",
    "Decompilation",
    "DenseGatedRNN",
    "GatedRNN",
    "ImpossibleConstruction",
    "LRUInOut",
    "LRUInOutMLP",
    "Layer",
    "LinearAttention",
    "Mamba",
    "MambaBlock",
    "Merged",
    "MomentForm",
    "MultiHead",
    "Polished",
    "Polynomial",
    "Probes",
    "Pruned",
    "Recipe",
    "Reduced",
    "Role",
    "Run",
    "SideGatedRNN",
    "Stack",
    "Study",
    "attention_from_linear_rnn",
    "attention_score",
    "compile",
    "decompile",
    "linear_recurrence",
    "load",
    "merge",
    "moment_form",
    "polish",
    "polynomial",
    "probe",
    "prune",
    "reduce",
    "roles",
    "save",
    "stream",
    "tasks",
    "train",
]
