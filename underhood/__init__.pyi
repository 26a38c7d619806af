"""The public names, as type checkers read them."""

from underhood import recall as recall, tasks as tasks
from underhood.analysis import (
    AttentionMap as AttentionMap,
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
    attention_map as attention_map,
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
    trace as trace,
)
from underhood.bridges import (
    from_state_dict as from_state_dict,
    from_torch as from_torch,
    to_state_dict as to_state_dict,
    to_torch as to_torch,
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
from underhood.constructions.atlas import (
    AtlasAnswer as AtlasAnswer,
    can as can,
)
from underhood.layers import (
    GLA as GLA,
    GRU as GRU,
    HGRN2 as HGRN2,
    KDA as KDA,
    LRU as LRU,
    LSTM as LSTM,
    MLSTM as MLSTM,
    RGLRU as RGLRU,
    RWKV6 as RWKV6,
    RWKV7 as RWKV7,
    Affine as Affine,
    DeltaNet as DeltaNet,
    DenseGatedRNN as DenseGatedRNN,
    GatedDeltaNet as GatedDeltaNet,
    GatedRNN as GatedRNN,
    JambaBlock as JambaBlock,
    Layer as Layer,
    Lightning as Lightning,
    LinearAttention as LinearAttention,
    LRUInOut as LRUInOut,
    LRUInOutMLP as LRUInOutMLP,
    Mamba as Mamba,
    Mamba2 as Mamba2,
    MambaBlock as MambaBlock,
    MinGRU as MinGRU,
    MultiHead as MultiHead,
    RetNet as RetNet,
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
    Shrinking as Shrinking,
    fit as fit,
    train as train,
)

__version__: str
