"""All targets by name; a new one is a file beside this one, and an entry here."""

from underhood.constructions.target import Blueprint, Target
from underhood.constructions.targets import decayed_attention, gated_rnn, gru, lru, lstm, mamba
from underhood.constructions.targets.lru_in_out_mlp import build_mlp, reasons_against_mlp
from underhood.constructions.targets.modern import coupled, jamba, linear, selective
from underhood.constructions.targets.modern.impossible import (
    breaks_swap_symmetry,
    refuse_min_gru,
    swap_symmetry,
)

LINEARISED = ("form", "order", "epsilon")

# ε, and the order: 1, or 2 where the silus are doubled.
SMALL_SIGNALS = ("order", "epsilon")


def no_reasons(plan: Blueprint) -> list[str]:
    """Return nothing: the target takes every attention."""
    return []


TWO_SUMS = (
    "A gated RNN multiplies two sums over the past, and this layer multiplies one by functions of "
    "the current token; if the RNN computes attention, compile uh.decompile(rnn).attention."
)

TARGETS = {
    "gated_rnn": Target(
        gated_rnn.build_gated_rnn,
        (1,),
        not_from_gated_rnn="The source is a gated RNN already, so there is nothing to compile; "
        "uh.reduce makes it smaller.",
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
    "gru": Target(gru.build_gru, (2, 1), (2,), (*LINEARISED, "reset"), gru.reasons_against_gru),
    "decayed_attention": Target(decayed_attention.build_decayed_attention, (2,), (2,)),
    "falcon_h1": Target(selective.build_falcon_h1, (1,), takes=(), not_from_gated_rnn=TWO_SUMS),
    **{
        name: Target(
            build,
            (1,),
            takes=SMALL_SIGNALS,
            orders=orders,
            reasons_against=reasons,
            not_from_gated_rnn=TWO_SUMS,
        )
        for name, build, orders, reasons in (
            ("mamba2", selective.build_mamba2, (1, 2), no_reasons),
            ("gated_deltanet", selective.build_gated_deltanet, (1, 2), no_reasons),
            ("deltanet", selective.build_deltanet, (1, 2), selective.reasons_against_deltanet),
            ("kda", selective.build_kda, (1, 2), no_reasons),
            ("lightning", selective.build_lightning, (1,), selective.reasons_against_lightning),
            ("gla", linear.build_gla, (2,), no_reasons),
            ("retnet", linear.build_retnet, (2,), linear.reasons_against_retnet),
            ("rwkv6", linear.build_rwkv6, (2,), no_reasons),
            ("rwkv7", linear.build_rwkv7, (2,), linear.reasons_against_rwkv7),
            ("mlstm", linear.build_mlstm, (2,), linear.reasons_against_mlstm),
            ("jamba", jamba.build_jamba, (2,), mamba.reasons_against_block),
            ("rg_lru", coupled.build_rg_lru, (), no_reasons),
            ("hgrn2", coupled.build_hgrn2, (), coupled.reasons_against_hgrn2),
        )
    },
    "min_gru": Target(
        refuse_min_gru,
        (1,),
        takes=LINEARISED,
        reasons_against=swap_symmetry,
        proves=lambda plan: plan.attention is not None and breaks_swap_symmetry(plan.attention),
    ),
}
