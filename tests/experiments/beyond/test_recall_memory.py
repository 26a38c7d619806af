"""The recall–memory frontier at smoke scale, and its rule on planted runs."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from result_files import COMMITTED, ROOT

from underhood.common.tensors import read_tensors
from underhood.experiments.beyond.recall_memory import (
    CAVEATS,
    MANY_ANSWERS,
    RECALL_PROTOCOLS,
    RULED_PAIRS,
    counted_accuracy,
    judge_recall,
    reproduce_recall_memory,
)
from underhood.experiments.running import Setting
from underhood.recall import Measured, best
from underhood.recall.information import accuracy_limit, mean_limit, needed_bits
from underhood.recall.prediction import predict, published_tasks
from underhood.recall.published import nearest_trained, trained_points
from underhood.tasks import MQAR


def test_at_smoke_scale_it_runs_and_marks_its_numbers_as_ours():
    ticks = []
    setting = Setting("smoke", None, Path("unused"), lambda done, total: ticks.append(done / total))
    outcome = reproduce_recall_memory(setting)
    assert ticks == sorted(ticks) and ticks[-1] == 1
    assert {number.whose for number in outcome.numbers} == {"ours"}
    assert {number.name for number in outcome.numbers} >= {
        "run against formula",
        "compiled layers against attention",
        "state for 0.99, trained",
    }
    same = next(n for n in outcome.numbers if n.name == "compiled layers against attention")
    assert same.value <= 0.002
    assert all(np.all(np.isfinite(array)) for array in outcome.arrays.values())
    floors, sizes = outcome.arrays["floor"], outcome.arrays["floor_bytes"]
    assert np.all(np.diff(floors) >= 0) and floors[-1] == 1 and len(sizes) == len(floors)
    # The floor lies above every run: no state holds more than its bits.
    tasks = {task.pairs: task for task in published_tasks()}
    for row in outcome.rows:
        if row["pairs"] != "mean":
            assert row["formula"] <= accuracy_limit(tasks[row["pairs"]], 32 * row["state"])
    assert sum(row["run"] == "trained" for row in outcome.rows) == len(trained_points())


def test_the_paper_scale_runs_what_was_published():
    protocol = RECALL_PROTOCOLS["paper"]
    assert protocol.answers is None and protocol.sequences >= 1000
    assert protocol.simulated >= MANY_ANSWERS and 1000 * RULED_PAIRS >= MANY_ANSWERS


def test_with_many_answers_no_standard_error_is_set_aside():
    split = replace(best(state=300), keys=100)
    run = Measured(16, 64, 1000, 0.816, 0.01, 0.8)
    number, _ = judge_recall([(split, [run])], [0.0])
    assert number.verdict == "differs" and "standard" not in number.rule
    number, _ = judge_recall([(split, [replace(run, sequences=999)])], [0.0])
    assert number.verdict == "reproduced" and "less two standard errors" in number.rule


def test_the_shift_counted_as_a_convolution_takes_from_the_state():
    # 2240 = 446·2 + 3·(446 + 2), up to what does not fill a bucket.
    task = [predict(task, keys=446, values=2, codes="hash") for task in published_tasks()]
    assert counted_accuracy(2240, "hash") == pytest.approx(np.mean(task), abs=1e-3)
    assert counted_accuracy(20, "dense") == 0


def test_every_caveat_is_a_note():
    words = " ".join(CAVEATS)
    for part in ("short convolutions", "RWKV-7", "extrapolation", "vocabulary", "embedding"):
        assert part in words
    for part in ("decoder", "11 bits", "latch", "delta rule", "information floor", "tied"):
        assert part in words


@pytest.mark.parametrize(
    ("off", "error", "verdict"),
    [(0.0, 0.001, "reproduced"), (0.014, 0.0, "reproduced"), (0.02, 0.001, "differs")],
)
def test_a_planted_difference_is_caught(off, error, verdict):
    split = replace(best(state=300), keys=100)
    sets = [Measured(K, 4 * K, 1000, 0.8, error, 0.8) for K in (4, 16, 64)]
    # Few pairs, few answers and few keys are outside the rule.
    far = [Measured(4, 64, 9000, 0.5, 0.001, 0.9), Measured(32, 128, 10, 0.5, 0.001, 0.9)]
    runs = [(split, [*sets, Measured(32, 128, 1000, 0.8 + off, error, 0.8), *far])]
    runs.append((replace(split, keys=20), [Measured(32, 128, 1000, 0.5, 0.001, 0.9)]))
    number, same = judge_recall(runs, [0.0, 0.001])
    assert (number.verdict, same.verdict) == (verdict, "reproduced")
    assert judge_recall(runs, [0.01])[1].verdict == "differs"


def test_the_table_of_the_page_is_that_of_the_result():
    result = json.loads((COMMITTED["paper"] / "recall_memory/result.json").read_text())
    page = (ROOT / "docs/recall.md").read_text(encoding="utf-8")
    rows = [row for row in result["rows"] if row["pairs"] == "mean" and row["run"] != "trained"]
    assert len(rows) == 12 and result["verdict"] == "reproduced"
    assert not result["provenance"]["commit"].endswith("+")
    for row in rows:
        cells = f"{row['accuracy']:.3f} | {row['formula']:.3f}"
        assert f"| {row['codes']} | {row['state']:,} | {cells} |\n" in page


@pytest.mark.parametrize(
    ("curve", "above"),
    [
        ("dense_linear", [("DeltaNet", 2240)]),
        ("dense_counted", [("DeltaNet", 2240), ("Gated DeltaNet", 4288)]),
        ("hash_linear", []),
        ("hash_counted", []),
    ],
)
def test_the_page_says_which_trained_layers_are_above_a_curve(curve, above):
    arrays = read_tensors(COMMITTED["paper"] / "recall_memory/arrays.safetensors").arrays
    state = np.log(arrays["state"])
    within = [point for point in trained_points() if np.log(point.state) <= state[-1]]
    assert [
        (point.layer, point.state)
        for point in within
        if point.accuracy > np.interp(np.log(point.state), state, arrays[curve])
    ] == above


def test_the_information_floor():
    task = MQAR(1, 4)
    # One value out of 4096 is 12 bits; guessing needs none.
    assert needed_bits(task, 1.0) == pytest.approx(12)
    assert needed_bits(task, 1 / 4096) == pytest.approx(0, abs=1e-9)
    assert accuracy_limit(task, 12) == 1 and accuracy_limit(task, 0) == 1 / 4096
    halfway = accuracy_limit(task, 6)
    assert needed_bits(task, halfway) == pytest.approx(6)
    assert mean_limit(published_tasks(), 8 * 345) == pytest.approx(0.99, abs=0.002)


def test_trained_points_are_as_published():
    point = nearest_trained(2240)
    assert (point.layer, point.state, point.accuracy) == ("DeltaNet", 2240, 0.793)
    good = [p.state for p in trained_points() if p.accuracy >= 0.99 and p.layer != "attention"]
    assert min(good) == 33536
    assert all(0 <= point.accuracy <= 1 for point in trained_points())
