"""The exact population loss: its moments, its closed forms, and what sequences cost on average."""

import math

import jax
import numpy as np
import pytest
from refusals import every_refusal
from task_cases import KEY, draw, losses_of
from teachers import attention, random_gated, random_side

import underhood as uh
from underhood.analysis.forms.norms import size
from underhood.analysis.forms.quadratic import products, quadratic_form
from underhood.tasks import (
    AssociativeRecall,
    InContextRegression,
    TeacherStudent,
    gradient_descent_loss,
    optimal_step,
)
from underhood.tasks.population import population

pytestmark = pytest.mark.usefixtures("x64")

BIASED = {"b_V": np.array([0.5, -1]), "b_K": np.ones(2), "b_Q": -np.ones(2)}
TEACHERS = {
    "plain": TeacherStudent(attention(3, d_v=2, d_k=4), 6),
    "low rank": TeacherStudent(attention(4, rank_v=1, rank_m=2), 12),
    "biases and decay": TeacherStudent(attention(2, **BIASED, decay=np.array([0.0, 1.0])), 5),
    "one token": TeacherStudent(attention(2, d_v=3, d_k=1), 1),
    "two tokens": TeacherStudent(attention(1), 2),
    "many tokens": TeacherStudent(attention(2), 300),
}
SIZES = [(1, 1, 1), (1, 3, 2), (2, 1, 1), (2, 2, 4), (3, 1, 5), (3, 2, 1), (3, 3, 12)]
LAYERS = {
    "gated": lambda rng, task: random_gated(rng, task.d_in, 6, 5, task.d_out, [0.0, 1.0]),
    "side-gated": lambda rng, task: random_side(rng, task.d_in, 6, task.d_out, [0.0, 1.0]),
    "integrators": lambda rng, task: random_gated(rng, task.d_in, 4, 5, task.d_out, [1.0]),
    "no memory": lambda rng, task: random_gated(rng, task.d_in, 4, 5, task.d_out, [0.0]),
}
every_teacher = pytest.mark.parametrize("name", TEACHERS)
every_layer = pytest.mark.parametrize("kind", LAYERS)


def loss_of_form(exact, form):
    """The loss of a quadratic form with decays 0 and 1, through the products of its states."""
    features = exact.features(form.reads, form.decay)
    i, j = np.triu_indices(form.neurons)
    kernels = np.where(i == j, 1, 2) * form.kernels[:, i, j]
    return exact.loss_at(features @ kernels.T)


def memories(xs):
    """u [..., time, 2·entries] of sequences [..., time, d_in], by its definition."""
    v = products(xs)
    return np.concatenate([np.cumsum(v, axis=-2), v], axis=-1)


def pairwise(u):
    """φ [..., products]."""
    a, b = np.triu_indices(u.shape[-1])
    return u[..., a] * u[..., b]


def assert_sampled(samples, expected):
    """The mean of the samples is within four standard errors, and these are below 5%."""
    error = np.std(samples) / math.sqrt(len(samples))
    assert error <= 0.05 * expected
    assert abs(np.mean(samples) - expected) <= 4 * error


# --- every moment


def product_rule(*rules):
    """Points [many, variables] and their masses, from the nodes and weights of each variable."""
    nodes, weights = zip(*rules, strict=True)
    points = np.stack(np.meshgrid(*nodes, indexing="ij"), axis=-1).reshape(-1, len(rules))
    masses = np.stack(np.meshgrid(*weights, indexing="ij"), axis=-1).reshape(-1, len(rules))
    return points, masses.prod(axis=1) / np.prod([np.sum(weight) for weight in weights])


# Five nodes integrate degree 9, and φφᵀ has degree 8 in every variable.
NORMAL_RULE = np.polynomial.hermite_e.hermegauss(5)
UNIFORM_RULE = np.polynomial.legendre.leggauss(5)
UNIFORM_RULE = (math.sqrt(3) * UNIFORM_RULE[0], UNIFORM_RULE[1])


