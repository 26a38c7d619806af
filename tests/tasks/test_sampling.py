"""Samplers draw what their definitions say."""

import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from task_cases import KEY, TASKS, answers, assert_mean, draw, every_task, run_naively

from underhood.tasks import AssociativeRecall, InContextRegression, TeacherStudent

pytestmark = pytest.mark.usefixtures("x64")


@every_task
@pytest.mark.parametrize("wide", [False, True])
def test_shapes_and_types_are_as_announced(name, wide):
    task = TASKS[name]
    recall = isinstance(task, AssociativeRecall)

    def evaluate(key):
        inputs, targets = task.sample(key, 3)
        outputs = answers(task, task.best_attention(), inputs)
        return inputs, targets, outputs, task.scores(outputs, targets)

    with jax.enable_x64(wide):
        inputs, targets, outputs, scores = jax.eval_shape(evaluate, jax.random.key(0))
    assert inputs.shape == (3, task.time, task.d_in)
    assert outputs.shape == ((3, task.d_out) if task.reads_last else (3, task.time, task.d_out))
    assert targets.shape == ((3,) if recall else outputs.shape)
    assert set(scores) == ({"loss", "accuracy"} if recall else {"loss"})
    assert {score.shape for score in scores.values()} == {(3,)}
    floats = np.dtype(np.float64 if wide else np.float32)
    assert {array.dtype for array in (inputs, outputs, *scores.values())} == {floats}
    assert jnp.issubdtype(targets.dtype, jnp.integer) if recall else targets.dtype == floats


@pytest.mark.parametrize(
    "name", ["a teacher with decay and biases", "regression", "recall", "recall between tokens"]
)
def test_the_key_alone_decides(name):
    task = TASKS[name]
    first, again, changed = (task.sample(jax.random.key(n), 200) for n in (1, 1, 2))
    compiled = draw(task, jax.random.key(1), 200)
    for drawn, same, jitted, different in zip(first, again, compiled, changed, strict=True):
        np.testing.assert_array_equal(drawn, same)
        np.testing.assert_allclose(drawn, jitted, rtol=1e-12, atol=1e-12)
        assert not np.array_equal(drawn, different)


@pytest.mark.parametrize("name", ["teacher-student", "regression"])
def test_targets_are_computed_in_full_precision(name):
    # On a GPU the default would round the factors to ten bits, which a CPU cannot show.
    program = str(jax.make_jaxpr(lambda key: TASKS[name].sample(key, 2))(KEY))
    precisions = re.findall(r"dot_general\[[^=]*=[^=]*precision=(.*)", program)
    assert set(precisions) == {"(Precision.HIGHEST, Precision.HIGHEST)"}
    assert len(precisions) == program.count("dot_general[")


def assert_independent(values, *, variance, kurtosis):
    """Draws [n, m] with mean 0, m independent columns, and rows independent of the next."""
    assert_mean(values, 0)
    assert_mean(values**2, variance)
    assert_mean(values.ravel() ** 2, variance, within=0.005)
    assert_mean(values.ravel() ** 4, kurtosis * variance**2, within=0.01)
    left, right = np.triu_indices(values.shape[1], 1)
    assert_mean(values[:, left] * values[:, right], 0)
    # Squares too, so that a common factor would show.
    assert_mean(values[:, left] ** 2 * values[:, right] ** 2, variance**2)
    assert_mean(values[::2] * values[1::2], 0)


def test_teacher_student_draws_independent_normals():
    task = TASKS["teacher-student"]
    inputs = [draw(task, jax.random.key(n), 20_000).inputs for n in (1, 2)]
    # Two keys side by side: draws from different keys are independent as well.
    values = np.concatenate([tokens.reshape(len(tokens), -1)[:, :12] for tokens in inputs], axis=1)
    assert_independent(values, variance=1, kurtosis=3)


@pytest.mark.parametrize("name", ["teacher-student", "a teacher with decay and biases"])
def test_teacher_student_targets_are_the_teachers(name):
    task = TASKS[name]
    inputs, targets = draw(task, KEY, 200)
    expected = run_naively(task.attention, np.asarray(inputs))
    np.testing.assert_allclose(targets, expected, rtol=1e-12, atol=1e-12)


