"""Tasks: samplers do what their definitions say, closed forms are exact, bad input is refused."""

import itertools
import math
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from teachers import attention

import underhood as uh
from underhood.tasks import (
    AssociativeRecall,
    InContextRegression,
    Task,
    TeacherStudent,
    gradient_descent_loss,
    optimal_step,
)

pytestmark = pytest.mark.usefixtures("x64")

KEY = jax.random.key(0)

TASKS: dict[str, Task] = {
    "teacher-student": TeacherStudent(attention(3, d_v=2, d_k=4), 7),
    "a teacher with decay and biases": TeacherStudent(
        attention(
            2, b_V=np.ones(2), b_K=np.array([0.5, -1]), b_Q=np.ones(2), decay=np.array([0.5, 0.9])
        ),
        5,
    ),
    "regression": InContextRegression(),
    "regression with other sizes": InContextRegression(2, 4, 5, variance=0.7),
    "one pair of numbers": InContextRegression(1, 1, 1),
    "recall": AssociativeRecall(),
    "recall of a few": AssociativeRecall(6, pairs=2),
    "recall between tokens": AssociativeRecall(6, True, 3),
    "recall of one": AssociativeRecall(1, True),
}
every_task = pytest.mark.parametrize("name", TASKS)


@eqx.filter_jit
def draw(task, key, batch):
    """A batch, compiled as a whole."""
    return task.sample(key, batch)


def zeros(task, inputs):
    """What the network that always outputs zero answers."""
    shape = (len(inputs), task.d_out) if task.reads_last else (*inputs.shape[:2], task.d_out)
    return jnp.zeros(shape)


@eqx.filter_jit
def answers(task, layer, inputs):
    """What a layer answers, at the tokens that count."""
    outputs = jax.vmap(layer)(inputs)
    return outputs[:, -1] if task.reads_last else outputs


def losses_of(task, *layers, batches=5, batch=20_000):
    """Many losses of each layer (None: of always answering zero), [samples, layers]."""

    @eqx.filter_jit
    def losses(task, layers, key):
        inputs, targets = task.sample(key, batch)
        given = (
            zeros(task, inputs) if layer is None else answers(task, layer, inputs)
            for layer in layers
        )
        return jnp.stack([task.losses(outputs, targets) for outputs in given], axis=1)

    keys = jax.random.split(jax.random.key(1), batches)
    return np.concatenate([losses(task, layers, key) for key in keys])


def assert_mean(samples, expected, *, within=None):
    """Along the first axis, up to five standard errors, and these must be small enough to tell."""
    samples = np.asarray(samples)
    error = samples.std(axis=0) / math.sqrt(len(samples))
    if within is not None:
        assert np.all(error <= within * np.abs(expected))
    assert np.all(np.abs(samples.mean(axis=0) - expected) <= 5 * error + 1e-12)


def run_naively(teacher, xs):
    """Eq. 1 token by token, in NumPy: [n, time, d] -> [n, time, d_v]."""
    values, keys, queries = (
        xs @ W.T + (0 if b is None else b)
        for W, b in (
            (teacher.W_V, teacher.b_V),
            (teacher.W_K, teacher.b_K),
            (teacher.W_Q, teacher.b_Q),
        )
    )
    decay = np.ones(teacher.d_out) if teacher.decay is None else teacher.decay
    memory = np.zeros((len(xs), teacher.d_out, keys.shape[2]))
    outputs = []
    for t in range(xs.shape[1]):
        memory = decay[:, None] * memory + values[:, t, :, None] * keys[:, t, None, :]
        outputs.append(np.einsum("nvk,nk->nv", memory, queries[:, t]))
    return np.stack(outputs, axis=1)


# --- samplers


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
    assert {one.dtype for one in (inputs, outputs, *scores.values())} == {floats}
    assert jnp.issubdtype(targets.dtype, jnp.integer) if recall else targets.dtype == floats


@pytest.mark.parametrize(
    "name",
    ["a teacher with decay and biases", "regression", "recall", "recall between tokens"],
)
def test_the_key_alone_decides(name, quick_compile):
    task = TASKS[name]
    first, again, other = (task.sample(jax.random.key(n), 200) for n in (1, 1, 2))
    compiled = draw(task, jax.random.key(1), 200)
    for one, same, jitted, different in zip(first, again, compiled, other, strict=True):
        np.testing.assert_array_equal(one, same)
        np.testing.assert_allclose(one, jitted, rtol=1e-12, atol=1e-12)
        assert not np.array_equal(one, different)


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