def assert_moments(exact, phi, targets, masses):
    """Every entry of E[φφᵀ] and of E[φ target], and E[target²], from all points of a rule."""
    weighted = masses[:, None] * phi
    expected = phi.T @ weighted
    scale = np.sqrt(np.diag(expected))
    bound = 1e-13 * np.outer(scale, scale) + 1e-300
    assert np.all(np.abs(exact.rows.T @ exact.rows - expected) <= bound)
    along = weighted.T @ targets
    sizes = np.sqrt(masses @ targets**2)
    assert np.all(np.abs(exact.rows.T @ exact.targets - along) <= 1e-13 * np.outer(scale, sizes))
    in_range = np.sum(exact.targets**2) / (2 * targets.shape[1])
    assert in_range + exact.floor == pytest.approx(np.mean(sizes**2) / 2, rel=1e-13)


@pytest.mark.parametrize(("d", "length"), [(1, 1), (1, 2), (1, 5), (2, 2), (4, 1)])
def test_every_moment_of_normal_tokens(d, length):
    task = TeacherStudent(attention(d), length)
    points, masses = product_rule(*[NORMAL_RULE] * (d * length))
    xs = points.reshape(-1, length, d)
    targets = quadratic_form(task.attention)(xs)
    phi = pairwise(memories(xs))
    phi, targets = phi.reshape(-1, phi.shape[-1]), targets.reshape(-1, d)
    assert_moments(population(task), phi, targets, np.repeat(masses, length) / length)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 1, 3), (1, 2, 2), (1, 3, 1), (2, 1, 1)], ids=str)
def test_every_moment_of_regression(sizes):
    task = InContextRegression(*sizes, variance=0.7)
    d_x, d_y, pairs = sizes
    rules = [UNIFORM_RULE] * (d_x * (pairs + 1)) + [NORMAL_RULE] * (d_x * d_y)
    points, masses = product_rule(*rules)
    xs, W = np.split(points, [d_x * (pairs + 1)], axis=1)
    xs, W = xs.reshape(-1, pairs + 1, d_x), math.sqrt(task.variance) * W.reshape(-1, d_y, d_x)
    ys = np.einsum("nij,ntj->nti", W, xs)
    targets = ys[:, -1].copy()
    ys[:, -1] = 0
    phi = pairwise(memories(np.concatenate([xs, ys], axis=-1))[:, -1])
    assert_moments(population(task), phi, targets, masses)


# --- closed forms


@every_teacher
def test_a_teacher_costs_nothing_and_zero_costs_the_closed_form(name):
    task = TEACHERS[name]
    exact = population(task)
    assert exact.floor == 0
    assert loss_of_form(exact, quadratic_form(task.attention)) <= 1e-12 * task.zero_loss
    assert exact.loss_at(0 * exact.targets) == pytest.approx(task.zero_loss, rel=1e-12)
    best = np.linalg.lstsq(exact.rows, exact.targets, rcond=None)[0]
    assert exact.loss(best) <= 1e-20 * task.zero_loss


@every_teacher
@every_layer
def test_losses_are_sizes_of_differences(name, kind):
    task = TEACHERS[name]
    exact = population(task)
    student = quadratic_form(LAYERS[kind](np.random.default_rng(1), task))
    expected = size(student - quadratic_form(task.attention), time=task.length) ** 2 / 2
    assert loss_of_form(exact, student) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_regression_has_the_closed_forms(sizes):
    task = InContextRegression(*sizes)
    exact = population(task)
    assert exact.loss_at(0 * exact.targets) == pytest.approx(task.zero_loss, rel=1e-13)
    known = {"pairs": task.pairs, "d_x": task.d_x}
    for factor in (-1.0, 0.3, 1.0, 2.5):
        step = factor * optimal_step(**known)
        reads_x, reads_y = np.split(np.eye(task.d_in), [task.d_x])
        form = quadratic_form(uh.LinearAttention(step * reads_y, reads_x, reads_x))
        expected = gradient_descent_loss(step, weight_variance=task.variance, **known)
        assert loss_of_form(exact, form) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_no_network_beats_one_gradient_step(sizes):
    task = InContextRegression(*sizes).validation()
    exact = population(task)
    best = np.linalg.lstsq(exact.rows, exact.targets, rcond=None)[0]
    assert exact.loss(best) == pytest.approx(task.best_loss, rel=1e-12)
    assert exact.floor == pytest.approx(task.best_loss, rel=1e-12)


