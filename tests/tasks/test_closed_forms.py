"""Losses and their closed forms are exact."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from task_cases import KEY, TASKS, answers, assert_mean, draw, every_task, losses_of, run_naively
from teachers import attention

import underhood as uh
from underhood.tasks import (
    AssociativeRecall,
    InContextRegression,
    MultiHeadTeacher,
    TeacherStudent,
    gradient_descent_loss,
    optimal_step,
)

pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.parametrize("name", ["teacher-student", "regression"])
def test_squared_losses_are_half_the_mean(name):
    task = TASKS[name]
    shape = (4, task.d_out) if task.reads_last else (4, task.time, task.d_out)
    outputs, targets = jnp.asarray(np.random.default_rng(0).normal(size=(2, *shape)))
    errors = np.asarray(outputs - targets).reshape(4, -1)
    np.testing.assert_allclose(task.losses(outputs, targets), 0.5 * np.mean(errors**2, axis=1))
    np.testing.assert_allclose(task.loss(outputs, targets), 0.5 * np.mean(errors**2))
    scores = task.scores(outputs, targets)
    np.testing.assert_array_equal(scores["loss"], task.losses(outputs, targets))


def test_recall_loss_is_the_cross_entropy():
    task = AssociativeRecall(3)
    outputs, labels = jnp.array([[0.0, 1, 5], [2, 900, -900], [1, 1, 0]]), jnp.array([1, 1, 2])
    probabilities = [math.e / (1 + math.e + math.e**5), 1, 1 / (2 * math.e + 1)]
    np.testing.assert_allclose(task.losses(outputs, labels), -np.log(probabilities), atol=1e-15)
    np.testing.assert_allclose(task.loss(outputs, labels), -np.mean(np.log(probabilities)))
    np.testing.assert_array_equal(task.scores(outputs, labels)["accuracy"], [0, 1, 0])


# --- closed forms: teacher-student


def grid(nodes, weights, variables):
    """The product rule: points [nodes^variables, variables] and their weights."""
    points = np.stack(np.meshgrid(*[nodes] * variables, indexing="ij"), axis=-1)
    masses = np.stack(np.meshgrid(*[weights / weights.sum()] * variables, indexing="ij"), axis=-1)
    return points.reshape(-1, variables), masses.reshape(-1, variables).prod(axis=1)


@st.composite
def small_teachers(draw):
    """Settings of teachers, and lengths, of at most seven input numbers in all."""
    d = draw(st.integers(1, 4))
    length = draw(st.integers(1, 7 // d))
    d_v, d_k = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    seed = draw(st.integers(0, 10**6))
    rng = np.random.default_rng(seed)
    extra = {f"b_{kind}": rng.normal(size=d_v if kind == "V" else d_k) for kind in "VKQ"}
    extra = {name: bias for name, bias in extra.items() if draw(st.booleans())}
    if draw(st.booleans()):
        extra["decay"] = np.append(rng.uniform(size=d_v - 1), draw(st.sampled_from([0.0, 0.6, 1])))
    ranks = [draw(st.integers(0, min(rows, d))) for rows in (d_v, d_k)]
    sizes = {"d_v": d_v, "d_k": d_k, "rank_v": ranks[0], "rank_m": ranks[1]}
    return {"d": d, "seed": seed, **sizes, **extra}, length


@given(small_teachers())
@settings(max_examples=60)
def test_teachers_moments_are_exact(case):
    teacher, length = attention(**case[0]), case[1]
    # Four Gauss–Hermite nodes integrate degree 7, and y² has degree 6 in every variable.
    points, masses = grid(*np.polynomial.hermite_e.hermegauss(4), teacher.d_in * length)
    outputs = run_naively(teacher, points.reshape(-1, length, teacher.d_in))
    means = np.einsum("n,ntv->tv", masses, outputs)
    squares = np.einsum("n,ntv->tv", masses, outputs**2)
    task = TeacherStudent(teacher, length)
    assert task.zero_loss == pytest.approx(np.mean(squares) / 2, rel=1e-11, abs=1e-14)
    rounding = 1e-12 * np.mean(squares)
    assert task.scale == pytest.approx(np.mean(squares - means**2), rel=1e-11, abs=rounding)
    if teacher.b_V is teacher.b_K is teacher.b_Q is None:
        assert task.scale == 2 * task.zero_loss


@pytest.mark.parametrize(("d", "heads", "length"), [(1, 1, 1), (2, 3, 3), (3, 2, 2)])
def test_the_variance_of_several_heads_is_exact(d, heads, length):
    task = MultiHeadTeacher.random(d, heads, length=length, key=KEY)
    points, masses = grid(*np.polynomial.hermite_e.hermegauss(4), d * length)
    outputs = jax.jit(jax.vmap(task.attention))(points.reshape(-1, length, d))
    mean = np.einsum("n,ntv->tv", masses, np.asarray(outputs) ** 2).mean()
    assert task.scale == pytest.approx(mean, rel=1e-11)
    assert task.zero_loss == task.scale / 2 and task.with_length(1).time == 1


@pytest.mark.parametrize(
    "task",
    [
        TeacherStudent(attention(4), 12),
        TeacherStudent(attention(12, rank_v=6, rank_m=6), 8),
        TeacherStudent(attention(3, decay=np.array([0.0, 0.7, 1.0])), 16),
        TeacherStudent(attention(3, b_V=np.ones(3), b_Q=-np.ones(3)), 10),
    ],
    ids=["full rank", "low rank", "decay", "biases"],
)
def test_zero_loss_of_a_teacher_is_what_zero_costs(task):
    assert_mean(losses_of(task, None, batches=3), task.zero_loss, within=0.007)


def test_zero_loss_needs_no_float64():
    narrow = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), TASKS["teacher-student"])
    with jax.enable_x64(False):
        assert narrow.zero_loss == pytest.approx(TASKS["teacher-student"].zero_loss, rel=1e-6)


def test_the_best_attention_of_a_teacher_is_the_teacher():
    for name in ("teacher-student", "a teacher with decay and biases"):
        task = TASKS[name]
        assert task.best_loss == 0.0
        assert losses_of(task, task.best_attention(), batches=1, batch=10).max() <= 1e-25


# --- closed forms: in-context regression


def test_the_papers_numbers():
    task = InContextRegression()
    assert task.variance == 1 / 3
    assert optimal_step(pairs=12, d_x=3) == pytest.approx(1 / 14.8, rel=1e-14)
    assert task.best_loss == pytest.approx(0.09459, abs=1e-5)
    assert task.validation().best_loss == pytest.approx(0.1892, abs=3e-5)
    assert task.zero_loss == 0.5


# Three points with mean 0 and any variance and kurtosis: ±√(σ²κ) with probability 1/(2κ) each.
@given(
    d_x=st.integers(1, 3),
    pairs=st.integers(1, 3),
    kurtosis=st.floats(1, 5),
    input_variance=st.floats(0.1, 3),
    weight_variance=st.floats(0.1, 3),
    step=st.floats(-1, 1),
)
@settings(max_examples=40)
def test_gradient_descent_loss_is_exact(
    d_x, pairs, kurtosis, input_variance, weight_variance, step
):
    far = math.sqrt(input_variance * kurtosis)
    nodes, chances = np.array([-far, 0, far]), np.array([0.5, kurtosis - 1, 0.5]) / kurtosis
    points, masses = grid(nodes, chances, d_x * pairs)
    X = points.reshape(-1, d_x, pairs)
    # One step down ½|Y − WX|² from zero reaches ηYXᵀ, so y − ηYXᵀx = W*(1 − ηXXᵀ)x; one row of
    # W*, and x, have second moments proportional to the identity.
    left = np.eye(d_x) - step * X @ np.swapaxes(X, 1, 2)
    expected = 0.5 * weight_variance * input_variance * masses @ np.sum(left**2, axis=(1, 2))
    sizes = {"pairs": pairs, "d_x": d_x, "input_variance": input_variance, "kurtosis": kurtosis}

    def loss(step):
        return gradient_descent_loss(step, weight_variance=weight_variance, **sizes)

    def slope(at, width=1e-3):
        return (loss(at + width) - loss(at - width)) / (2 * width)

    assert loss(step) == pytest.approx(expected, rel=1e-10)
    best = optimal_step(**sizes)
    assert abs(slope(best)) <= 1e-9 * abs(slope(0.0))


def test_best_attention_takes_one_gradient_step():
    task = TASKS["regression"]
    inputs, _ = draw(task, KEY, 200)
    result = answers(task, task.best_attention(), inputs)
    for tokens, answer in zip(np.asarray(inputs), result, strict=True):
        X, Y, x = tokens[:-1, :3].T, tokens[:-1, 3:].T, tokens[-1, :3]
        W = np.zeros((3, 3))
        W -= optimal_step(pairs=task.pairs, d_x=task.d_x) * (W @ X - Y) @ X.T
        np.testing.assert_allclose(answer, W @ x, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("sizes", [(), (1, 1, 1), (5, 2, 3, 0.4)], ids=str)
def test_regression_losses_are_the_closed_forms(sizes):
    task = InContextRegression(*sizes) if sizes else InContextRegression().validation()
    best = task.best_attention()
    # A step of another size costs what the formula says, which is more.
    doubled = eqx.tree_at(lambda layer: layer.W_V, best, replace_fn=lambda W: 2 * W)
    sizes = {"pairs": task.pairs, "d_x": task.d_x}
    cost = gradient_descent_loss(2 * optimal_step(**sizes), **sizes, weight_variance=task.variance)
    assert cost > task.best_loss
    expected = np.array([task.zero_loss, task.best_loss, cost])
    assert_mean(losses_of(task, None, best, doubled), expected, within=0.012)


@pytest.mark.parametrize("name", [name for name in TASKS if "recall" in name])
def test_the_best_attention_recalls_everything(name):
    task = TASKS[name]
    inputs, targets = draw(task, KEY, 200)
    best = task.best_attention()
    scores = task.scores(answers(task, best, inputs), targets)
    assert np.all(scores["accuracy"] == 1)
    np.testing.assert_allclose(scores["loss"], task.best_loss, rtol=1e-12, atol=1e-14)
    nothing = task.losses(answers(task, None, inputs), targets)
    np.testing.assert_allclose(nothing, task.zero_loss, rtol=1e-12, atol=1e-14)
    sharp = eqx.tree_at(lambda layer: layer.W_V, best, replace_fn=lambda W: 20 * W)
    expected = math.log1p((task.symbols - 1) * math.exp(-20))
    result = task.loss(answers(task, sharp, inputs), targets)
    assert result == pytest.approx(expected, rel=1e-6, abs=1e-14)


@every_task
def test_other_lengths_and_validation_keep_the_task(name):
    task = TASKS[name]
    changed = task.with_length(1)
    sizes = {"length": 1} if isinstance(task, TeacherStudent) else {"pairs": 1}
    kept = {field: value for field, value in vars(task).items() if field not in sizes}
    assert vars(changed) == {**kept, **sizes}
    sampled = jax.eval_shape(lambda key: changed.sample(key, 2), KEY)
    assert sampled.inputs.shape == (2, changed.time, task.d_in)
    with pytest.raises(uh.BadInput):
        task.with_length(0)
    # Only regression validates on another task.
    if isinstance(task, InContextRegression):
        assert vars(task.validation()) == {**vars(task), "variance": 2 * task.variance}
    else:
        assert task.validation() is task
