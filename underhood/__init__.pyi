"""The public names, as type checkers read them."""

from underhood import tasks as tasks
from underhood.analysis import (
    AttentionScore as AttentionScore,
    Certificate as Certificate,
    Decompilation as Decompilation,
    Merged as Merged,
    MomentForm as MomentForm,
    Polished as Polished,
    Polynomial as Polynomial,
    Probes as Probes,
    Pruned as Pruned,
    Reduced as Reduced,
    attention_score as attention_score,
    decompile as decompile,
    merge as merge,
    moment_form as moment_form,
    polish as polish,
    polynomial as polynomial,
    probe as probe,
    prune as prune,
    reduce as reduce,
    roles as roles,
)
from underhood.common.errors import (
    BadInput as BadInput,
)
from underhood.constructions import (
    Construction as Construction,
    ImpossibleConstruction as ImpossibleConstruction,
    Role as Role,
    attention_from_linear_rnn as attention_from_linear_rnn,
    compile as compile,
)
from underhood.layers import (
    GRU as GRU,
    LRU as LRU,
    LSTM as LSTM,
    Affine as Affine,
    DenseGatedRNN as DenseGatedRNN,
    GatedRNN as GatedRNN,
    Layer as Layer,
    LinearAttention as LinearAttention,
    LRUInOut as LRUInOut,
    LRUInOutMLP as LRUInOutMLP,
    Mamba as Mamba,
    MambaBlock as MambaBlock,
    MultiHead as MultiHead,
    SideGatedRNN as SideGatedRNN,
    Stack as Stack,
    linear_recurrence as linear_recurrence,
    load as load,
    save as save,
    stream as stream,
)
from underhood.sweeps.study import (
    Study as Study,
)
from underhood.sweeps.sweeping import (
    sweep as sweep,
)
from underhood.training import (
    Adam as Adam,
    Cosine as Cosine,
    Fit as Fit,
    Recipe as Recipe,
    Run as Run,
    fit as fit,
    train as train,
)

__version__: str