def test_the_papers_floor():
    exact = population(InContextRegression())
    assert exact.floor == pytest.approx(7 / 74, rel=1e-13)
    assert exact.rows.shape == (683, 1596) and exact.targets.shape == (683, 3)
    # Mirrored sequences have the same distribution.
    assert population(InContextRegression(mirrored=True)).floor == exact.floor


# --- sampling


@pytest.mark.parametrize("task", [TEACHERS["biases and decay"], InContextRegression(2, 2, 4)])
def test_any_coefficients_cost_what_sequences_cost(task):
    exact = population(task)
    rng = np.random.default_rng(0)
    B = rng.normal(size=(task.d_out, 2 * exact.entries, 2 * exact.entries))
    a, b = np.triu_indices(2 * exact.entries)
    coefficients = np.where(a == b, B[:, a, b], B[:, a, b] + B[:, b, a]).T
    inputs, targets = (np.asarray(part) for part in draw(task, KEY, 20_000))
    u = memories(inputs)[:, -1:] if task.reads_last else memories(inputs)
    outputs = np.stack([np.sum((u @ form) * u, axis=-1) for form in B], axis=-1)
    losses = np.mean((outputs - targets.reshape(outputs.shape)) ** 2, axis=(1, 2)) / 2
    assert_sampled(losses, exact.loss(coefficients))


@pytest.mark.parametrize("task", [TEACHERS["plain"], InContextRegression(pairs=5)])
@pytest.mark.parametrize("kind", ["gated", "side-gated"])
def test_networks_cost_what_sequences_cost(task, kind):
    layer = LAYERS[kind](np.random.default_rng(2), task)
    expected = loss_of_form(population(task), quadratic_form(layer))
    assert_sampled(losses_of(task, layer, batches=2)[:, 0], expected)


# --- products and refusals


def test_products_are_bilinear_and_features_are_products():
    exact = population(InContextRegression(2, 1, 3))
    rng = np.random.default_rng(0)
    first, second, change = rng.normal(size=(3, 7, 2 * exact.entries))
    both = exact.products(first, second)
    np.testing.assert_allclose(both, exact.products(second, first), rtol=1e-12, atol=1e-10)
    moved = exact.products(first + change, second)
    np.testing.assert_allclose(moved, both + exact.products(change, second), atol=1e-10)
    a, b = np.triu_indices(2 * exact.entries)
    coefficients = first[:, a] * second[:, b] + first[:, b] * second[:, a]
    coefficients[:, a == b] /= 2
    np.testing.assert_allclose(both, exact.rows @ coefficients.T, atol=1e-10)
    # h_0 = q_0·m and h_1 = q_1·v.
    reads, nothing = rng.normal(size=(2, exact.entries)), np.zeros(exact.entries)
    states = np.stack([np.append(reads[0], nothing), np.append(nothing, reads[1])])
    expected = exact.products(states[[0, 0, 1]], states[[0, 1, 1]])
    np.testing.assert_array_equal(exact.features(reads, np.array([1.0, 0.0])), expected)


HEAD = attention(2)
STACKED = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), TeacherStudent(HEAD))
REFUSED = {
    "AssociativeRecall … TeacherStudent … InContextRegression": lambda: population(
        AssociativeRecall(3)
    ),
    "9 inputs … at most 8": lambda: population(TeacherStudent(attention(9))),
    "10 inputs … at most 8": lambda: population(InContextRegression(5, 5)),
    "teacher … decay of 0.9 … 0 or 1": lambda: population(
        TeacherStudent(attention(2, decay=np.array([1.0, 0.9])))
    ),
    "2 stacked … vmap": lambda: population(STACKED),
    "network … decay of 0.5 … 0 or 1": lambda: population(TeacherStudent(HEAD, 3)).features(
        np.ones((1, 6)), np.array([0.5])
    ),
    "(2, 5) … [2, 6]": lambda: population(TeacherStudent(HEAD, 3)).features(
        np.ones((2, 5)), np.ones(2)
    ),
    "(72, 1) … [72, 2]": lambda: population(TeacherStudent(HEAD, 3)).loss(np.ones((78, 1))),
}

test_bad_input_is_refused_in_one_line = every_refusal(REFUSED)
