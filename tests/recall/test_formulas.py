"""Accuracy by formula agrees with simulation, on settings that were not used to write it."""

import math
from functools import cache

import numpy as np
import pytest
from refusals import refused

import underhood as uh
from underhood.recall.codes import make_codes, mean_square_crosstalk, tight_frame, welch_floor
from underhood.recall.formulas import cap
from underhood.recall.prediction import best, divide, predict, published_tasks
from underhood.tasks import MQAR

ALL_KEYS, ALL_VALUES = 4095, 4096
LIMIT = 0.015
LINEAR_CASES = [
    *(("dense", 16, 40, 20), ("dense", 16, 33, 12), ("dense", 24, 50, 18), ("dense", 24, 36, 40)),
    *(("dense", 32, 33, 24), ("dense", 32, 80, 20), ("dense", 48, 64, 28), ("dense", 48, 37, 72)),
    *(("dense", 64, 60, 40), ("dense", 64, 100, 30), ("dense", 96, 45, 80), ("dense", 96, 120, 24)),
    *(("dense", 128, 70, 56), ("dense", 128, 40, 110), ("dense", 160, 90, 64)),
    *(("dense", 200, 52, 150), ("dense", 256, 100, 70), ("dense", 256, 66, 120)),
    *(("hash", 16, 90, 2), ("hash", 24, 150, 2), ("hash", 32, 311, 1), ("hash", 48, 200, 2)),
    *(("hash", 64, 333, 2), ("hash", 96, 1700, 2), ("hash", 128, 640, 1), ("hash", 160, 2500, 2)),
    *(("hash", 200, 900, 2), ("hash", 256, 1300, 2), ("hash", 256, 3000, 1), ("hash", 256, 400, 2)),
]
DELTA_CASES = [(16, 40), (24, 130), (32, 75), (48, 500), (64, 210), (96, 64), (128, 800)]
DELTA_CASES += [(160, 330), (200, 1500), (256, 256), (256, 2222), (40, 33)]


@cache
def codes_of(kind, keys, values):
    sizes = {"all_keys": ALL_KEYS, "all_values": ALL_VALUES, "keys": keys, "values": values}
    return make_codes(kind, **sizes, rng=np.random.default_rng([keys, values]))


def simulate(kind, pairs, keys, values, rule="linear", answers=20_000):
    """The share of right answers of the memory itself, in NumPy."""
    codes, rng = codes_of(kind, keys, values), np.random.default_rng([pairs, keys])
    right, rounds = 0, math.ceil(answers / pairs)
    for _ in range(rounds):
        stored = codes.keys[rng.permutation(ALL_KEYS)[:pairs]]
        labels = rng.permutation(ALL_VALUES)[:pairs]
        memory = np.zeros((values, keys))
        if rule == "linear":
            memory = codes.values[labels].T @ stored
        else:
            for key, value in zip(stored, codes.values[labels], strict=True):
                memory += np.outer(value - memory @ key, key)
        scores = (stored @ memory.T) @ codes.W.T + codes.b
        right += np.sum(scores.argmax(axis=1) == labels)
    return right / (rounds * pairs)


@pytest.mark.parametrize(("kind", "pairs", "keys", "values"), LINEAR_CASES)
def test_linear_attention_recalls_as_predicted(kind, pairs, keys, values):
    predicted = predict(pairs, keys=keys, values=values, codes=kind)
    answers = 16_000 if kind == "hash" else 8000
    assert abs(simulate(kind, pairs, keys, values, answers=answers) - predicted) <= LIMIT


@pytest.mark.parametrize(("pairs", "keys"), DELTA_CASES)
def test_the_delta_rule_with_hash_codes_recalls_as_predicted(pairs, keys):
    predicted = predict(pairs, keys=keys, values=2, codes="hash", rule="delta")
    assert abs(simulate("hash", pairs, keys, 2, "delta", 8000) - predicted) <= LIMIT
    # The newest of a bucket wins: better than linear attention, which loses both.
    assert predicted > predict(pairs, keys=keys, values=2, codes="hash")


@pytest.mark.parametrize(("pairs", "keys", "values"), [(20, 40, 40), (60, 50, 80), (128, 80, 60)])
def test_the_delta_rule_with_dense_codes_is_an_approximation(pairs, keys, values):
    predicted = predict(pairs, keys=keys, values=values, rule="delta")
    # Close to 0.02 where as many pairs as dimensions are stored (docs/recall.md).
    assert abs(simulate("dense", pairs, keys, values, "delta", 4000) - predicted) <= 0.03


