"""The atlas: ten sources, all targets, and for each pair a network, a theorem or an open question.

`uh.can` answers for every pair. Here the error of every network that is built is measured on fresh
tokens, and every witness is run: weights fitted to the source against what the theorem says. The
rules below were written before the first run.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from underhood.common.files import Json
from underhood.constructions.atlas.adversaries import MAKERS
from underhood.constructions.atlas.answers import (
    ERROR_LENGTH,
    IS_EXACT,
    IS_IMPOSSIBLE,
    IS_LIMIT,
    AtlasAnswer,
)
from underhood.constructions.atlas.deciding import can
from underhood.constructions.atlas.facts import TWO_MIN_GRUS, atlas_targets, facts_of
from underhood.constructions.atlas.min_gru_pair import pair_error
from underhood.constructions.atlas.sources import ATLAS_SOURCES, compilable
from underhood.constructions.atlas.theorems import THEOREMS
from underhood.constructions.atlas.witnesses import Gap, compare_pieces, compare_scales
from underhood.constructions.compiling import PROMISED
from underhood.experiments.running import Outcome, Setting
from underhood.experiments.running.rules import at_most, judged, near, ours, shown
from underhood.results.files import Number

Asking = TypeVar("Asking")
Answered = TypeVar("Answered")

# An exact network is off by rounding; so is what a theorem says is zero.
ONLY_ROUNDING = 1e-12
# The least that any layer must be off by where a theorem of closure applies.
LEAST_OFF = 1e-6
# How much an exponent may be above the theorem's, on tokens that are large but finite.
SLACK = 0.05
# On large tokens, or after many, a layer must be off by at least this.
HALF_OFF = 0.5
# Sources of the smoke scale.
FEW_SOURCES = ("attention", "gated_rnn")


@dataclass(frozen=True)
class AtlasProtocol:
    """What runs at a scale: sources, and targets whose weights are fitted for theorems N and C."""

    sources: tuple[str, ...]
    growing: tuple[str, ...]
    coupled: tuple[str, ...]


CHEAP = ("lru_in_out", "lstm", "gru", "lightning", "gla", "retnet", "mlstm", "hgrn2", "rwkv7")
PROTOCOLS = {
    "smoke": AtlasProtocol(FEW_SOURCES, (), ("min_gru",)),
    "quick": AtlasProtocol(tuple(ATLAS_SOURCES), CHEAP, ("retnet", "deltanet", "hgrn2", "min_gru")),
    "paper": AtlasProtocol(
        tuple(ATLAS_SOURCES),
        tuple(MAKERS),
        tuple(name for name in MAKERS if facts_of(name).coupled and name != "lightning"),
    ),
}


def reproduce_atlas(setting: Setting) -> Outcome:
    """Answer every pair, measure the networks, and run the witnesses."""
    protocol = PROTOCOLS[setting.scale]
    targets = [name for name in atlas_targets() if setting.scale != "smoke" or name in FEW_TARGETS]
    pairs = [(source, target) for source in protocol.sources for target in targets]
    answers = in_threads(setting.part(0, 0.7), pairs, lambda pair: measured(*pair))

    def gap_of(answer: AtlasAnswer) -> Gap | None:
        if answer.answer == IS_IMPOSSIBLE:
            return answer.witness()
        if answer.source == "attention" and answer.answer == IS_LIMIT:
            return answer.witness(fitted=answer.target in protocol.growing)
        return None

    gaps = in_threads(setting.part(0.7, 0.95), answers, gap_of)
    coupled = [name for name in protocol.coupled if name in targets]
    fading = in_threads(
        setting.part(0.95, 1), coupled, lambda name: can("attention", name).coupling()
    )
    rows = [pair_row(answer, gap) for answer, gap in zip(answers, gaps, strict=True)]
    numbers = judge_networks(answers) + judge_witnesses(answers, gaps)
    numbers += [ours(judge_fading(coupled, fading)), *judge_parts()]
    numbers += count_answers(answers)
    return Outcome(
        numbers=numbers,
        rows=rows,
        notes=[
            *(
                f"{theorem.letter}, {theorem.title}: {theorem.statement}"
                for theorem in THEOREMS.values()
            ),
            "A gap of theorem N is the relative difference at tokens of size 2⁷⁰; of S and D it is "
            "the least error of any layer of the target on the witness's tokens. Both run on "
            "weights that were fitted to the source, or on the network that compile built.",
            "Errors are measured on 32 tokens, but for RetNet with decay (4 tokens, because its "
            "weights are too large beyond) and two minGRU layers (5 tokens, with 120 digits).",
        ],
    )


# Targets of the smoke scale.
FEW_TARGETS = ("gated_rnn", "side_gated_rnn", "lru_in_out", "retnet", "min_gru")


def in_threads(
    setting: Setting, items: Sequence[Asking], make: Callable[[Asking], Answered]
) -> list[Answered]:
    """Return what `make` gives for each item, one thread per core, with progress."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            waiting = [pool.submit(make, item) for item in items]
            return [future.result() for future in setting.over(waiting)]
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def measured(source: str, target: str) -> AtlasAnswer:
    """Return the answer for a pair, with its error measured."""
    answer = can(source, target)
    assert answer.error is None or np.isfinite(answer.error)
    return answer


