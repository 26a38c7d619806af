"""`can`: whether a source fits into a target, as an exact network, a limit, not at all, or open.

A source that a target contains is copied (`embeddings.py`). Else `compile` is asked. If it refuses,
the theorems of closure are tried on the source itself: only a source that breaks the theorem's
equation is called impossible. What is left is open.
"""

import math
from dataclasses import replace
from functools import cache

import numpy as np

from underhood.common.errors import BadInput, check_name, kind_of
from underhood.constructions.atlas.answers import (
    IS_EXACT,
    IS_IMPOSSIBLE,
    IS_LIMIT,
    IS_OPEN,
    AtlasAnswer,
    combination_of,
    runner,
)
from underhood.constructions.atlas.embeddings import embedding_of
from underhood.constructions.atlas.facts import (
    TWO_MIN_GRUS,
    Facts,
    atlas_targets,
    facts_of,
    target_name,
)
from underhood.constructions.atlas.min_gru_pair import PAIR_LENGTH
from underhood.constructions.atlas.sources import (
    ATLAS_SOURCES,
    AnySource,
    DeltaCore,
    adds_up,
    compilable,
    example_of,
    source_name,
)
from underhood.constructions.atlas.theorems import THEOREMS
from underhood.constructions.atlas.witnesses import growth_exponent
from underhood.constructions.compiling import compile
from underhood.constructions.construction import Construction, ImpossibleConstruction
from underhood.constructions.sources.heads import Source, read_attention
from underhood.constructions.target import Blueprint
from underhood.constructions.targets.modern.impossible import breaks_swap_symmetry
from underhood.constructions.targets.registry import TARGETS
from underhood.layers import DenseGatedRNN, GatedRNN, Layer, LRUInOutMLP, SideGatedRNN

# A combination that is zero by a theorem is at most this, by rounding.
BY_ROUNDING = 1e-9
# A source that grows faster than this along a ray has a degree of two or more.
LINEAR_GROWTH = 1.5
ASK_AGAIN = (
    "This holds for the RNN as it is written. It may be attention inside: ask uh.can again with "
    "uh.decompile(rnn).attention."
)
# Tokens of a network whose weights are too large for longer sequences.
SHORT = 4


def can(source: AnySource | str, target: Layer | str) -> AtlasAnswer:
    """Say whether a source fits into a target, and why.

    source  a layer, or the name of an example: attention, attention_with_decay, multi_head,
            gradient_step, side_gated_rnn, gated_rnn, dense_gated_rnn, delta_rule, deltanet, lru
    target  a name that `compile` takes, min_gru_2 (two layers), or a layer of that kind
    """
    if isinstance(source, str):
        check_name("source", source, ATLAS_SOURCES)
        name, given = source, example_of(source)
    else:
        kind = source_name(source) if isinstance(source, Layer | DeltaCore) else None
        if kind is None:
            raise BadInput(
                "can takes attention, a gated RNN, an LRU, a DeltaNet, or a name as source, "
                f"not {words_for(source)}."
            )
        name, given = kind, source
    activation = None
    if isinstance(target, str):
        check_name("target", target, atlas_targets())
        into = target
    else:
        layer_kind = target_name(target) if isinstance(target, Layer) else None
        if layer_kind not in atlas_targets():
            raise BadInput(
                f"can knows no target that is {words_for(target)}; "
                f"use a name: {', '.join(atlas_targets())}."
            )
        into = str(layer_kind)
        if isinstance(target, LRUInOutMLP):
            activation = target.activation
    return decide(AtlasAnswer(name, into, IS_OPEN, "", given), activation)


def words_for(given: object) -> str:
    """Return what a user gave, in words."""
    if isinstance(given, type):
        return f"the class {given.__name__}"
    return "None" if given is None else kind_of(given)


