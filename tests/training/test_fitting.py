"""Second-order training finds what it is asked for, or says that it did not."""

import signal
from dataclasses import replace

import equinox as eqx
import jax
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from refusals import refused
from teachers import attention

import underhood as uh
from underhood.analysis.forms.quadratic import quadratic_form
from underhood.common.linear_algebra import symmetric_products, symmetric_reads
from underhood.tasks.population import population
from underhood.training.second_order.condensing import (
    condense,
    crossed_network,
    nearest_products,
    spanning_products,
)
from underhood.training.second_order.examples import AllSequences, sample
from underhood.training.second_order.minimising import fit_linear, minimise
from underhood.training.second_order.separable import SeparableNetwork
from underhood.training.second_order.stages import Stage, finish_condensed

pytestmark = pytest.mark.usefixtures("x64")

LENGTH = 12


def gated(d_in: int, d_out: int | None = None):
    def student(width, *, key):
        sizes = {"d_in": d_in, "d_out": d_out or d_in, "gated": width}
        return uh.GatedRNN.init(hidden=width, **sizes, key=key)

    return student


def side_gated(d_in: int, d_out: int | None = None):
    sizes = {"d_in": d_in, "d_out": d_out or d_in}
    return lambda width, *, key: uh.SideGatedRNN.init(hidden=width, **sizes, key=key)


def teacher_task(d: int, rank: int | None = None, seed: int = 0, length: int = LENGTH):
    return uh.tasks.TeacherStudent.random(d, rank, length=length, key=jax.random.key(seed))


def fresh_loss(model, task) -> float:
    inputs, targets = task.sample(jax.random.key(99), 64)
    outputs = jax.vmap(model)(inputs)
    return float(task.loss(outputs[:, -1] if task.reads_last else outputs, targets))


def random_network(side: bool, seed: int, n: int = 4, d: int = 2) -> SeparableNetwork:
    maker = side_gated(d) if side else gated(d)
    network = SeparableNetwork.of(maker(n, key=jax.random.key(seed)))
    decay = np.arange(n) % 2.0
    return replace(network, decay=decay, free=np.zeros(n, bool))


# --- Rows, ranges, condensing


@pytest.mark.parametrize("side", [False, True])
@pytest.mark.parametrize("regression", [False, True])
def test_all_sequences_are_the_limit_of_many(side, regression) -> None:
    task = uh.tasks.InContextRegression(1, 1, pairs=3) if regression else teacher_task(2, length=3)
    network = random_network(side, 0)
    if regression:
        network = replace(network, linear=network.linear[:1])
    everything, drawn = AllSequences(population(task)), sample(task, jax.random.key(1), 40_000)

    def loss_and_slope(examples):
        residual = examples.features(network) @ network.linear.T - examples.targets
        count = residual.size if examples is drawn else task.d_out
        blocks = examples.derivatives(network)
        slope = sum(block.T @ r for block, r in zip(blocks, residual.T, strict=True))
        return 0.5 * np.sum(residual**2) / count, slope / count

    exact, exact_slope = loss_and_slope(everything)
    loss, slope = loss_and_slope(drawn)
    assert loss == pytest.approx(exact + everything.population.floor, rel=0.1)
    np.testing.assert_allclose(slope, exact_slope, atol=0.15 * np.abs(exact_slope).max())


@settings(max_examples=10)
@given(side=st.booleans(), seed=st.integers(0, 99))
def test_derivatives_over_all_sequences_are_finite_differences(side, seed) -> None:
    examples = AllSequences(population(teacher_task(2, length=3)))
    network = random_network(side, seed)
    result, step = examples.derivatives(network), 1e-5
    for place in range(result[0].shape[1]):
        by = step * np.eye(result[0].shape[1])[place]
        ends = [examples.features(network.moved(way * by)) @ network.linear.T for way in (1, -1)]
        slope = (ends[0] - ends[1]) / (2 * step)
        for o, block in enumerate(result):
            np.testing.assert_allclose(block[:, place], slope[:, o], atol=1e-7)