def pair_row(answer: AtlasAnswer, gap: Gap | None) -> Json:
    """Return a pair for the table and the grid."""
    return {
        "source": answer.source,
        "target": answer.target,
        "source title": ATLAS_SOURCES[answer.source].title,
        "target title": facts_of(answer.target).title,
        "answer": answer.answer,
        "order": answer.order,
        "error": answer.error,
        "tokens": None if answer.error is None else answer.length,
        "neurons": answer.neurons,
        "parameters": answer.parameters,
        "theorem": "".join(THEOREMS[name].letter for name in answer.theorems) or None,
        "gap": None if gap is None else gap.gap,
        "value of the source": None if gap is None else gap.source_value,
        "value of the layer": None if gap is None else gap.target_value,
        "how": answer.how or answer.reason,
    }


def judge_networks(answers: Sequence[AtlasAnswer]) -> list[Number]:
    """Judge the errors of networks that are exact, and of limits at 32 tokens."""
    exact = [a.error for a in answers if a.answer == IS_EXACT and a.error is not None]
    long = [a for a in answers if a.answer == IS_LIMIT and a.length == ERROR_LENGTH]
    limits = [a.error for a in long if a.error is not None]
    kinds = (("exact networks", exact, ONLY_ROUNDING), ("limits", limits, PROMISED["float64"]))
    return [
        ours(
            at_most(
                f"error of {name}",
                max(errors),
                limit,
                what=f"largest error of {len(errors)} networks",
                paper=None,
                seeds=len(errors),
            )
        )
        for name, errors, limit in kinds
        if errors
    ]


def judge_witnesses(answers: Sequence[AtlasAnswer], gaps: Sequence[Gap | None]) -> list[Number]:
    """Judge the gaps of theorems S, D and N."""
    numbers = []
    for theorem in ("swap", "degree"):
        of = [gap for gap in gaps if gap is not None and gap.theorem == theorem]
        if not of:
            continue
        letter = THEOREMS[theorem].letter
        count = len(of)
        alone: Json = {"paper": None, "seeds": count}
        zero, least = max(gap.target_value for gap in of), min(gap.gap for gap in of)
        pairs = f"{count} pair{'s' * (count > 1)}"
        what = f"largest value of fitted layers in {pairs}"
        numbers.append(
            at_most(f"{letter}: zero by the theorem", zero, ONLY_ROUNDING, what=what, **alone)
        )
        rule = f"least error that the theorem leaves in {pairs} ≥ {LEAST_OFF:g}"
        holds = least >= LEAST_OFF
        numbers.append(judged(f"{letter}: gap", least, rule, holds, **alone, least=1))
    grown = [
        (a, g) for a, g in zip(answers, gaps, strict=True) if g is not None and g.theorem == "norm"
    ]
    if grown:
        excess = max(gap.target_value - facts_of(a.target).growth for a, gap in grown)
        least, count = min(gap.gap for _, gap in grown), len(grown)
        what = f"exponent above the theorem's, {count} targets,"
        numbers.append(at_most("N: growth", excess, SLACK, what=what, paper=None, seeds=count))
        rule = f"least relative difference at large tokens ≥ {HALF_OFF:g}"
        numbers.append(
            judged("N: gap", least, rule, least >= HALF_OFF, paper=None, seeds=count, least=1)
        )
    return [ours(number) for number in numbers]


def judge_fading(targets: Sequence[str], gaps: Sequence[Gap]) -> Number:
    """Judge theorem C: what a late one of many equal tokens adds, over an early one."""
    what = f"largest last step over first of {', '.join(targets)}"
    worst = max(gap.target_value for gap in gaps)
    return at_most("C: bounded in time", worst, HALF_OFF, what=what, paper=None, seeds=len(gaps))


def judge_parts() -> list[Number]:
    """Judge theorems P and I, and the order of two minGRU layers."""
    inside, outside = compare_pieces()
    source = compilable(can("attention", TWO_MIN_GRUS).given)
    assert source is not None
    slope = float(np.log10(pair_error(source, digits=3) / pair_error(source, digits=4)))
    edge = abs(outside.target_value / outside.source_value - 1)
    scale = compare_scales().gap
    alone: Json = {"paper": None, "seeds": 1}
    numbers = [
        at_most("P: inside the piece", inside.gap, ONLY_ROUNDING, what="error", **alone),
        at_most("P: outside", edge, 1e-3, what="error against 1 − (α*/α)², relative,", **alone),
        at_most("I: change under a norm", scale, 1.0, what="change over eps/(2r²)", **alone),
        near("minGRU, 2 layers: order", slope, 2.0, SLACK, what="slope of the error", **alone),
    ]
    return [ours(number) for number in numbers]


def count_answers(answers: Sequence[AtlasAnswer]) -> list[Number]:
    """Return how many pairs have each answer, for people."""
    kinds = dict.fromkeys(answer.answer for answer in answers)
    counts = {kind: sum(answer.answer == kind for answer in answers) for kind in kinds}
    return [shown(f"pairs: {kind}", count, seeds=len(answers)) for kind, count in counts.items()]