def decide(asked: AtlasAnswer, activation: str | None) -> AtlasAnswer:
    """Fill in the answer: built, excluded by a theorem, or open."""
    embedded = embedding_of(asked.given, asked.target)
    if embedded is not None:
        layer, how = embedded
        return replace(asked, answer=IS_EXACT, how=how, layer=layer, reason=words_of(IS_EXACT))
    source, refusal = compilable(asked.given), ""
    if asked.target == "gated_rnn" and isinstance(source, GatedRNN):
        how = "One neuron for each eigenvalue of A and each gate."
        return replace(asked, answer=IS_EXACT, how=how, layer=source, reason=words_of(IS_EXACT))
    if source is not None and asked.target in TARGETS:
        try:
            return built_answer(asked, compile(source, asked.target, activation=activation))
        except ImpossibleConstruction as error:
            refusal = " ".join(error.reasons)
            if activation == "relu" and growth_of(asked, local=False) > LINEAR_GROWTH:
                return answer_pieces(asked)
    facts = facts_of(asked.target)
    for theorem, applies in (("swap", facts.symmetric), ("degree", facts.degree is not None)):
        if not applies:
            continue
        if breaks(asked, source, theorem, facts):
            reason = f"{THEOREMS[theorem].statement} The source has no such property, and the "
            reason += "functions that have it are a closed set."
            return replace(asked, answer=IS_IMPOSSIBLE, theorems=(theorem,), reason=reason)
    if asked.target == TWO_MIN_GRUS and unfading(source):
        return answer_two_min_grus(asked)
    if facts.fixed and source is not None and is_attention(source):
        return answer_fixed_decays(asked, source)
    reason = f"compile does not build it: {refusal}" if refusal else "No construction is known."
    if source is None and isinstance(asked.given, Layer):
        reason = "compile does not take this source."
    if isinstance(asked.given, GatedRNN | DenseGatedRNN | SideGatedRNN):
        reason = f"{reason} {ASK_AGAIN}"
    theorems = theorems_of(asked, facts)
    return replace(asked, theorems=theorems, reason=open_reason(theorems, reason))


def breaks(asked: AtlasAnswer, source: Source | None, theorem: str, facts: Facts) -> bool:
    """Tell whether the source breaks the equation of a theorem of closure."""
    if theorem == "swap" and source is not None and is_attention(source):
        assert not isinstance(source, GatedRNN)
        return breaks_swap_symmetry(read_attention(source))
    combination = combination_of(theorem, facts, asked.given.d_in)
    return combination.value(runner(asked.given)) > BY_ROUNDING


def built_answer(asked: AtlasAnswer, built: Construction) -> AtlasAnswer:
    """Return the answer that a finished construction gives."""
    answer = IS_EXACT if built.exact else IS_LIMIT
    facts = facts_of(asked.target)
    theorems = () if built.exact else theorems_of(asked, facts)
    how = f"{built.layers} layer{'s' * (built.layers > 1)} by compile"
    if built.source is not asked.given:
        how += f", from the source as {kind_of(built.source)}"
    if built.form is not None:
        how += f", form {built.form}"
    if built.epsilon is not None:
        how += f", ε = {built.epsilon:.1e}"
    return replace(
        asked,
        answer=answer,
        reason=words_of(answer, theorems, facts.reach),
        how=f"{how}.",
        order=built.order,
        theorems=theorems,
        construction=built,
        layer=built.layer,
    )


def theorems_of(asked: AtlasAnswer, facts: Facts) -> tuple[str, ...]:
    """Return the theorems that exclude exact weights."""
    theorems = []
    if math.isfinite(facts.growth):
        slope = growth_of(asked, facts.local)
        if slope > facts.growth + 0.5:
            theorems.append("norm")
    source = compilable(asked.given)
    if facts.coupled and adds_up(source):
        theorems.append("coupled")
    return tuple(theorems)


def growth_of(asked: AtlasAnswer, local: bool) -> float:
    """Return the exponent with which a source grows; that of an example is computed once."""
    if asked.given is example_of(asked.source):
        return example_growth(asked.source, local)
    return growth_exponent(runner(asked.given), asked.given.d_in, local=local)