def test_teacher_student_draws_independent_normals(quick_compile):
    task = TASKS["teacher-student"]
    inputs = [draw(task, jax.random.key(n), 20_000).inputs for n in (1, 2)]
    # Two keys side by side: draws from different keys are independent as well.
    values = np.concatenate([one.reshape(len(one), -1)[:, :12] for one in inputs], axis=1)
    assert_independent(values, variance=1, kurtosis=3)


@pytest.mark.parametrize("name", ["teacher-student", "a teacher with decay and biases"])
def test_teacher_student_targets_are_the_teachers(name, quick_compile):
    task = TASKS[name]
    inputs, targets = draw(task, KEY, 200)
    np.testing.assert_allclose(
        targets, run_naively(task.attention, np.asarray(inputs)), rtol=1e-12, atol=1e-12
    )


def test_vmapped_teachers_are_the_separate_ones(quick_compile):
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
    for one, other in zip(jax.tree.leaves(drawn), jax.tree.leaves(stacked), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("rank", [2, None])
def test_random_teachers_have_the_rank_and_the_variance(rank, quick_compile):
    d = 6
    tasks = jax.vmap(lambda key: TeacherStudent.random(d, rank, key=key))(
        jax.random.split(KEY, 5000)
    )
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


def test_the_full_rank_need_not_be_named(quick_compile):
    unnamed, named = (TeacherStudent.random(2, rank, key=KEY).attention for rank in (None, 2))
    for one, other in zip(jax.tree.leaves(unnamed), jax.tree.leaves(named), strict=True):
        np.testing.assert_array_equal(one, other)


def test_stacked_teachers_tell_their_sizes():
    task = TASKS["teacher-student"]
    stacked = jax.tree.map(lambda leaf: np.stack([leaf] * 5), task).with_length(9)
    assert (stacked.d_in, stacked.d_out, stacked.time) == (task.d_in, task.d_out, 9)


def test_the_teacher_of_rank_zero_is_zero(quick_compile):
    task = TeacherStudent.random(3, 0, length=5, key=KEY)
    assert not np.any(draw(task, KEY, 2).targets)
    assert task.zero_loss == task.scale == 0.0


@pytest.mark.parametrize(
    "task", [InContextRegression(), InContextRegression(2, 1, 4, 0.7).validation()]
)
def test_regression_draws_a_task_per_sequence(task, quick_compile):
    tokens, targets = (np.asarray(one) for one in draw(task, KEY, 60_000))
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


def test_mirrored_regression_draws_each_sequence_with_its_mirror_image(quick_compile):
    task = InContextRegression(mirrored=True)
    for batch in (1, 6, 7):
        tokens, targets = (np.asarray(one) for one in draw(task, KEY, batch))
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
def test_recall_sequences_are_as_defined(name, quick_compile):
    task = TASKS[name]
    slot = task.d_in // 2
    inputs, targets = (np.asarray(one) for one in draw(task, KEY, 200))
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


def test_recall_draws_uniformly(quick_compile):
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


# --- losses


@pytest.mark.parametrize("name", ["teacher-student", "regression"])
def test_squared_losses_are_half_the_mean(name, quick_compile):
    task = TASKS[name]
    shape = (4, task.d_out) if task.reads_last else (4, task.time, task.d_out)
    outputs, targets = jnp.asarray(np.random.default_rng(0).normal(size=(2, *shape)))
    errors = np.asarray(outputs - targets).reshape(4, -1)
    np.testing.assert_allclose(task.losses(outputs, targets), 0.5 * np.mean(errors**2, axis=1))
    np.testing.assert_allclose(task.loss(outputs, targets), 0.5 * np.mean(errors**2))
    np.testing.assert_array_equal(
        task.scores(outputs, targets)["loss"], task.losses(outputs, targets)
    )


def test_recall_loss_is_the_cross_entropy(quick_compile):
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
def test_zero_loss_of_a_teacher_is_what_zero_costs(task, quick_compile):
    assert_mean(losses_of(task, None, batches=3), task.zero_loss, within=0.007)


def test_zero_loss_needs_no_float64():
    narrow = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), TASKS["teacher-student"])
    with jax.enable_x64(False):
        assert narrow.zero_loss == pytest.approx(TASKS["teacher-student"].zero_loss, rel=1e-6)


def test_the_best_attention_of_a_teacher_is_the_teacher(quick_compile):
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
    found = gradient_descent_loss(step, weight_variance=weight_variance, **sizes)
    assert found == pytest.approx(expected, rel=1e-10)

    def slope(at, width=1e-3):
        ends = (
            gradient_descent_loss(end, weight_variance=weight_variance, **sizes)
            for end in (at + width, at - width)
        )
        return np.subtract(*ends) / (2 * width)

    best = optimal_step(**sizes)
    assert abs(slope(best)) <= 1e-9 * abs(slope(0.0))