@pytest.mark.parametrize("side", [False, True])
def test_fast_and_exact_ranges_agree(side) -> None:
    task = teacher_task(2)
    network, data = random_network(side, 1), sample(task, jax.random.key(0), 16, 5)
    fast, exact = (fit_linear(network, data, exact=exact) for exact in (False, True))
    np.testing.assert_allclose(fast.network.linear, exact.network.linear, rtol=1e-8)
    blocks = data.derivatives(network)
    for one_range in (fast.range, exact.range):
        for block, outside in zip(blocks, one_range.outside(blocks), strict=True):
            np.testing.assert_allclose(
                one_range.normal(outside),
                exact.range.rest(block).T @ exact.range.rest(block),
                atol=1e-9 * np.abs(block.T @ block).max(),
            )


def test_picked_tokens_are_those_of_their_sequences() -> None:
    task, network = teacher_task(2), random_network(False, 2)
    data = sample(task, jax.random.key(0), 6, 4)
    assert data.targets.shape == (24, 2) and len(np.unique(data.picked)) == 24
    outputs = jax.vmap(network.model())(data.tokens).reshape(-1, 2)[data.picked]
    np.testing.assert_allclose(data.features(network) @ network.linear.T, outputs, atol=1e-10)
    targets = jax.vmap(task.attention)(data.tokens).reshape(-1, 2)[data.picked]
    np.testing.assert_allclose(data.targets, targets, atol=1e-12)
    few = data.first(2)
    np.testing.assert_array_equal(few.targets, data.targets[:8])
    np.testing.assert_array_equal(few.features(network), data.features(network)[:8])


def test_a_product_is_its_own_nearest_product() -> None:
    rng = np.random.default_rng(0)
    reads = symmetric_products(*rng.normal(size=(2, 5, 3)))
    nearest = nearest_products(symmetric_reads(reads, 3))
    np.testing.assert_allclose(symmetric_products(*nearest), reads, atol=1e-12)


def test_products_are_found_in_a_space_that_has_few() -> None:
    rng = np.random.default_rng(1)
    # sym(a bᵀ) for a and b in two planes: no member of a random basis is a product.
    planes = rng.normal(size=(2, 2, 4))
    pairs = [(a, b) for a in planes[0] for b in planes[1]]
    reads = symmetric_products(*np.array(pairs).swapaxes(0, 1))
    space = np.linalg.qr((rng.normal(size=(4, 4)) @ reads).T)[0].T
    spanned = symmetric_products(*spanning_products(space, 4, 1e-9))
    np.testing.assert_allclose(spanned @ space.T @ space, spanned, atol=1e-6)
    assert np.linalg.matrix_rank(spanned, tol=1e-3) == 4


def test_kernels_between_memory_and_the_rest_are_the_others_with_zeros() -> None:
    task, whole = teacher_task(2), random_network(False, 3)
    crossed = crossed_network(whole.W_m, whole.W_x, whole.decay, 2)
    data = sample(task, jax.random.key(0), 30, 5)
    crossed = fit_linear(crossed, data).network
    rows, columns = np.triu_indices(4)
    full = replace(whole, linear=crossed.kernels[:, rows, columns])
    outputs = data.features(full) @ full.linear.T
    np.testing.assert_allclose(data.features(crossed) @ crossed.linear.T, outputs, atol=1e-10)
    for left, right in zip(data.derivatives(crossed), data.derivatives(full), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-10)
    kept = np.array([True, True, False, True])
    np.testing.assert_allclose(crossed.keep(kept).kernels, full.keep(kept).kernels)


