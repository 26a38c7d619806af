"""MQAR: what Zoology's generator promises holds for ours, and students train on it."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refused
from scipy import stats
from task_cases import answers, draw

import underhood as uh
from underhood.tasks import MQAR, PUBLISHED_TEST, PUBLISHED_TRAINING
from underhood.tasks.mqar import EMPTY, NOT_SCORED

KEY = jax.random.key(5)
CASES = {
    "published": MQAR(8, 64),
    "every slot asks": MQAR(16, 64, 512),
    "zeros as filler": MQAR(4, 40, 64, random_fill=False),
    "uniform slots": MQAR(3, 30, 32, power_a=1.0),
    "all keys": MQAR(7, 28, 16),
}
STACKED = {
    "stacked": MQAR(6, 12, 64, stacked=True),
    "two passes": MQAR(5, 15, 32, stacked=True),
    "all keys": MQAR(8, 16, 16, stacked=True),
}


@eqx.filter_jit
def draw_symbols(task, batch):
    return task.draw(KEY, batch)


def drawn(task, batch=300):
    return (np.asarray(part) for part in draw_symbols(task, batch))


@pytest.mark.parametrize("name", CASES)
def test_token_by_token_every_key_is_asked_once_and_scored_where_it_is_asked(name):
    task = CASES[name]
    symbols, labels = drawn(task)
    context = 2 * task.pairs
    keys, values = symbols[:, :context:2], symbols[:, 1:context:2]
    assert symbols.shape == labels.shape == (300, task.length)
    assert keys.min() >= 1 and keys.max() < task.half <= values.min() and values.max() < task.vocab
    for sequence in range(300):
        assert len(set(keys[sequence])) == len(set(values[sequence])) == task.pairs
        scored = np.flatnonzero(labels[sequence] != NOT_SCORED)
        assert len(scored) == task.pairs
        assert np.all(scored >= context) and not np.any((scored - context) % 2)
        pairs = dict(zip(keys[sequence], values[sequence], strict=True))
        asked = {symbols[sequence, t]: labels[sequence, t] for t in scored}
        assert asked == pairs


def test_all_symbols_occur_and_pairs_are_uniform():
    task, batch = MQAR(2, 8, 16), 20_000
    symbols, _ = drawn(task, batch)
    for place, first, count in ((0, 1, 7), (2, 1, 7), (1, 8, 8), (3, 8, 8)):
        seen, times = np.unique(symbols[:, place], return_counts=True)
        assert list(seen) == list(range(first, first + count))
        assert stats.chisquare(times).pvalue > 1e-4
    # Which value goes with which key is independent of the key.
    table = np.zeros((7, 8))
    np.add.at(table, (symbols[:, 0] - 1, symbols[:, 1] - 8), 1)
    assert stats.chi2_contingency(table).pvalue > 1e-4


@pytest.mark.parametrize("power_a", [0.01, 0.5, 1.0])
def test_slots_follow_the_power_law_without_replacement(power_a):
    task, batch = MQAR(2, 16, 64, power_a=power_a), 40_000
    symbols, labels = drawn(task, batch)
    weights = np.arange(1, task.slots + 1) ** (power_a - 1)
    law = weights / weights.sum()
    # Slot of the first key, then of the second: p_i, then p_j / (1 − p_i).
    slots = np.zeros((batch, 2), int)
    for pair in range(2):
        asked = (symbols == symbols[:, 2 * pair, None]) & (labels != NOT_SCORED)
        slots[:, pair] = (asked.argmax(1) - 4) // 2
    expected = law[:, None] * law / (1 - law[:, None])
    np.fill_diagonal(expected, 0)
    counts = np.zeros_like(expected)
    np.add.at(counts, tuple(slots.T), 1)
    assert not np.any(np.diag(counts))
    apart = ~np.eye(task.slots, dtype=bool)
    assert expected.sum() == pytest.approx(1)
    assert stats.chisquare(counts[apart], batch * expected[apart]).pvalue > 1e-4
    # A law that is only a little different is told apart.
    other = (np.arange(1, task.slots + 1) + 0.5) ** (power_a - 1.3)
    wrong = other[:, None] * other / other.sum() / (other.sum() - other[:, None])
    assert stats.chisquare(counts[apart], batch * wrong[apart]).pvalue < 1e-9


def test_filler_is_uniform_over_the_whole_vocabulary_or_zero():
    for random_fill in (True, False):
        task = MQAR(2, 20, 16, random_fill=random_fill)
        symbols, labels = drawn(task, 5000)
        filler = symbols[:, 4:][labels[:, 4:] == NOT_SCORED]
        assert filler.size == 5000 * (20 - 4 - 2)
        seen, times = np.unique(filler, return_counts=True)
        assert list(seen) == (list(range(16)) if random_fill else [0])
        assert not random_fill or stats.chisquare(times).pvalue > 1e-4


@pytest.mark.parametrize("name", STACKED)
def test_stacked_pairs_come_first_and_queries_last(name):
    task = STACKED[name]
    symbols, labels = drawn(task)
    K, shown = task.pairs, task.passes * task.pairs
    assert symbols.shape == (300, task.length, 2)
    assert np.all(labels[:, :shown] == NOT_SCORED) and np.all(symbols[:, shown:, 1] == EMPTY)
    for tokens, answer in zip(symbols, labels, strict=True):
        pairs = dict(tokens[:K].tolist())
        assert len(pairs) == len(set(pairs.values())) == K
        assert set(pairs) | set(pairs.values()) <= set(range(task.half))
        for part in range(task.passes):
            assert dict(tokens[part * K : (part + 1) * K].tolist()) == pairs
        assert dict(zip(tokens[shown:, 0], answer[shown:], strict=True)) == pairs
    # Orders are fresh: the queries rarely come in the order of the pairs.
    assert np.mean(np.all(symbols[:, :K, 0] == symbols[:, shown:, 0], axis=1)) < 0.1


@pytest.mark.parametrize("task", [*CASES.values(), *STACKED.values()], ids=[*CASES, *STACKED])
def test_tokens_are_one_hot_and_the_metric_counts_answers(task):
    symbols, labels = draw_symbols(task, 4)
    inputs, targets = draw(task, KEY, 4)
    assert inputs.shape == (4, task.time, task.d_in)
    np.testing.assert_array_equal(labels, targets)
    halves = (inputs,) if not task.stacked else (inputs[..., : task.half], inputs[..., task.half :])
    for side, half in enumerate(halves):
        code = symbols[..., side] if task.stacked else symbols
        np.testing.assert_array_equal(half.sum(-1), code != EMPTY)
        np.testing.assert_array_equal(
            np.where(code == EMPTY, 0, half.argmax(-1)), code * (code >= 0)
        )
    # Right, and wrong at the first answer of every sequence.
    targets = np.asarray(targets)
    outputs = 9 * np.eye(task.d_out, dtype=np.float32)[np.maximum(targets, 0)]
    spoiled = outputs.copy()
    spoiled[np.arange(4), np.argmax(targets != NOT_SCORED, axis=1)] *= -1
    # What is said elsewhere does not count.
    noise = np.where((targets == NOT_SCORED)[..., None], np.float32(7 * inputs.sum()), spoiled)
    scores = jax.jit(task.scores)
    right, wrong, same = (scores(each, targets) for each in (outputs, spoiled, noise))
    each = math.log1p((task.d_out - 1) * math.exp(-9))
    np.testing.assert_allclose(right["loss"], each, rtol=1e-3)
    np.testing.assert_allclose(right["accuracy"], 1)
    np.testing.assert_allclose(wrong["accuracy"], 1 - 1 / task.pairs, rtol=1e-6)
    np.testing.assert_allclose(same["loss"], wrong["loss"], rtol=1e-6)
    zeros = task.losses(jnp.zeros(outputs.shape), jnp.asarray(targets))
    np.testing.assert_allclose(zeros, task.zero_loss, rtol=1e-6)


@pytest.mark.parametrize("task", [*CASES.values(), *STACKED.values()], ids=[*CASES, *STACKED])
def test_the_best_attention_has_the_best_loss(task):
    if task.vocab > 1000:
        task = MQAR(task.pairs, task.length, 128, stacked=task.stacked)
    inputs, targets = draw(task, KEY, 8)
    scores = task.scores(answers(task, task.best_attention(), inputs), targets)
    np.testing.assert_allclose(scores["loss"], task.best_loss, rtol=1e-5)
    assert not task.stacked or np.all(scores["accuracy"] == 1)


def test_the_published_sets():
    assert [(each.pairs, each.length) for each in PUBLISHED_TEST] == [
        *((4, 64), (8, 64), (16, 64), (32, 128), (64, 256), (128, 512), (256, 1024))
    ]
    assert [tuple(each) for each in PUBLISHED_TRAINING] == [
        *((4, 64, 100_000), (8, 128, 20_000)),
        *((16, 256, 20_000), (32, 256, 20_000), (64, 256, 20_000)),
    ]
    assert {each.sequences for each in PUBLISHED_TEST} == {1000}
    for each in (*PUBLISHED_TEST, *PUBLISHED_TRAINING):
        assert MQAR(each.pairs, each.length).vocab == 8192


def test_students_train_on_it():
    task = MQAR(2, 4, 8, stacked=True)
    recipe = uh.Recipe.fast(steps=300)

    def make_student(width, *, key):
        return uh.SideGatedRNN.init(d_in=task.d_in, hidden=width, d_out=task.d_out, key=key)

    run = uh.train(make_student, task, recipe, seeds=1, widths=(32,), key=jax.random.key(0))
    (row,) = run.members.to_dict("records")
    assert row["loss"] < 0.5 * task.zero_loss
    assert row["accuracy"] > 0.6


@pytest.mark.parametrize(
    ("words", "make"),
    [
        ("MQAR … pairs is 0 … length is 2.5", lambda: MQAR(0, 2.5)),
        ("length is 30 … at least 4·pairs = 32", lambda: MQAR(8, 30)),
        ("length is 33 … even", lambda: MQAR(8, 33)),
        ("multiple of pairs = 8 from 16", lambda: MQAR(8, 8, stacked=True)),
        ("multiple of pairs = 8", lambda: MQAR(8, 20, stacked=True)),
        ("vocab is 9 … even", lambda: MQAR(2, 8, 9)),
        ("vocab is 2 … at least 4", lambda: MQAR(1, 8, 2)),
        ("pairs is 8 … 7 keys", lambda: MQAR(8, 32, 16)),
        ("power_a is 0 … above 0", lambda: MQAR(2, 8, power_a=0)),
        ("stacked is 1 … True or False", lambda: MQAR(2, 8, stacked=1)),
        (
            "(2, 8) … [2, 8, 16]",
            lambda: MQAR(2, 8, 16).loss(jnp.ones((2, 8)), jnp.ones((2, 8), int)),
        ),
    ],
)
def test_refusals(words, make, unhooked):
    with refused(words):
        make()