def test_caps_are_shares_of_the_sphere():
    rng = np.random.default_rng(0)
    for dimension in (2, 3, 7, 40):
        drawn = rng.normal(size=(100_000, dimension))
        first = drawn[:, 0] / np.linalg.norm(drawn, axis=1)
        for x in (-0.4, 0.0, 0.2, 0.6):
            assert cap(np.array(x), dimension) == pytest.approx(np.mean(first > x), abs=0.006)
    assert list(cap(np.array([-2.0, 0.0, 2.0]), 1)) == [1, 0.5, 0]


# --- codes


@pytest.mark.parametrize("count", [63, 64, 255, 256])
@pytest.mark.parametrize("dimension", [1, 2, 3, 10, 31, 62, 63])
def test_tight_frames_attain_the_welch_floor(count, dimension):
    frame = tight_frame(count, dimension, np.random.default_rng(dimension))
    assert frame.shape == (count, dimension)
    np.testing.assert_allclose(np.sum(frame**2, axis=1), 1, rtol=1e-12)
    floor = welch_floor(count, dimension)
    assert mean_square_crosstalk(frame) == pytest.approx(floor, rel=1e-12, abs=1e-12)


def test_no_keys_and_queries_are_below_the_welch_floor():
    rng = np.random.default_rng(3)
    for count, dimension in ((20, 3), (40, 10), (9, 8)):
        for _ in range(50):
            keys, queries = rng.normal(size=(2, count, dimension))
            assert mean_square_crosstalk(keys, queries) >= welch_floor(count, dimension)
    # A balanced hash collides as often, if buckets are equally large.
    hashed = make_codes("hash", all_keys=60, all_values=4, keys=12, values=2, rng=rng).keys
    assert mean_square_crosstalk(hashed) == pytest.approx(welch_floor(60, 12), rel=1e-12)
    assert welch_floor(12, 12) == 0


def test_predictions_at_the_ends():
    # As many buckets or dimensions as keys: exact.
    assert predict(256, keys=4095, values=2, codes="hash") == 1
    assert predict(256, keys=4095, values=16) == 1
    assert predict(1, keys=2, values=2) == 1
    # More is better.
    for codes, values in (("dense", 48), ("hash", 2)):
        rising = [predict(64, keys=keys, values=values, codes=codes) for keys in (4, 16, 64, 256)]
        assert rising == sorted(rising) and rising[0] < 0.5 < 0.7 < rising[-1]
        falling = [predict(K, keys=32, values=values, codes=codes) for K in (4, 16, 64, 256)]
        assert falling == sorted(falling, reverse=True)


def test_filler_disturbs_dense_codes_and_hardly_hash_codes():
    task, clean = MQAR(64, 256), MQAR(64, 256, random_fill=False)
    assert predict(clean, keys=40, values=64) == predict(64, keys=40, values=64)
    assert predict(task, keys=40, values=64) < predict(clean, keys=40, values=64) - 0.03
    sizes = {"keys": 700, "values": 2, "codes": "hash"}
    assert predict(task, **sizes) == pytest.approx(predict(clean, **sizes), abs=1e-12)


# --- splits


def test_the_best_split_is_best_and_fits():
    for state in (200, 1216, 2240):
        chosen = best(state=state)
        assert chosen.codes == "hash" and chosen.carried <= state < chosen.carried + 3
        assert chosen.carried == chosen.keys * (chosen.values + 1)
        assert chosen.bytes == 4 * chosen.carried
        assert chosen.accuracy == pytest.approx(np.mean(list(chosen.by_pairs.values())))
    # Short codes are bad codes: a wide value wins.
    dense = best(state=2240, codes="dense")
    narrow = divide(2240, 16, "dense", tasks=published_tasks())
    assert dense.accuracy > narrow.accuracy + 0.05
    assert best(state=9000, stacked=True).accuracy == 1


@pytest.mark.parametrize(
    ("words", "call"),
    [
        ("predict … pairs is 0", lambda: predict(0, keys=4, values=4)),
        ("keys is 1 … at least 2", lambda: predict(4, keys=1, values=4)),
        ("keys is 4096 … 4095 keys", lambda: predict(4, keys=4096, values=4)),
        ("values is 2.5", lambda: predict(4, keys=4, values=2.5)),
        (
            "Unknown codes 'sparse' … dense, hash",
            lambda: predict(4, keys=4, values=4, codes="sparse"),
        ),
        ("Unknown rule 'Delta' … 'delta'", lambda: predict(4, keys=4, values=4, rule="Delta")),
        ("best: state is 1 … 3 or more", lambda: uh.recall.best(state=1)),
        ("best: state is -5", lambda: uh.recall.best(state=-5)),
        ("Unknown codes 'random'", lambda: uh.recall.best(state=100, codes="random")),
    ],
)
def test_refusals(words, call, unhooked):
    with refused(words):
        call()
