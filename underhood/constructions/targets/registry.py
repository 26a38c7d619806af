"""All targets by name; a new one is a file beside this one, and an entry here."""

from underhood.constructions.target import Target
from underhood.constructions.targets import decayed_attention, gated_rnn, gru, lru, lstm, mamba
from underhood.constructions.targets.lru_in_out_mlp import build_mlp, reasons_against_mlp

LINEARISED = ("form", "order", "epsilon")

TARGETS = {
    "gated_rnn": Target(
        gated_rnn.build_gated_rnn, (1,), not_from_gated_rnn="The source is a gated RNN already."
    ),
    "side_gated_rnn": Target(
        gated_rnn.build_side_gated_rnn, (1,), reasons_against=gated_rnn.reasons_against_side_gates
    ),
    "lru": Target(lru.build_lru, (2,), (2,), LINEARISED),
    "lru_in_out": Target(lru.build_lru, (1,), (1,), LINEARISED),
    "lru_in_out_mlp": Target(
        build_mlp, (1,), (1,), (*LINEARISED, "activation"), reasons_against_mlp
    ),
    "mamba": Target(mamba.build_mamba, (1, 2), (2,)),
    "mamba_block": Target(mamba.build_block, (1,), (), (), mamba.reasons_against_block),
    "lstm": Target(lstm.build_lstm, (1, 2), (2,), LINEARISED),
    "gru": Target(gru.build_gru, (2, 1), (2,), LINEARISED, gru.reasons_against_gru),
    "decayed_attention": Target(decayed_attention.build_decayed_attention, (2,), (2,)),
}
