"""The recall–memory frontier without training: how much recall a state has room for.

Zoology's figure shows how well trained layers solve MQAR against the bytes of their state. Compiled
networks run here on the same test sets, beside the accuracy by formula, the trained points, and the
information floor (docs/recall.md).

The rule: for K ≥ 16 pairs and dk ≥ 32 the accuracy that is run differs from the formula by at most
0.015. Runs with fewer than 4096 answers are shown only, and two standard errors are set aside for
runs with fewer than 16,000, as at quick scale. Both, and the least size of a standard error, were
added after a first run at quick scale, in which a run of few answers differed by luck; so the quick
scale is no blind test of the rule. At paper scale the rule stands as it is.
"""

from dataclasses import dataclass

import jax
import numpy as np

from underhood.common.files import Json
from underhood.experiments.beyond.recall_caveats import CAVEATS
from underhood.experiments.running import Outcome, Setting
from underhood.experiments.running.rules import at_most, ours, shown
from underhood.recall import Measured, RecallNetwork, Split, build
from underhood.recall.codes import CODES, DENSE_CODES, HASH_CODES
from underhood.recall.formulas import DELTA_RULE, LINEAR_RULE
from underhood.recall.information import mean_limit
from underhood.recall.prediction import divide, predict, published_tasks
from underhood.recall.published import (
    SOFTMAX_ATTENTION,
    provenance_of_points,
    trained_points,
)
from underhood.results.files import Number

LIMIT, RULED_PAIRS, RULED_KEYS = 0.015, 16, 32
# Runs with fewer answers are shown but not judged: luck would decide.
RULED_ANSWERS = 4096
# From so many answers on no standard error is set aside.
MANY_ANSWERS = 16_000
# Two values that are neighbours on the circle and share a bucket are a tie; rounding decides.
SAME_ANSWERS = 0.002
# Widths of the codes along a curve; the optimum is flat (docs/recall.md).
CURVE_VALUES = {DENSE_CODES: (48, 96), HASH_CODES: (2,)}
CURVES = ((DENSE_CODES, LINEAR_RULE), (HASH_CODES, LINEAR_RULE), (HASH_CODES, DELTA_RULE))
# The right panel: accuracy against the number of pairs.
PANEL_STATE = 2240
ENOUGH_RECALL = 0.99
# Numbers of state per channel of the short convolution before a trained layer.
CONV_SIZE, COUNTED = 3, ", shift counted as 3 (dk + dv)"


@dataclass(frozen=True)
class RecallProtocol:
    """What runs at a scale.

    compiled   state and codes of networks whose layers are run
    attention  state and codes of networks whose attention is run, which takes less time
    curve      states at which the formulas are drawn
    sequences  of each test set for the layers; `answers` in its place sets their number by K
    simulated  answers of each test set for the attention
    """

    compiled: tuple[tuple[int, str], ...]
    attention: tuple[tuple[int, str], ...]
    curve: tuple[int, ...]
    simulated: int
    answers: int | None = None
    sequences: int = 1000


PUBLISHED_RUNS = tuple((state, codes) for state in (1216, 2240, 4288, 8576) for codes in CODES)
# States of no trained layer, at both ends of the curves.
FURTHER_RUNS = tuple((state, codes) for state in (512, 12_288) for codes in CODES)
CURVE_STATES = (
    *(128, 256, 512, 1024, 1216, 2048, 2240, 3072, 4288, 5888, 6656, 7680, 8576, 9216),
    *(12_288, 16_768),
)
RECALL_PROTOCOLS = {
    "smoke": RecallProtocol(
        ((150, HASH_CODES),), ((150, HASH_CODES),), (256, 2240), 64, answers=16
    ),
    "quick": RecallProtocol(
        ((2240, DENSE_CODES), (600, HASH_CODES)),
        ((4288, DENSE_CODES), (2240, HASH_CODES)),
        CURVE_STATES,
        4096,
        answers=256,
    ),
    "paper": RecallProtocol(PUBLISHED_RUNS, FURTHER_RUNS, CURVE_STATES, 64_000),
}