def test_vmapped_teachers_are_the_separate_ones():
    rank = 2
    seeds = [jax.random.key(n) for n in range(3)]
    tasks = [TeacherStudent.random(4, rank, length=6, key=seed) for seed in seeds]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *tasks)
    keys = jax.random.split(KEY, 3)
    batches = jax.jit(jax.vmap(lambda task, key: task.sample(key, 5)))(stacked, keys)
    for n, (task, key) in enumerate(zip(tasks, keys, strict=True)):
        alone = draw(task, key, 5)
        np.testing.assert_array_equal(batches.inputs[n], alone.inputs)
        np.testing.assert_allclose(batches.targets[n], alone.targets, rtol=1e-12, atol=1e-12)
    # Teachers drawn under vmap are those drawn one by one.
    make = jax.jit(jax.vmap(lambda key: TeacherStudent.random(4, rank, length=6, key=key)))
    drawn = make(jnp.stack(seeds))
    for leaf, separate in zip(jax.tree.leaves(drawn), jax.tree.leaves(stacked), strict=True):
        np.testing.assert_allclose(leaf, separate, rtol=1e-12)


@pytest.mark.parametrize("rank", [2, None])
def test_random_teachers_have_the_rank_and_the_variance(rank):
    d = 6
    keys = jax.random.split(KEY, 5000)
    tasks = jax.vmap(lambda key: TeacherStudent.random(d, rank, key=key))(keys)
    W_V, W_K, W_Q = (np.asarray(getattr(tasks.attention, name)) for name in ("W_V", "W_K", "W_Q"))
    M = np.swapaxes(W_K, 1, 2) @ W_Q
    expected = d if rank is None else rank
    for weights in (W_V, M):
        assert weights.shape[1:] == (d, d)
        assert set(np.linalg.matrix_rank(weights[:100])) == {expected}
        assert_mean(weights, 0)
        # Entries are uncorrelated, but those of a product share factors: average them first.
        squares = np.mean(weights**2, axis=(1, 2))
        assert_mean(squares, 1 / d, within=0.01)
    if rank is None:
        assert_mean(np.mean(W_K**2, axis=(1, 2)), 1 / d, within=0.01)
        assert_mean(np.mean(W_Q**2, axis=(1, 2)), 1 / d, within=0.01)


def test_teachers_of_full_rank_of_rank_zero_and_stacked_ones():
    # The full rank need not be named.
    unnamed, named = (TeacherStudent.random(2, rank, key=KEY).attention for rank in (None, 2))
    for leaf, expected in zip(jax.tree.leaves(unnamed), jax.tree.leaves(named), strict=True):
        np.testing.assert_array_equal(leaf, expected)
    # Stacked ones tell their sizes.
    task = TASKS["teacher-student"]
    stacked = jax.tree.map(lambda leaf: np.stack([leaf] * 5), task).with_length(9)
    assert (stacked.d_in, stacked.d_out, stacked.time) == (task.d_in, task.d_out, 9)
    # The teacher of rank zero is zero.
    task = TeacherStudent.random(3, 0, length=5, key=KEY)
    assert not np.any(draw(task, KEY, 2).targets)
    assert task.zero_loss == task.scale == 0.0


@pytest.mark.parametrize(
    "task", [InContextRegression(), InContextRegression(2, 1, 4, 0.7).validation()]
)
def test_regression_draws_a_task_per_sequence(task):
    tokens, targets = (np.asarray(part) for part in draw(task, KEY, 60_000))
    xs, ys = tokens[..., : task.d_x], tokens[..., task.d_x :]
    assert not np.any(ys[:, -1])
    # More pairs than unknowns: W* is what solves them, and it must solve them all.
    squares = np.einsum("nti,ntj->nij", xs[:, :-1], xs[:, :-1])
    products = np.einsum("nti,ntj->nij", ys[:, :-1], xs[:, :-1])
    W = np.swapaxes(np.linalg.solve(squares, np.swapaxes(products, 1, 2)), 1, 2)
    np.testing.assert_allclose(np.einsum("nij,ntj->nti", W, xs)[:, :-1], ys[:, :-1], atol=1e-7)
    np.testing.assert_allclose(np.einsum("nij,nj->ni", W, xs[:, -1]), targets, atol=1e-6)
    # The first two tokens and the query stand for all.
    drawn = xs[:, [0, 1, -1]].reshape(len(xs), -1)
    assert_independent(drawn, variance=1, kurtosis=9 / 5)
    assert 1.999 * math.sqrt(3) < np.ptp(drawn) <= 2 * math.sqrt(3)
    assert_independent(W.reshape(len(W), -1), variance=task.variance, kurtosis=3)
    assert_mean(drawn[:, :1] * W.reshape(len(W), -1), 0)
    # The same key used twice would give both the same numbers, in the order they are drawn in.
    assert_mean(xs.ravel()[: W.size] * W.ravel(), 0)