def test_best_attention_takes_one_gradient_step(quick_compile):
    task = TASKS["regression"]
    inputs, _ = draw(task, KEY, 200)
    found = answers(task, task.best_attention(), inputs)
    for tokens, answer in zip(np.asarray(inputs), found, strict=True):
        X, Y, x = tokens[:-1, :3].T, tokens[:-1, 3:].T, tokens[-1, :3]
        W = np.zeros((3, 3))
        W -= optimal_step(pairs=task.pairs, d_x=task.d_x) * (W @ X - Y) @ X.T
        np.testing.assert_allclose(answer, W @ x, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "task",
    [
        InContextRegression().validation(),
        InContextRegression(1, 1, 1),
        InContextRegression(5, 2, 3, 0.4),
    ],
    ids=["the paper's", "one", "other"],
)
def test_regression_losses_are_the_closed_forms(task, quick_compile):
    best = task.best_attention()
    # A step of another size costs what the formula says, which is more.
    doubled = eqx.tree_at(lambda layer: layer.W_V, best, replace_fn=lambda W: 2 * W)
    cost = gradient_descent_loss(
        2 * optimal_step(pairs=task.pairs, d_x=task.d_x),
        pairs=task.pairs,
        d_x=task.d_x,
        weight_variance=task.variance,
    )
    assert cost > task.best_loss
    expected = np.array([task.zero_loss, task.best_loss, cost])
    assert_mean(losses_of(task, None, best, doubled), expected, within=0.012)


# --- closed forms: recall


@pytest.mark.parametrize("name", [name for name in TASKS if "recall" in name])
def test_the_best_attention_recalls_everything(name, quick_compile):
    task = TASKS[name]
    inputs, targets = draw(task, KEY, 200)
    best = task.best_attention()
    scores = task.scores(answers(task, best, inputs), targets)
    assert np.all(scores["accuracy"] == 1)
    np.testing.assert_allclose(scores["loss"], task.best_loss, rtol=1e-12, atol=1e-14)
    nothing = task.losses(zeros(task, inputs), targets)
    np.testing.assert_allclose(nothing, task.zero_loss, rtol=1e-12, atol=1e-14)
    sharp = eqx.tree_at(lambda layer: layer.W_V, best, replace_fn=lambda W: 20 * W)
    expected = math.log1p((task.symbols - 1) * math.exp(-20))
    found = task.loss(answers(task, sharp, inputs), targets)
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-14)


# --- other lengths


@every_task
def test_other_lengths_keep_the_task(name):
    task = TASKS[name]
    other = task.with_length(1)
    sizes = {"length": 1} if isinstance(task, TeacherStudent) else {"pairs": 1}
    kept = {field: value for field, value in vars(task).items() if field not in sizes}
    assert vars(other) == {**kept, **sizes}
    sampled = jax.eval_shape(lambda key: other.sample(key, 2), KEY)
    assert sampled.inputs.shape == (2, other.time, task.d_in)
    with pytest.raises(uh.BadInput):
        task.with_length(0)


def test_only_regression_validates_on_other_tasks():
    for task in TASKS.values():
        other = task.validation()
        if isinstance(task, InContextRegression):
            assert vars(other) == {**vars(task), "variance": 2 * task.variance}
        else:
            assert other is task


# --- refusals

HEAD = attention(3)
STACKED = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), TeacherStudent(HEAD))