def reproduce_recall_memory(setting: Setting) -> Outcome:
    """Run compiled networks on the published test sets, and judge the formulas."""
    protocol = RECALL_PROTOCOLS[setting.scale]
    first = len(protocol.attention)
    count, rows, compared, runs = first + len(protocol.compiled), [], [], []
    for done, (state, codes) in enumerate(protocol.attention):
        setting.tick(done, count + 1)
        network = build(state=state, codes=codes)
        measured = network.evaluate(answers=protocol.simulated, compiled=False)
        runs.append((network.split, measured))
        rows += table_rows(network, measured, "attention")
    for done, (state, codes) in enumerate(protocol.compiled):
        setting.tick(first + done, count + 1)
        network = build(state=state, codes=codes)
        # The same sequences twice: through the layers, and through the attention.
        layers, attention = (
            network.evaluate(
                answers=protocol.answers,
                sequences=protocol.sequences,
                key=jax.random.key(state),
                compiled=compiled,
            )
            for compiled in (True, False)
        )
        compared += [abs(a.accuracy - b.accuracy) for a, b in zip(layers, attention, strict=True)]
        runs.append((network.split, layers))
        rows += table_rows(network, layers, "compiled layers")
    setting.tick(count, count + 1)
    curves, panel = draw_curves(protocol.curve), draw_panel()
    setting.tick(1, 1)
    return Outcome(
        numbers=judge_recall(runs, compared) + summarise(curves),
        rows=rows + trained_rows(),
        notes=[*CAVEATS, f"Trained points: {provenance_of_points()}"],
        arrays=curves | panel | run_arrays(runs),
    )


def judge_recall(runs: list[tuple[Split, list[Measured]]], compared: list[float]) -> list[Number]:
    """Judge the formulas by all runs to which the rule applies, and the layers by the attention."""
    ruled = [
        each
        for split, measured in runs
        for each in measured
        if each.pairs >= RULED_PAIRS and split.keys >= RULED_KEYS
    ]
    # At smoke scale no run has enough answers, and nothing is judged.
    ruled = [each for each in ruled if each.answers >= RULED_ANSWERS] or ruled
    # As many standard errors as are set aside.
    aside = 0 if min(each.answers for each in ruled) >= MANY_ANSWERS else 2
    excesses = [
        max(abs(each.accuracy - each.predicted) - aside * each.error, 0.0) for each in ruled
    ]
    what = (
        f"largest |run − formula|{' less two standard errors' if aside else ''} over "
        f"{len(excesses)} runs with K ≥ {RULED_PAIRS}, dk ≥ {RULED_KEYS},"
    )
    same = "mean difference of accuracy on the same sequences,"
    return [
        ours(
            at_most(
                "run against formula",
                max(excesses),
                LIMIT,
                what=what,
                paper=None,
                seeds=len(excesses),
            )
        ),
        ours(
            at_most(
                "compiled layers against attention",
                float(np.mean(compared)),
                SAME_ANSWERS,
                what=same,
                paper=None,
                seeds=len(compared),
            )
        ),
    ]


def summarise(curves: dict[str, np.ndarray]) -> list[Number]:
    """Return numbers for people: states that recall 0.99, and trained points below the curve."""
    fixed = [point for point in trained_points() if point.layer != SOFTMAX_ATTENTION]
    good = [point.state for point in fixed if point.accuracy >= ENOUGH_RECALL]
    numbers = [shown("state for 0.99, trained", min(good), seeds=1)]
    for codes, rule in CURVES:
        name = curve_name(codes, rule)
        enough = curves["state"][curves[name] >= ENOUGH_RECALL]
        if len(enough):
            what = f"state for 0.99, {codes} codes, {rule} rule, of those on the curve"
            numbers.append(shown(what, int(enough.min()), seeds=1))
    here = int(np.flatnonzero(curves["state"] == PANEL_STATE)[0])
    for codes in CODES:
        for name, how in ((curve_name(codes, LINEAR_RULE), ""), (counted_name(codes), COUNTED)):
            what = f"accuracy at {PANEL_STATE:,} numbers by formula, {codes} codes{how}"
            numbers.append(shown(what, float(curves[name][here]), seeds=1))
    return numbers