@pytest.mark.parametrize("d", [2, 3])
def test_surplus_neurons_are_left_out(d) -> None:
    rnn = uh.compile(attention(d, 0)).layer
    # Query neurons twice, and each pair reads half.
    network = SeparableNetwork.of(rnn)
    query = np.flatnonzero(network.decay == 0)
    order = np.append(np.arange(rnn.neurons), query)
    weights = np.where(np.isin(order, query), 0.5, 1.0)
    kernels = network.kernels[:, order][:, :, order] * weights[:, None] * weights
    rows, columns = np.triu_indices(len(order))
    doubled = SeparableNetwork(
        network.W_m[order],
        network.W_x[order],
        network.decay[order],
        network.free[order],
        kernels[:, rows, columns],
    )
    smaller = condense(doubled, noise=1e-10)
    assert smaller is not None and len(smaller.decay) == rnn.neurons
    data = sample(uh.tasks.TeacherStudent(attention(d, 0), LENGTH), jax.random.key(0), 40)
    assert fit_linear(smaller, data).cost < 1e-20 * np.mean(data.targets**2)
    assert condense(SeparableNetwork.of(rnn), noise=1e-10) is None


# --- What is found


def nearly_singular_task(weakest: float) -> uh.tasks.TeacherStudent:
    """A teacher with d = 3, W_V = I and M = diag(1, 0.5, weakest)."""
    M = np.diag([1.0, 0.5, weakest])
    return uh.tasks.TeacherStudent(uh.LinearAttention(W_V=np.eye(3), W_K=np.eye(3), W_Q=M), LENGTH)


def test_random_neurons_find_a_weak_direction_that_condensing_left_out() -> None:
    task = nearly_singular_task(1e-5)
    data = sample(task, jax.random.key(0), 200, 8)
    first_output = replace(data, targets=data.targets[:, :1])
    # y_1 = Σ_i M_ii (Σ_s x_1 x_i) x_i, without i = 3.
    x, constant = np.eye(4)[:3], np.eye(4)[3]
    W_m, W_x = np.array([x[0], x[0], x[0], x[1]]), np.array([x[0], x[1], constant, constant])
    network = crossed_network(W_m, W_x, np.array([1.0, 1.0, 0.0, 0.0]), 1)

    def fit(student, examples, floor, far, down_to=None, most=None):
        return minimise(student, examples, steps=most, watch=lambda *now: None, far=far)

    stage = Stage(task, fit, 1e-18 * task.scale, lambda: False)
    left_out = finish_condensed(network, first_output, stage, None)
    assert left_out.costs[-1] > 1e-13 * task.scale
    joined = finish_condensed(network, first_output, stage, np.random.default_rng(0))
    assert joined.costs[-1] <= stage.enough and np.sum(joined.network.decay == 0) == 3


def test_a_teacher_that_is_almost_singular_is_found_by_its_stages(monkeypatch) -> None:
    # Steps on all outputs at once find it too, in more time.
    monkeypatch.setattr("underhood.training.second_order.fitting.MOST_AT_ONCE", 0)
    task = nearly_singular_task(1e-6)
    options = {"key": jax.random.key(1), "width": 9, "restarts": 4, "progress": False}
    result = uh.fit(gated(3), task, **options)
    assert result.success and result.model.neurons == 9, result.message


def test_a_wide_start_ends_with_its_stages(monkeypatch) -> None:
    monkeypatch.setattr("underhood.training.second_order.fitting.MOST_AT_ONCE", 4)
    failed = "underhood.training.second_order.starts.fit_by_stages"
    monkeypatch.setattr(failed, lambda *arguments: None)
    options = {"key": jax.random.key(1), "width": 5, "restarts": 1, "progress": False}
    result = uh.fit(gated(2), teacher_task(2), **options)
    assert result.model.neurons == 5 and not result.success and result.best_start.steps <= 1
    assert result.best_start.reason == "its stages did not lead to all outputs"


