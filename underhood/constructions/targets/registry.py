"""All targets by name; a new one is a file beside this one, and a line here."""

from underhood.constructions.target import Target
from underhood.constructions.targets.decayed_attention import ToDecayedAttention
from underhood.constructions.targets.gated_rnn import ToGatedRNN
from underhood.constructions.targets.gru import ToGRU
from underhood.constructions.targets.lru import ToLRU, ToLRUInOut
from underhood.constructions.targets.lru_in_out_mlp import ToLRUInOutMLP
from underhood.constructions.targets.lstm import ToLSTM
from underhood.constructions.targets.mamba import ToMamba
from underhood.constructions.targets.mamba_block import ToMambaBlock
from underhood.constructions.targets.side_gated_rnn import ToSideGatedRNN

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        ToGatedRNN(),
        ToSideGatedRNN(),
        ToLRU(),
        ToLRUInOut(),
        ToLRUInOutMLP(),
        ToMamba(),
        ToMambaBlock(),
        ToLSTM(),
        ToGRU(),
        ToDecayedAttention(),
    )
}