def curve_name(codes: str, rule: str) -> str:
    return f"{codes}_{rule}"


def counted_name(codes: str) -> str:
    """Name the curve on which the shift counts as Zoology counts its convolution."""
    return f"{codes}_counted"


def draw_curves(states: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Return mean accuracies by formula, and the information floor, at some states."""
    tasks = published_tasks()
    curves: dict[str, np.ndarray] = {"state": np.array(states, float)}
    for codes, rule in CURVES:
        splits = [
            [divide(state, values, codes, rule, tasks=tasks) for values in CURVE_VALUES[codes]]
            for state in states
        ]
        best = [max(split.accuracy if split else 0.0 for split in choices) for choices in splits]
        curves[curve_name(codes, rule)] = np.array(best)
    for codes in CODES:
        curves[counted_name(codes)] = np.array([counted_accuracy(state, codes) for state in states])
    sizes = np.geomspace(16, 4 * states[-1], 60)
    limits = [mean_limit(tasks, 8 * size) for size in sizes]
    return curves | {"floor_bytes": sizes, "floor": np.array(limits)}


def counted_accuracy(state: int, codes: str) -> float:
    """Return the mean accuracy by formula if a convolution takes 3 (dk + dv) numbers of the state.

    That is Zoology's count with d_model = dk + dv; the shift register takes dk.
    """
    tasks, means = published_tasks(), [0.0]
    for values in CURVE_VALUES[codes]:
        keys = min((state - CONV_SIZE * values) // (values + CONV_SIZE), tasks[0].all_keys)
        if keys >= 2:
            right = [predict(task, keys=keys, values=values, codes=codes) for task in tasks]
            means.append(float(np.mean(right)))
    return max(means)


def draw_panel() -> dict[str, np.ndarray]:
    """Return accuracy by formula against the number of pairs, at one state."""
    tasks = published_tasks()
    panel = {"panel_pairs": np.array([task.pairs for task in tasks], float)}
    for codes, rule in CURVES:
        values = CURVE_VALUES[codes][-1]
        keys = PANEL_STATE // (values + 1)
        sizes = {"keys": keys, "values": values, "codes": codes, "rule": rule}
        panel[f"panel_{curve_name(codes, rule)}"] = np.array(
            [predict(task, **sizes) for task in tasks]  # type: ignore[arg-type]
        )
    return panel


def table_rows(network: RecallNetwork, measured: list[Measured], what: str) -> list[Json]:
    """Return a row per test set, and one for their mean."""
    split = network.split
    head = {"run": what, "codes": split.codes, "state": network.carried}
    head |= {"dk": split.keys, "dv": split.values, "neurons": network.neurons}
    rows = [
        head
        | {"pairs": each.pairs, "sequences": each.sequences, "accuracy": each.accuracy}
        | {"error": each.error, "formula": each.predicted}
        for each in measured
    ]
    means = {name: float(np.mean([row[name] for row in rows])) for name in ("accuracy", "formula")}
    error = float(np.sqrt(np.sum([each.error**2 for each in measured])) / len(measured))
    total = sum(each.sequences for each in measured)
    return [*rows, head | {"pairs": "mean", "sequences": total, "error": error} | means]


def run_arrays(runs: list[tuple[Split, list[Measured]]]) -> dict[str, np.ndarray]:
    """Return one entry per run and test set."""
    flat = [(split, each) for split, measured in runs for each in measured]
    return {
        "run_state": np.array([split.carried for split, _ in flat], float),
        "run_hash": np.array([split.codes == HASH_CODES for split, _ in flat], float),
        "run_pairs": np.array([each.pairs for _, each in flat], float),
        "run_accuracy": np.array([each.accuracy for _, each in flat]),
        "run_error": np.array([each.error for _, each in flat]),
        "run_formula": np.array([each.predicted for _, each in flat]),
    }


def trained_rows() -> list[Json]:
    """Return the trained points as rows beside the runs."""
    return [
        {"run": "trained", "layer": point.layer, "pairs": "mean"}
        | {"state": point.bytes / 4, "accuracy": point.accuracy}
        for point in trained_points()
    ]