@pytest.mark.parametrize(
    ("d", "rank", "neurons"), [(1, None, 2), (2, None, 5), (3, None, 9), (3, 1, 2), (4, 2, 6)]
)
def test_the_theory_s_own_size_is_found(d, rank, neurons) -> None:
    task = teacher_task(d, rank)
    result = uh.fit(gated(d), task, key=jax.random.key(1), width=neurons, progress=False)
    assert result.success and result.model.neurons == neurons, result.message
    assert result.loss <= 1e-16 * task.scale
    assert fresh_loss(result.model, task) <= 1e-15 * task.scale
    decompiled = uh.decompile(result.model)
    assert decompiled.is_attention and decompiled.residual < 1e-7
    left = quadratic_form(decompiled.attention), quadratic_form(task.attention)
    xs = np.random.default_rng(0).normal(size=(6, d))
    np.testing.assert_allclose(left[0](xs), left[1](xs), atol=1e-5)


@pytest.mark.parametrize("width", [4, 12])
def test_side_gated_and_wide_students_are_found(width) -> None:
    task = teacher_task(2)
    result = uh.fit(side_gated(2), task, key=jax.random.key(0), width=width, progress=False)
    assert result.success and isinstance(result.model, uh.SideGatedRNN)
    wide = uh.fit(gated(2), task, key=jax.random.key(0), width=10 * width, progress=False)
    assert wide.success and wide.model.neurons == 10 * width
    assert fresh_loss(wide.model, task) <= 1e-15 * task.scale


def test_a_network_is_the_first_start() -> None:
    task = teacher_task(2)
    rnn = uh.compile(task.attention).layer
    result = uh.fit(rnn, task, key=jax.random.key(0), wider=False, progress=False)
    assert result.success and len(result.starts) == 1 and result.best_start.steps <= 4


@pytest.mark.parametrize("sizes", [(1, 1, 3), (2, 1, 4)])
def test_regression_ends_at_the_optimal_step(sizes) -> None:
    d_x, d_y, pairs = sizes
    task = uh.tasks.InContextRegression(d_x, d_y, pairs=pairs)
    width = d_x * d_y + d_x
    student = gated(d_x + d_y, d_y)
    result = uh.fit(
        student, task, key=jax.random.key(0), width=width, tolerance=1e-12, progress=False
    )
    assert result.success, result.message
    assert result.loss == pytest.approx(task.best_loss, rel=1e-10)
    step = uh.decompile(result.model, task=task).gradient_step(task)
    assert step.step == pytest.approx(step.best_step, abs=1e-7)


def test_teacher_student_by_the_exact_loss() -> None:
    task = teacher_task(2)
    result = uh.fit(
        gated(2), task, key=jax.random.key(0), width=7, exact=True, tolerance=1e-14, progress=False
    )
    assert result.success and set(np.asarray(result.model.decay)) <= {0.0, 1.0}


@pytest.mark.parametrize(
    ("task", "maker", "width"),
    [
        (uh.tasks.InContextRegression(2, 1, pairs=4), gated(3, 1), 3),
        (uh.tasks.InContextRegression(2, 1, pairs=4), side_gated(3, 1), 1),
        (teacher_task(2), gated(2), 3),
        (teacher_task(2), side_gated(2), 1),
    ],
)
def test_the_exact_loss_of_a_student_that_is_too_small_is_the_population_s(
    task, maker, width
) -> None:
    key = jax.random.key(4)
    options = {"width": width, "restarts": 2, "exact": True, "progress": False}
    result = uh.fit(maker, task, key=key, **options)
    everything, network = AllSequences(population(task)), SeparableNetwork.of(result.model)
    outputs = everything.features(network) @ network.linear.T
    exact = everything.population.loss_at(outputs)
    assert not result.success and result.loss == pytest.approx(exact, rel=1e-9)
    drawn = sample(task, jax.random.key(99), 60_000)
    seen = np.mean((drawn.features(network) @ network.linear.T - drawn.targets) ** 2) / 2
    assert result.loss == pytest.approx(seen, rel=0.1) and seen > 1.1 * task.best_loss
    assert f"{result.loss:.3g}" in result.message


# --- What is not


def test_too_few_neurons_are_never_called_a_success() -> None:
    task = teacher_task(2)
    result = uh.fit(gated(2), task, key=jax.random.key(0), width=4, progress=False)
    assert not result.success and result.loss > 1e-8 * task.scale
    assert result.model.neurons == 4 and len(result.starts) < 16
    assert "not found" in result.message and "more neurons than the student has" in result.message
    assert fresh_loss(result.model, task) == pytest.approx(result.loss, rel=0.5)