REFUSED = {
    "a teacher of no length": (lambda: TeacherStudent(HEAD, 0), ["TeacherStudent", "length is 0"]),
    "half a token": (lambda: TeacherStudent(HEAD, 2.5), ["length is 2.5", "whole number"]),
    "a truth value": (lambda: TeacherStudent(HEAD, True), ["length is True"]),
    "several heads": (
        lambda: TeacherStudent(uh.MultiHead([HEAD])),
        ["MultiHead", "LinearAttention"],
    ),
    "no teacher": (lambda: TeacherStudent(None), ["NoneType", "LinearAttention"]),
    "a class": (lambda: TeacherStudent(uh.LinearAttention), ["LinearAttention"]),
    "a teacher without outputs": (
        lambda: TeacherStudent(uh.LinearAttention(np.ones((0, 2)), *np.ones((2, 1, 2)))),
        ["no outputs", "W_V"],
    ),
    "no teacher longer": (lambda: TeacherStudent(HEAD).with_length(-1), ["length is -1"]),
    "a rank above d": (lambda: TeacherStudent.random(3, 4, key=KEY), ["rank is 4", "3 or less"]),
    "a negative rank": (lambda: TeacherStudent.random(3, -1, key=KEY), ["rank is -1", "0 or more"]),
    "half a rank": (lambda: TeacherStudent.random(3, 1.5, key=KEY), ["rank is 1.5"]),
    "no dimension": (lambda: TeacherStudent.random(0, key=KEY), ["d is 0", "1 or more"]),
    "two problems": (lambda: TeacherStudent.random("4", -1, key=KEY), ["d is '4'", "rank is -1"]),
    "a random teacher of no length": (
        lambda: TeacherStudent.random(2, length=0, key=KEY),
        ["length is 0"],
    ),
    "stacked teachers sampled at once": (lambda: STACKED.sample(KEY, 2), ["2 stacked", "vmap"]),
    "the scale of stacked teachers": (lambda: STACKED.scale, ["2 stacked", "vmap"]),
    "a closed form under jit": (
        lambda: jax.jit(lambda task: task.zero_loss)(TeacherStudent(HEAD)),
        ["outside jit"],
    ),
    "outputs that would broadcast": (
        lambda: InContextRegression().loss(jnp.ones((3, 3, 3)), jnp.ones((3, 3))),
        ["(3, 3, 3)", "(3, 3)", "reads_last"],
    ),
    "recall outputs at every token": (
        lambda: AssociativeRecall(4).loss(jnp.ones((2, 5, 4)), jnp.ones(2, int)),
        ["(2, 5, 4)", "[2, 4]"],
    ),
    "scores over other symbols": (
        lambda: AssociativeRecall(4).loss(jnp.ones((2, 3)), jnp.ones(2, int)),
        ["(2, 3)", "4 symbols"],
    ),
    "regression without inputs": (lambda: InContextRegression(0), ["InContext", "d_x is 0"]),
    "regression without outputs": (lambda: InContextRegression(d_y=-2), ["d_y is -2"]),
    "regression without pairs": (lambda: InContextRegression(pairs=0), ["pairs is 0"]),
    "no variance": (lambda: InContextRegression(variance=0), ["variance is 0", "positive"]),
    "a negative variance": (lambda: InContextRegression(variance=-1.0), ["variance is -1.0"]),
    "a variance of nan": (lambda: InContextRegression(variance=math.nan), ["variance is nan"]),
    "an infinite variance": (lambda: InContextRegression(variance=math.inf), ["variance is inf"]),
    "a variance in words": (lambda: InContextRegression(variance="1/3"), ["variance is '1/3'"]),
    "all at once": (
        lambda: InContextRegression(0, 0.5, None, math.nan),
        ["d_x is 0", "d_y is 0.5", "pairs is None", "variance is nan"],
    ),
    "a step for no pairs": (lambda: optimal_step(pairs=0, d_x=3), ["optimal_step", "pairs is 0"]),
    "an impossible kurtosis": (
        lambda: optimal_step(pairs=1, d_x=1, kurtosis=0.5),
        ["kurtosis is 0.5", "1 or more"],
    ),
    "inputs that do not vary": (
        lambda: optimal_step(pairs=1, d_x=1, input_variance=0.0),
        ["input_variance is 0.0"],
    ),
    "weights that do not vary": (
        lambda: gradient_descent_loss(0.1, pairs=1, d_x=1, weight_variance=-1),
        ["gradient_descent_loss", "weight_variance is -1"],
    ),
    "no symbols": (lambda: AssociativeRecall(0), ["AssociativeRecall", "symbols is 0"]),
    "more pairs than symbols": (lambda: AssociativeRecall(4, pairs=5), ["pairs is 5", "4 or less"]),
    "recall without pairs": (lambda: AssociativeRecall(4, pairs=0), ["pairs is 0"]),
    "a longer recall": (lambda: AssociativeRecall().with_length(9), ["pairs is 9", "8 or less"]),
    "pairs for a flag": (lambda: AssociativeRecall(4, 2), ["between_tokens is 2", "True or False"]),
    "a word for a flag": (lambda: InContextRegression(mirrored="yes"), ["mirrored is 'yes'"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_refused_in_one_line(name, unhooked):
    build, fragments = REFUSED[name]
    with pytest.raises(uh.BadInput) as caught:
        build()
    message = str(caught.value)
    assert "\n" not in message
    assert [fragment for fragment in fragments if fragment not in message] == []


def test_misspelt_settings_are_refused(unhooked):
    with pytest.raises(TypeError, match="pair"):
        InContextRegression(pair=3)


def test_whole_numbers_may_be_numpys(unhooked):
    task = AssociativeRecall(np.int64(4), pairs=np.int32(2))
    assert task == AssociativeRecall(4, pairs=2)
    assert type(task.pairs) is int