def test_mirrored_regression_draws_each_sequence_with_its_mirror_image():
    task = InContextRegression(mirrored=True)
    for batch in (1, 6, 7):
        tokens, targets = (np.asarray(part) for part in draw(task, KEY, batch))
        assert len(tokens) == len(targets) == batch
        half, rest = -(-batch // 2), batch // 2
        np.testing.assert_array_equal(tokens[half:, :, :3], tokens[:rest, :, :3])
        np.testing.assert_array_equal(tokens[half:, :, 3:], -tokens[:rest, :, 3:])
        np.testing.assert_array_equal(targets[half:], -targets[:rest])
    plain = draw(InContextRegression(), KEY, 3)
    np.testing.assert_array_equal(np.asarray(draw(task, KEY, 6).inputs)[:3], plain.inputs)
    assert task.validation().mirrored and task.with_length(5).mirrored


def read(one_hot):
    """The symbol of a one-hot code, None for zeros; refuses anything else."""
    if not np.any(one_hot):
        return None
    (symbol,) = np.flatnonzero(one_hot)
    assert one_hot[symbol] == 1
    return int(symbol)


@pytest.mark.parametrize("name", [name for name in TASKS if "recall" in name])
def test_recall_sequences_are_as_defined(name):
    task = TASKS[name]
    slot = task.d_in // 2
    inputs, targets = (np.asarray(part) for part in draw(task, KEY, 200))
    for tokens, target in zip(inputs, targets, strict=True):
        *shown, query = [(read(token[:slot]), read(token[slot:])) for token in tokens]
        pairs = shown[::2] if task.between_tokens else shown
        first_y = task.symbols if task.between_tokens else 0
        xs, ys = [x for x, _ in pairs], [y - first_y for _, y in pairs]
        assert len(pairs) == len(set(xs)) == len(set(ys)) == task.pairs
        assert {*xs, *ys} <= set(range(task.symbols))
        if task.between_tokens:
            ends = itertools.pairwise(pairs)
            assert shown[1::2] == [(y, x) for (_, y), (x, _) in ends]
        x, nothing = query
        assert nothing is None
        assert ys[xs.index(x)] == target


def test_recall_draws_uniformly():
    task, batch = AssociativeRecall(4, pairs=3), 40_000
    inputs = np.asarray(draw(task, KEY, batch).inputs)
    xs, ys = inputs[:, :3, :4].argmax(-1), inputs[:, :3, 4:].argmax(-1)
    asked = np.argmax(xs == inputs[:, -1, :4].argmax(-1)[:, None], axis=1)
    code = np.array([16, 4, 1])

    def assert_uniform(events, count):
        seen, times = np.unique(events, return_counts=True)
        assert len(seen) == count
        # χ² has mean count − 1 and variance 2(count − 1).
        excess = np.sum((times - batch / count) ** 2) / (batch / count) - (count - 1)
        assert abs(excess) <= 5 * math.sqrt(2 * count)

    assert_uniform(xs @ code, 24)
    # Which y go with which x, and which is asked for, are independent of all else.
    assert_uniform((xs @ code) * 64 + ys @ code, 24 * 24)
    assert_uniform((xs @ code) * 3 + asked, 24 * 3)
    assert_uniform((ys @ code) * 3 + asked, 24 * 3)