class Cubes(uh.tasks.TeacherStudent):
    """A teacher that is no attention: x³ of the current token."""

    def sample(self, key, batch):
        inputs = jax.random.normal(key, (batch, self.length, self.d_in))
        return uh.tasks.task.Batch(inputs, inputs**5)


def test_what_no_gated_rnn_computes_is_not_found() -> None:
    task = Cubes(attention(2, 0), LENGTH)
    result = uh.fit(gated(2), task, key=jax.random.key(0), width=6, restarts=3, progress=False)
    assert not result.success and len(result.starts) == 3 and "not found" in result.message


def test_the_winner_does_not_depend_on_the_workers() -> None:
    task = teacher_task(2, seed=3)
    results = [
        uh.fit(gated(2), task, key=jax.random.key(5), width=5, workers=workers, progress=False)
        for workers in (1, 2)
    ]
    assert results[0].best_start.number == results[1].best_start.number
    np.testing.assert_allclose(results[0].losses, results[1].losses, rtol=1e-6)


def test_ctrl_c_keeps_the_best_start() -> None:
    lines = []

    def watch(start: int, step: int, loss: float) -> None:
        lines.append(loss)
        if len(lines) == 6:
            signal.raise_signal(signal.SIGINT)

    # What runs the tests may have a handler of its own.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        result = uh.fit(
            gated(3), teacher_task(3), key=jax.random.key(0), width=9, watch=watch, progress=False
        )
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.interrupted and "interrupted" in result.message
    assert 1 <= len(result.starts) <= 2 and result.model.neurons == 9


def test_progress_is_a_line_a_step() -> None:
    lines = []
    uh.fit(gated(1), teacher_task(1), key=jax.random.key(0), width=2, progress=lines.append)
    assert len(lines) > 3 and lines[0].startswith("fit: start 0, step 0, loss ")


def with_nan(task) -> uh.GatedRNN:
    rnn = uh.compile(task.attention).layer
    return eqx.tree_at(lambda rnn: rnn.W_in_m, rnn, np.full(rnn.W_in_m.shape, np.nan))


TASK = teacher_task(2)
REFUSALS = {
    "key is 0": {"key": 0},
    "width is 0": {"width": 0},
    "restarts is 1.5": {"restarts": 1.5},
    "tolerance is 0": {"tolerance": 0},
    "steps is -1": {"steps": -1},
    "exact is 'yes'": {"exact": "yes"},
    "progress is 3": {"progress": 3},
    "watch is 3": {"watch": 3},
    "wider is 'no'": {"wider": "no"},
    "the student's W_in_m has NaN": {"student": with_nan(TASK), "width": None},
    "has 17 inputs … Use uh.train": {"student": gated(17), "task": teacher_task(17)},
    "give the width": {"width": None},
    "the student is a int": {"student": 3},
    "width is for make_student": {"student": uh.compile(TASK.attention).layer},
    "make_student(width, *, key) failed": {"student": lambda width: None},
    "returns an LSTM … uh.train": {
        "student": lambda width, *, key: uh.LSTM.init(d_in=2, hidden=width, key=key)
    },
    "the model maps 3 numbers to 3": {"student": gated(3)},
    "the task is a str": {"task": "table1"},
    "AssociativeRecall … Use uh.train": {
        "task": uh.tasks.AssociativeRecall(2),
        "student": gated(4, 2),
    },
}


@pytest.mark.usefixtures("unhooked")
@pytest.mark.parametrize("words", REFUSALS)
def test_bad_input_is_refused_in_one_line(words) -> None:
    given = {"student": gated(2), "task": TASK, "key": jax.random.key(0), "width": 5}
    given |= {"progress": False} | REFUSALS[words]
    with refused(words):
        uh.fit(given.pop("student"), given.pop("task"), **given)