@cache
def example_growth(name: str, local: bool) -> float:
    given = example_of(name)
    return growth_exponent(runner(given), given.d_in, local=local)


def is_attention(source: Source) -> bool:
    return Blueprint(source, "gated_rnn", np.dtype("float64")).attention is not None


def unfading(source: Source | None) -> bool:
    """Tell whether a source is attention without decay."""
    if source is None:
        return False
    attention = Blueprint(source, "gated_rnn", np.dtype("float64")).attention
    return attention is not None and not attention.fades


def answer_fixed_decays(asked: AtlasAnswer, source: Source) -> AtlasAnswer:
    """Answer for a decay that the target does not have: a sum of decays equals it for a while.

    Σ_a c_a γ_a^τ = λ^τ for τ < T has a solution for T different γ_a. Where they are near one
    another the c_a are too large for float64, so RetNet is run at a short length and the others
    not at all.
    """
    facts = facts_of(asked.target)
    how = "One head for each of T different decays γ, weighted so that Σ c γ^τ = λ^τ for τ < T."
    theorems = theorems_of(asked, facts)
    layer = None
    if asked.target == "retnet":
        plan = Blueprint(source, asked.target, np.dtype("float64"), layers=1, length=SHORT)
        layer = TARGETS[asked.target].build(plan).layer
    reason = (
        "A limit at any fixed length, proved in docs/theorems.md. compile refuses it: the weights "
        "c are too large for the usual precisions beyond a few tokens."
    )
    return replace(
        asked,
        answer=IS_LIMIT,
        how=how,
        order=2 if asked.target != "lightning" else 1,
        theorems=theorems,
        layer=layer,
        length=SHORT,
        reason=reason,
    )


def answer_pieces(asked: AtlasAnswer) -> AtlasAnswer:
    """Answer for MLPs of ReLUs: a limit in their width, proved in docs/theorems.md."""
    return replace(
        asked,
        answer=IS_LIMIT,
        order=2,
        theorems=(*theorems_of(asked, facts_of(asked.target)), "piecewise"),
        how="The MLPs join the squares of (a ± c) by straight pieces of length ε.",
        reason="A limit of wider and wider layers, proved in docs/theorems.md. compile refuses it: "
        "layers of one size do not come arbitrarily near, and a smooth activation does.",
    )


def answer_two_min_grus(asked: AtlasAnswer) -> AtlasAnswer:
    """Answer for two minGRU layers: a limit, proved in docs/theorems.md."""
    return replace(
        asked,
        answer=IS_LIMIT,
        order=2,
        theorems=theorems_of(asked, facts_of(asked.target)),
        how="The first layer sums products, the second multiplies their growth by the query.",
        reason="A limit at any fixed length, proved in docs/theorems.md and run with 120 digits; "
        "compile does not build it.",
        length=PAIR_LENGTH,
    )


def words_of(answer: str, theorems: tuple[str, ...] = (), reach: int | None = None) -> str:
    """Return an answer in words, for networks that are built."""
    if answer == IS_EXACT:
        return "The network differs from the source by rounding alone, at every length and size."
    excluded = ""
    if theorems:
        excluded = f" No weights are exact: {THEOREMS[theorems[0]].statement}"
    lengths = "at any fixed length and size of tokens."
    if reach is not None:
        # The heads that compile takes for one have fixed decays, whose sum is 1 for a while.
        lengths = (
            f"at any fixed size of tokens, up to {reach:,} tokens. On longer sequences the decays "
            "of its heads leave an error above 1e-6, whatever ε is; more heads reach any length."
        )
    return f"The error falls with ε, {lengths}{excluded}"


def open_reason(theorems: tuple[str, ...], reason: str) -> str:
    """Add what is known to the reason of an open answer."""
    if not theorems:
        return f"{reason} No theorem excludes it."
    letters = " and ".join(THEOREMS[name].letter for name in theorems)
    plural = "s" * (len(theorems) > 1)
    return f"{reason} No weights are exact (theorem{plural} {letters}); a limit may exist."
